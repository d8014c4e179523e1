"""Products in CUDA C++ whose parts of K meet in the shared memory of a cluster."""

from __future__ import annotations

import pytest
import torch
from backends import NEEDS_CUDA
from product_cases import (
    LAYOUTS,
    assert_product,
    integers,
    laid_out,
    normal,
    operands,
    surrounded,
)

import diglot
from diglot.reference.matmul import matmul_oracle

BF16 = torch.bfloat16
NEVER, ALWAYS = 1, 2
pytestmark = NEEDS_CUDA


def numbers(parts: int, where: int = ALWAYS, **others: int) -> dict[str, int]:
    """What asks for parts of K, in clusters or elsewhere, and for other numbers of products."""
    given = {"split": parts, "split_in_cluster": where, **others}
    return {f"products.cuda.{name}": value for name, value in given.items()}


def variant() -> str:
    last = diglot.last_run()
    assert last is not None
    return last.variant


def run(function, *tensors, **keywords):
    return function(*tensors, **keywords, backend="cuda")


# Rows, columns, parts and what decides the tile: one consumer or two, all widths of sums. The
# interpreter has eight SMs, and places for clusters of five on five of them.
TILES = [
    (9, 120, 2, {"columns": 16}),
    (20, 72, 2, {"columns": 32}),
    (33, 64, 5, {"columns": 64}),
    (150, 136, 3, {"columns": 160, "swap": 256}),
    (256, 72, 4, {"columns": 256, "swap": 256}),
    (20, 72, 2, {"columns": 64, "swap": 0}),
    (130, 96, 3, {"columns": 96, "swap": 0}),
    (40, 136, 3, {"columns": 128, "swap": 0}),
    (128, 150, 5, {"columns": 160, "swap": 0}),
    (60, 224, 5, {"columns": 224, "swap": 0}),
    (72, 300, 3, {"columns": 192, "swap": 0}),
]


