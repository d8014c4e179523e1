"""Products in CUDA C++ whose last round of tiles has helpers: blocks that have no tile there."""

from __future__ import annotations

import pytest
import torch
from backends import NEEDS_CUDA, needs_extension
from product_cases import LAYOUTS, assert_product, integers, normal, operands
from test_product_turns import multiprocessors

import diglot
from diglot.backends.plans import STREAM, Device, Scratch, plan_runs
from diglot.reference.matmul import matmul_oracle

BF16 = torch.bfloat16
FEW, MANY = (128, 64), (64, 96)  # sides of tiles
pytestmark = NEEDS_CUDA


def helped(tile: tuple[int, int], function, *tensors, **keywords):
    """The result by a plan of such tiles, which has helpers."""
    rows, columns = tile
    number = columns if rows == 128 else 1000 * rows + columns
    asked = {"swap": 0, "turns": 1, "columns": number, "split": -1}
    with diglot.use_plans({f"products.cuda.{name}": value for name, value in asked.items()}):
        result = function(*tensors, backend="cuda", **keywords)
    last = diglot.last_run()
    assert last is not None
    assert "the last round helped" in last.variant, last.variant
    return result


def sizes(tile: tuple[int, int], tiles: int, k: int) -> tuple[int, int, int]:
    """M, N and K of a column of tiles, the last one not whole."""
    return (tiles - 1) * tile[0] + tile[0] // 2 + 3, tile[1] - 8, k


def tile_counts() -> list[int]:
    """Fewer tiles than helpers, more, and such a round after whole ones."""
    blocks = multiprocessors()
    return [2, 3 * blocks // 4, blocks + blocks // 2, 2 * blocks + 1]


@pytest.mark.parametrize("tiles", tile_counts())
@pytest.mark.parametrize("tile", [FEW, MANY], ids=str)
def test_every_step_counts_once(tile, tiles):
    """Integers are exact. The second launch finds its counters as the first one did."""
    a, b = operands(*sizes(tile, tiles, 2056), "NT", BF16, integers)
    expected = matmul_oracle(a, b).bfloat16()
    for _ in range(2):
        assert torch.equal(helped(tile, diglot.matmul, a, b), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    m, n, k = sizes(MANY, multiprocessors() // 2, 712)
    a, b = operands(-(-m // 8) * 8, n, k, layout, torch.float16)
    assert_product(helped(MANY, diglot.matmul, a, b), a, b)


def test_a_bias_counts_once_and_activations_follow_all_sums():
    m, n, k = sizes(FEW, multiprocessors() // 2, 712)
    a, weight = operands(m, n, k, "NT", BF16)
    bias = normal(n, dtype=BF16)
    result = helped(FEW, diglot.linear, a, weight.mT, bias)
    assert_product(result, a, weight, bias)
    activated = helped(FEW, diglot.linear, a, weight.mT, bias, activation="relu")
    assert torch.equal(activated, result.relu())


def test_batches():
    tiles = multiprocessors() // 4
    a, b = (torch.stack([integers(*shape, dtype=BF16) for _ in range(3)])
            for shape in ((tiles * 64, 2056), (2056, 96)))  # fmt: skip
    assert torch.equal(helped(MANY, diglot.bmm, a, b), matmul_oracle(a, b).bfloat16())


def test_tf32():
    m, n, k = sizes(FEW, multiprocessors() // 2, 520)
    a, b = operands(m, n, k, "NT", torch.float32, integers)
    result = helped(FEW, diglot.matmul, a, b, precision="tf32")
    assert torch.equal(result.double(), matmul_oracle(a, b))


def test_results_depend_on_no_order_of_blocks():
    """Float sums are in the order of K, whichever block finishes a tile."""
    a, b = operands(*sizes(MANY, 3 * multiprocessors() // 4, 2056), "NT", BF16)
    results = [helped(MANY, diglot.matmul, a, b) for _ in range(3)]
    assert all(torch.equal(results[0], result) for result in results[1:])


def test_no_helpers_where_rows_must_not_depend_on_m():
    a, b = operands(*sizes(FEW, 3, 456), "NT", BF16)
    helped(FEW, diglot.matmul, a, b)
    result = diglot.matmul(a, b, backend="cuda", batch_invariant=True)
    with diglot.use_plans({"products.cuda.split": -1, "products.cuda.columns": FEW[1]}):
        assert torch.equal(diglot.matmul(a, b, backend="cuda", batch_invariant=True), result)
        last = diglot.last_run()
    assert last is not None and "helped" not in last.variant


@needs_extension
def test_a_plan_on_an_h200():
    """112 tiles of 132 SMs: 20 helpers. The plan says how it cuts K."""
    a, b = (torch.empty(shape, dtype=BF16) for shape in ((770, 16384), (16384, 4096)))
    numbers = {"products.cuda.split": -1, "products.cuda.columns": 256}
    with diglot.use_plans(numbers), plan_runs(Device(90, 132, 228 << 10, True)) as runs:
        diglot.matmul(a, b, backend="cuda")
    (plan,) = [run.plan for run in runs]
    assert plan.variant == "wgmma, tiles of 128x256, the last round helped"
    (launch,) = plan.launches
    assert launch.grid[0] == 132
    order = dict(launch.order.numbers)
    assert order["parts"] == 1 and (order["kept"], order["cost"]) == (221, 4)
    assert plan.scratch == Scratch(4096 + (2 * 112 + 20) * 128 * 256 * 4, 4096, STREAM)
