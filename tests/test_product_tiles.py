"""Products in CUDA C++ by tiles of other than 128 rows."""

from __future__ import annotations

import pytest
import torch
from backends import NEEDS_CUDA
from product_cases import LAYOUTS, assert_product, integers, normal, operands
from test_product_turns import multiprocessors

import diglot
from diglot.reference.matmul import matmul_oracle

BF16 = torch.bfloat16
TILES = [(64, 96), (64, 128), (64, 160), (64, 192), (192, 128), (192, 192)]
TALL = TILES[-2]  # of the three consumers of 192 rows
pytestmark = NEEDS_CUDA


def numbers_of(rows: int, columns: int, **others: int) -> dict[str, int]:
    asked = {"swap": 0, "turns": 1, "columns": 1000 * rows + columns, "split": 1, "cluster": 1}
    return {f"products.cuda.{name}": number for name, number in (asked | others).items()}


def by_tiles(tile: tuple[int, int], function, *tensors, end: str = "", **others: int):
    """The result by a plan of such tiles, whose name has this end."""
    with diglot.use_plans(numbers_of(*tile, **others)):
        result = function(*tensors, backend="cuda")
    last = diglot.last_run()
    assert last is not None
    assert last.variant == f"wgmma, tiles of {tile[0]}x{tile[1]}{end}"
    return result


@pytest.mark.parametrize(
    ("tile", "dtype"), [*((tile, BF16) for tile in TILES), (TALL, torch.float16)], ids=str
)
def test_layouts(tile, dtype):
    """Tiles with edges: of a line, of 64 rows, of C that TMA cannot store."""
    rows, columns = tile
    for layout in LAYOUTS:
        for m, n, k in ((rows + 9, columns + 3, 136), (rows - 63, 5, 328)):
            m = -(-m // 8) * 8 if layout[0] == "T" else m
            n = -(-n // 8) * 8 if layout[1] == "N" else n
            a, b = operands(m, n, k, layout, dtype)
            assert_product(by_tiles(tile, diglot.matmul, a, b), a, b)


@pytest.mark.parametrize(("tile", "k"), [*((tile, 56) for tile in TILES), (TILES[0], 712)])
def test_blocks_have_several_tiles(tile, k):
    """A tile's steps are fewer than stages, or more."""
    m = multiprocessors() // 2 * tile[0] + 3
    a, b = operands(m, tile[1] + 8, k, "NT", BF16, integers)
    bias = integers(tile[1] + 8, dtype=BF16)
    expected = matmul_oracle(a, b)
    assert torch.equal(by_tiles(tile, diglot.matmul, a, b), expected.bfloat16())
    result = by_tiles(tile, diglot.linear, a, b.mT, bias)
    assert torch.equal(result, (expected + bias.double()).bfloat16())


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_parts(tile):
    """Of K, by scratch and of a cluster: equal bits of as many parts."""
    a, b = operands(tile[0] + 1, tile[1], 520, "NT", BF16)
    ways = ((1, ", K in 3 parts"), (2, ", K in 3 parts of a cluster"))
    results = [
        by_tiles(tile, diglot.matmul, a, b, end=end, split=3, split_in_cluster=way)
        for way, end in ways
    ]
    assert torch.equal(*results)
    assert_product(results[0], a, b)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_batches_and_special_values(tile):
    a, b = normal(3, 200, 72, dtype=BF16), normal(3, 72, 136, dtype=BF16)
    assert_product(by_tiles(tile, diglot.bmm, a, b), a, b)
    a[0, 3, 5], a[1, 70, 71], b[2, 9, 11] = torch.nan, torch.inf, -torch.inf
    result = by_tiles(tile, diglot.bmm, a, b)
    expected = torch.matmul(a.double(), b.double())
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(test(result), test(expected))