@pytest.mark.parametrize(("m", "n", "parts", "others"), TILES)
def test_tiles(m, n, parts, others):
    """Every step of K counts once, and the bias once: two layouts have one. Bits are those of as
    many parts in scratch, at every call.
    """
    m, n = (m, n) if others.get("swap", 64) else (m, -(-n // 8) * 8)
    for layout, k in zip(LAYOUTS, (520, 328, 384, 648), strict=True):
        rows = -(-m // 8) * 8 if layout[0] == "T" else m
        a, b = operands(rows, -(-n // 8) * 8 if layout[1] == "N" else n, k, layout, BF16, integers)
        bias = integers(b.shape[1], dtype=BF16)
        with diglot.use_plans(numbers(parts, **others, turns=NEVER)):
            if layout in ("NT", "TN"):
                result, added = run(diglot.linear, a, b.mT, bias), bias.double()
            else:
                result, added = run(diglot.matmul, a, b), 0
            assert variant().endswith(f", K in {parts} parts of a cluster"), variant()
            assert f"{others['columns']}" in variant()
            assert ("exchanged" in variant()) == (others.get("swap", 64) > 0)
        assert torch.equal(result, (matmul_oracle(a, b) + added).bfloat16())
    a, b = operands(m, n, 520, "NT", BF16)
    with diglot.use_plans(numbers(parts, **others, turns=NEVER)):
        first, again = (run(diglot.matmul, a, b) for _ in range(2))
    with diglot.use_plans(numbers(parts, NEVER, **others, turns=NEVER)):
        apart = run(diglot.matmul, a, b)
        assert variant().endswith(f", K in {parts} parts")
    assert torch.equal(first, again) and torch.equal(first, apart)
    assert_product(first, a, b)


@pytest.mark.parametrize(
    ("m", "others"),
    [(20, {}), (60, {}), (130, {"columns": 64}), (70, {"columns": 192}), (70, {"columns": 128})],
)
def test_what_follows_sums(m, others):
    """A bias, a residual and an activation are those of the whole sum, in parts of any memory."""
    x, weight = integers(m, 264, dtype=BF16), integers(72, 264, dtype=BF16)
    bias, residual = integers(72, dtype=BF16), integers(m, 72, dtype=BF16)
    for beside in (residual, residual[:1], surrounded(residual)):
        expected = matmul_oracle(x, weight.mT) + bias.double() + beside.double()
        for n in (72, 71):  # TMA stores no rows of 71
            given = x, weight[:n], bias[:n]
            with diglot.use_plans(numbers(2, **others, swap=64)):
                result = run(diglot.linear, *given, activation="relu", residual=beside[:, :n])
            assert variant().endswith("K in 2 parts of a cluster")
            assert torch.equal(result, expected[:, :n].relu().bfloat16())


@pytest.mark.parametrize("m", [20, 100])
def test_values_before_the_activation(m):
    """mlp stores them too, and its gradients read them."""
    shapes = (m, 264), (64, 264), (64,), (72, 64), (72,)
    tensors = [(normal(*s, dtype=BF16) * s[-1] ** -0.5).requires_grad_() for s in shapes]
    grad = normal(m, 72, dtype=BF16)
    found = []
    for where in (ALWAYS, NEVER):
        with diglot.use_plans(numbers(2, where)), diglot.record_runs() as runs:
            result = run(diglot.mlp, *tensors)
            found.append([result, *torch.autograd.grad(result, tensors, grad)])
        assert any("of a cluster" in each.variant for each in runs) == (where == ALWAYS)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_batches():
    """A cluster has the parts of one matrix's tile."""
    for swap in (64, 0):
        a, b = normal(3, 5, 200, dtype=BF16), normal(3, 200, 24, dtype=BF16)
        with diglot.use_plans(numbers(2, swap=swap)):
            for x, y in ((a, b), (a, laid_out(b, True)), (a[:1].expand_as(a), b)):
                assert_product(run(diglot.matmul, x, y), x, y)
                assert variant().endswith("K in 2 parts of a cluster")


def test_special_values():
    a, b = normal(20, 392, dtype=BF16), normal(392, 48, dtype=BF16)
    a[3, 5], a[7, 391], b[200, 11] = torch.nan, torch.inf, -torch.inf
    with diglot.use_plans(numbers(3)):
        result = run(diglot.matmul, a, b)
    assert variant().endswith("of a cluster")
    expected = torch.matmul(a.double(), b.double())
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(test(result), test(expected))


def test_copies_of_operands():
    a, b = operands(40, 136, 4101, "NT", BF16, integers)
    with diglot.use_plans(numbers(2, columns=64)):
        result = run(diglot.matmul, a, b)
    assert variant().endswith("exchanged, K in 2 parts of a cluster, copies of A and B")
    assert torch.equal(result, matmul_oracle(a, b).bfloat16())


def test_where_there_is_no_cluster():
    """More parts than a cluster has blocks, or room for; more than there are steps; tiles with too
    many sums; and rows whose bits do not depend on others.
    """
    x, y = operands(72, 300, 1280, "NT", BF16)
    for columns, parts in ((256, 2), (128, 7)):
        with diglot.use_plans(numbers(parts, columns=columns, swap=0, turns=NEVER)):
            assert_product(run(diglot.matmul, x, y), x, y)
            assert variant().endswith(f"x{columns}, K in {parts} parts"), variant()
    a, b = operands(20, 40, 1280, "NT", BF16)
    for parts, end in ((9, ", K in 9 parts"), (64, ", K in 20 parts")):
        with diglot.use_plans(numbers(parts)):
            assert_product(run(diglot.matmul, a, b), a, b)
            assert variant().endswith(end), variant()
    with diglot.use_plans(numbers(4)):
        alone = run(diglot.matmul, a[:1], b, batch_invariant=True)
        assert "parts" not in variant()
        whole = run(diglot.matmul, a, b, batch_invariant=True)
    assert torch.equal(whole[:1], alone)
