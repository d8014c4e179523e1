"""Products in CUDA C++ whose consumers take turns at whole tiles."""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, NEEDS_CUDA
from product_cases import LAYOUTS, assert_product, integers, normal, operands, surrounded

import diglot
from diglot.reference.activations import ACTIVATIONS
from diglot.reference.matmul import matmul_oracle

HALVES = [torch.bfloat16, torch.float16]
BF16 = torch.bfloat16
TURNS = {"products.cuda.turns": 2, "products.cuda.swap": 0, "products.both.row_sums": 0}
# The ordinary tile of the same size, along all of K.
TOGETHER = {
    "products.cuda.turns": 1,
    "products.cuda.swap": 0,
    "products.cuda.columns": 128,
    "products.cuda.split": 1,
    "products.cuda.cluster": 1,
    "products.both.row_sums": 0,
}
NAME = "wgmma, tiles of 128x128"
pytestmark = NEEDS_CUDA


def multiprocessors() -> int:
    if DEVICE == "cpu":
        return 8  # the interpreter's
    return torch.cuda.get_device_properties(0).multi_processor_count


def in_turns(function, *tensors, **keywords):
    """The result, which has the same bits as where two consumers share each tile."""
    results = []
    for numbers, name in ((TOGETHER, NAME), (TURNS, f"{NAME}, in turns")):
        with diglot.use_plans(numbers):
            results.append(function(*tensors, **keywords, backend="cuda"))
        last = diglot.last_run()
        assert last is not None and last.variant == name
    assert torch.equal(*results)
    return results[1]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_layouts(dtype):
    """One tile, and several with edges: of a line, of 64 rows, of C that TMA cannot store."""
    for layout in LAYOUTS:
        for m, n, k in ((128, 128, 64), (72, 131, 136), (200, 264, 392), (9, 5, 704)):
            m = -(-m // 8) * 8 if layout[0] == "T" else m
            n = -(-n // 8) * 8 if layout[1] == "N" else n
            a, b = operands(m, n, k, layout, dtype)
            assert_product(in_turns(diglot.matmul, a, b), a, b)


@pytest.mark.parametrize("k", [56, 328, 640])
def test_blocks_have_several_tiles(k):
    """Some four, others three: so consumers have as many, or one more. A tile's steps are fewer
    than stages, as many, or more.
    """
    a, b = operands(multiprocessors() * 160 - 3, 264, k, "NT", BF16, integers)
    bias = integers(264, dtype=BF16)
    expected = matmul_oracle(a, b)
    assert torch.equal(in_turns(diglot.matmul, a, b), expected.bfloat16())
    result = in_turns(diglot.linear, a, b.mT, bias)
    assert torch.equal(result, (expected + bias.double()).bfloat16())


@pytest.mark.parametrize("n", [264, 131])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_follows_sums(activation, n):
    """The second half of a tile has the same bias, and rows of its own of the residual."""
    x, weight, bias = (integers(*s, dtype=BF16) for s in ((300, 136), (n, 136), (n,)))
    in_turns(diglot.linear, x, weight, bias, activation=activation)
    residual = integers(300, n, dtype=BF16)
    besides = (residual, residual[:, :1], residual[:1], surrounded(residual))
    for beside in besides if activation == "relu" else besides[:2]:
        result = in_turns(diglot.linear, x, weight, bias, activation=activation, residual=beside)
        if activation == "relu":
            expected = matmul_oracle(x, weight.mT) + bias.double() + beside.double()
            assert torch.equal(result, expected.relu().bfloat16())


def test_values_before_the_activation():
    """mlp stores them too, and its gradients read them."""
    shapes = (300, 72), (264, 72), (264,), (136, 264), (136,)
    tensors = [(normal(*s, dtype=BF16) * s[-1] ** -0.5).requires_grad_() for s in shapes]
    grad = normal(300, 136, dtype=BF16)
    found = []
    for numbers in (TURNS, TOGETHER):
        with diglot.use_plans(numbers), diglot.record_runs() as runs:
            result = diglot.mlp(*tensors, backend="cuda")
            found.append([result, *torch.autograd.grad(result, tensors, grad)])
        assert {"linear_forward", "mlp_backward"} <= {each.launcher for each in runs}
        products = [each.variant for each in runs if each.variant.startswith("wgmma")]
        assert products and all(("in turns" in name) == (numbers is TURNS) for name in products)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_factors():
    """addmm's alpha and beta."""
    input, (a, b) = normal(200, 136, dtype=BF16), operands(200, 136, 72, "NT", BF16)
    in_turns(diglot.addmm, input, a, b, alpha=0.5, beta=-2.0)


def test_batches():
    """Consumers' tiles are of different matrices."""
    a, b = normal(5, 136, 72, dtype=BF16), normal(5, 72, 136, dtype=BF16)
    for x, y in ((a, b), (a.mT.contiguous().mT, b), (a[:1].expand_as(a), b), (a, b[..., :131])):
        assert_product(in_turns(diglot.bmm, x, y), x, y)
    input = normal(5, 136, 136, dtype=BF16)
    in_turns(diglot.baddbmm, input, a, b, alpha=0.5, beta=-2.0)


def test_special_values():
    a, b = normal(150, 200, dtype=BF16), normal(200, 136, dtype=BF16)
    a[3, 5], a[70, 199], b[9, 11] = torch.nan, torch.inf, -torch.inf
    with diglot.use_plans(TURNS):
        result = diglot.matmul(a, b, backend="cuda")
    expected = torch.matmul(a.double(), b.double())
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(test(result), test(expected))


def test_no_steps():
    """K = 0 leaves a bias."""
    x, weight = normal(200, 0, dtype=BF16), normal(136, 0, dtype=BF16)
    bias = normal(136, dtype=BF16)
    with diglot.use_plans(TURNS):
        assert torch.equal(diglot.linear(x, weight, bias, backend="cuda"), bias.expand(200, 136))
