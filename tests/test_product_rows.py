"""Products of few rows: operands that are exchanged, K that is split, and the choice of both."""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, KERNELS, needs_cuda
from product_cases import LAYOUTS, assert_product, integers, laid_out, normal, operands, surrounded

import diglot
from diglot.backends.plans import STREAM, Device, Scratch, plan_runs
from diglot.reference.matmul import matmul_oracle

HALVES = [torch.bfloat16, torch.float16]
SWAP, SPLIT, COLUMNS = "products.{}.swap", "products.{}.split", "products.cuda.columns"
NUMBER, IN_CLUSTER = "products.triton.number", "products.cuda.split_in_cluster"
APART = {IN_CLUSTER: 1}  # parts of K meet in scratch; tests/test_product_clusters.py has the others
WIDE = {16: 2, 32: 4, 64: 6}  # by rows, the number of Triton's tile of 128 columns
WIDTHS = {"cuda": 64, "triton": 128}  # of tiles of few rows
NAMES = {"cuda": "wgmma", "triton": "descriptors"}


def variant() -> str:
    last = diglot.last_run()
    assert last is not None
    return last.variant


def planned(backend, m, n, k):
    """The plan on an H200 of a product whose operands nobody reads."""
    a, b = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
    with plan_runs(Device(90, 132, 228 << 10, True)) as runs:
        diglot.matmul(a, b, backend=backend)
    return runs[0].plan


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rows", [16, 32, 64])
@pytest.mark.parametrize("backend", KERNELS)
def test_widths_of_exchanged_tiles(backend, rows, dtype):
    """Each width in each layout. Rows and columns at edges of tiles, and C that has odd rows."""
    for layout, m, n in zip(
        LAYOUTS, (rows, rows - 7, rows - 8, rows), (136, 131, 8, 128), strict=True
    ):
        n = n if layout[1] == "T" else -(-n // 8) * 8
        a, b = operands(m, n, 136, layout, dtype)
        bias = normal(n, dtype=dtype)
        with diglot.use_plans({COLUMNS: rows, NUMBER: WIDE[rows]}):
            assert_product(diglot.matmul(a, b, backend=backend), a, b)
            assert variant() == f"{NAMES[backend]}, tiles of {rows}x{WIDTHS[backend]}, exchanged"
            assert_product(diglot.linear(a, b.mT, bias, backend=backend), a, b, bias)
            assert variant().endswith("exchanged")


@needs_cuda
@pytest.mark.parametrize("rows", [160, 256])
def test_widths_of_more_rows(rows):
    """Exchanged tiles of more rows read the other operand once too."""
    for layout, m, n in zip(LAYOUTS, (rows, rows - 7, rows - 8, rows), (136, 131, 8, 128),
                            strict=True):  # fmt: skip
        n = n if layout[1] == "T" else -(-n // 8) * 8
        a, b = operands(m, n, 136, layout, torch.bfloat16)
        bias = normal(n, dtype=torch.bfloat16)
        with diglot.use_plans({COLUMNS: rows, SWAP.format("cuda"): 256}):
            assert_product(diglot.linear(a, b.mT, bias, backend="cuda"), a, b, bias)
            assert variant() == f"wgmma, tiles of {rows}x128, exchanged"
            diglot.linear(a, b.mT, activation="gelu", backend="cuda")
            assert f"{rows}x128" not in variant()  # fewer kernels have more than a bias


@pytest.mark.parametrize(("swap", "parts"), [(256, 2), (256, 7), (0, 3)])
@pytest.mark.parametrize("backend", KERNELS)
def test_parts_of_k(backend, swap, parts):
    """Every step of K counts once, and the bias once, where the last part has a tail too."""
    numbers = {SWAP.format(backend): swap, SPLIT.format(backend): parts, **APART}
    exchanged = ((40, 136, 904), 64), ((130, 8, 1032), 160)
    for sizes, columns in exchanged if swap else [((20, 72, 456), 0)]:
        a, b = operands(*sizes, "NT", torch.bfloat16, integers)
        bias = integers(sizes[1], dtype=torch.bfloat16)
        with diglot.use_plans(numbers | {COLUMNS: columns}):
            product = diglot.matmul(a, b, backend=backend)
            assert variant().endswith(f", K in {parts} parts")
            assert ("exchanged" in variant()) == (swap > 0)
            sum_ = diglot.linear(a, b.mT, bias, backend=backend)
        assert torch.equal(product, matmul_oracle(a, b).bfloat16())
        assert torch.equal(sum_, (matmul_oracle(a, b) + bias.double()).bfloat16())


@pytest.mark.parametrize("backend", KERNELS)
def test_parts_of_batches(backend):
    """Rows of a batch are rows of one matrix. K of several matrices is split too."""
    with diglot.use_plans({SPLIT.format(backend): 3, **APART}):
        a, b = normal(2, 3, 5, 200, dtype=torch.bfloat16), normal(200, 24, dtype=torch.bfloat16)
        assert_product(diglot.matmul(a, b, backend=backend), a, b)
        assert variant().endswith(", exchanged, K in 3 parts" if backend == "cuda" else "2 parts")
        b = normal(3, 200, 24, dtype=torch.bfloat16)
        assert_product(diglot.matmul(a, b, backend=backend), a, b)
        assert variant().endswith("3 parts" if backend == "cuda" else "2 parts")


@pytest.mark.parametrize("backend", KERNELS)
def test_no_more_parts_than_steps(backend):
    a, b = operands(9, 24, 200, "NN", torch.bfloat16)
    with diglot.use_plans({SPLIT.format(backend): 64, **APART}):
        assert_product(diglot.matmul(a, b, backend=backend), a, b)
        assert variant().endswith(f"K in {4 if backend == 'cuda' else 2} parts")
        # Counters have no room for more tiles than they are.
        plan = planned(backend, 8, 1 << 18, 256)
    assert "parts" not in plan.variant and plan.scratch is None


@pytest.mark.parametrize("backend", KERNELS)
def test_parts_of_copies(backend):
    """Copies of operands lie behind the sums of parts."""
    a, b = operands(40, 136, 4101, "NT", torch.bfloat16, integers)
    with diglot.use_plans({SPLIT.format(backend): 3, COLUMNS: 64, **APART}):
        result = diglot.matmul(a, b, backend=backend)
    assert variant().endswith("exchanged, K in 3 parts, copies of A and B")
    assert torch.equal(result, matmul_oracle(a, b).bfloat16())


@needs_cuda
def test_parts_are_added_in_one_order():
    """Bits do not depend on which part is the last to arrive, nor on the language's threads."""
    a, b = operands(33, 40, 640, "NT", torch.bfloat16)
    with diglot.use_plans({SPLIT.format("cuda"): 5, **APART}):
        first, *others = (diglot.matmul(a, b, backend="cuda") for _ in range(4))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("backend", KERNELS)
def test_special_values_in_parts(backend):
    a, b = normal(20, 392, dtype=torch.bfloat16), normal(392, 48, dtype=torch.bfloat16)
    a[3, 5], a[7, 391], b[200, 11] = torch.nan, torch.inf, -torch.inf
    with diglot.use_plans({SPLIT.format(backend): 3, **APART}):
        result = diglot.matmul(a, b, backend=backend)
    expected = torch.matmul(a.double(), b.double())
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(test(result), test(expected))


@pytest.mark.parametrize("backend", KERNELS)
def test_rows_apart(backend):
    """Rows of C are not touched beyond C, where a tile has more of them."""
    a, b = operands(21, 64, 136, "NN", torch.bfloat16)
    apart = surrounded(a, 2, 8)
    for given in (apart, laid_out(a[:16], True), a[:1]):
        assert_product(diglot.matmul(given, b, backend=backend), given, b)
        assert "exchanged" in variant()


@needs_cuda
@pytest.mark.skipif(DEVICE != "cpu", reason="plans of named devices")
def test_choice():
    """Memory bounds products of few rows, so K is split where few tiles would compute longer.
    Products that fill the GPU stay as they are.
    """
    for m, tiles in [
        (1, "16x64, exchanged"),
        (16, "16x64, exchanged"),
        (20, "32x64, exchanged"),
        (64, "64x64, exchanged"),
        (128, "64x160, in clusters of 2x2"),
        (512, "128x256"),
    ]:
        plan = planned("cuda", m, 8192, 8192)
        assert plan.variant == f"wgmma, tiles of {tiles}" and plan.scratch is None
    for numbers, parts, name, scratch in [
        ({}, 3, "3 parts of a cluster", None),
        (APART, 4, "4 parts", Scratch(4096 + 4 * 4 * 2048 * 16, 4096, STREAM)),
    ]:
        with diglot.use_plans(numbers):
            plan = planned("cuda", 16, 2048, 8192)
        assert plan.variant == f"wgmma, tiles of 16x64, exchanged, K in {name}"
        assert plan.scratch == scratch
        (order,) = plan.order
        assert dict(order.numbers)["parts"] == parts and order.grid == (32 * parts,)
    assert planned("cuda", 8192, 4096, 1024).variant == "wgmma, tiles of 128x128, in turns"
    assert planned("cuda", 512, 5120, 5120).variant == "wgmma, tiles of 128x160"
    large = planned("cuda", 4096, 4096, 4096)
    assert large.variant == "wgmma, tiles of 128x256" and large.scratch is None


@pytest.mark.skipif("triton" not in KERNELS, reason="there is no Triton")
@pytest.mark.skipif(DEVICE != "cpu", reason="plans of named devices")
def test_choice_in_triton():
    """The same. Narrow tiles give work to as many; large products take the widest."""
    for sizes, tile in [
        ((1, 8192, 8192), "16x64, exchanged"),
        ((16, 2048, 16384), "16x64, exchanged, K in 4 parts"),
        ((32, 8192, 8192), "32x64, exchanged"),
        ((128, 8192, 8192), "64x128"),
        ((256, 768, 3072), "64x64"),
        ((512, 4096, 4096), "128x128"),
        ((4096, 4096, 4096), "128x256"),
    ]:
        plan = planned("triton", *sizes)
        assert plan.variant == f"descriptors, tiles of {tile}"
        (order,) = plan.order
        parts = dict(order.numbers)["parts"]
        assert order.grid[0] <= 132 and (parts > 1) == ("parts" in tile)
        assert plan.scratch == (
            Scratch(4096 + parts * 4 * 2048 * 16, 4096, STREAM) if parts > 1 else None
        )


@needs_cuda
@pytest.mark.skipif(DEVICE != "cpu", reason="plans of named devices")
@pytest.mark.parametrize("op", [diglot.matmul, diglot.linear])
@pytest.mark.parametrize("backend", KERNELS)
def test_a_tuner_varies_what_products_have(backend, op):
    """Each tunable that decides has plans of other numbers among the candidates."""
    from diglot.backends.tuning import candidate_plans

    numbers = {
        ("cuda", 64): {COLUMNS, SPLIT.format(backend)},
        ("cuda", 8192): {COLUMNS, "products.both.group"},
        ("triton", 64): {NUMBER, SWAP.format(backend), SPLIT.format(backend)},
        ("triton", 8192): {NUMBER, "products.both.group"},
    }
    for m in (64, 8192):
        a, b = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((m, 8192), (8192, 8192)))
        with plan_runs(Device(90, 132, 228 << 10, True)) as runs:
            op(a, b, backend=backend)
            run = runs[0]
            found = candidate_plans(backend, run.op, run.launcher, *run.arguments)
        varied = {name for candidate in found for name in candidate.numbers}
        assert numbers[backend, m] <= varied, varied
