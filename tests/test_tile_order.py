"""The model of L2 that docs/ladder.md shows: what orders of tiles ask of DRAM."""

from __future__ import annotations

from diglot.bench import tile_order

SHAPE, BLOCKS = (2048, 4096, 512), 16  # 16 x 16 tiles
ONCE = 2 * (2048 * 512 + 512 * 4096)  # bytes of A and B
STEP = {"A": 2 * 128 * 64, "B": 2 * 256 * 64}  # of a tile


def test_a_cache_keeps_what_was_used_last():
    cache = tile_order.Cache(2)
    for key in "abacab":  # b is dropped for c, then c for b
        cache.touch(key, 1)
    assert cache.missed == 4 and list(cache.kept) == ["a", "b"]


def test_l2_that_holds_all_is_asked_once():
    for group in (1, 4):
        assert tile_order.dram_bytes(SHAPE, group, BLOCKS, ONCE) == ONCE


def test_l2_that_holds_nothing():
    """Each round then loads its rows of A and columns of B again: by hand, 1 + 16 and 4 + 4."""
    for group, rows, columns in ((1, 1, 16), (4, 4, 4)):
        found = tile_order.dram_bytes(SHAPE, group, BLOCKS, 0)
        rounds, steps = 16, 8
        assert found == rounds * steps * (rows * STEP["A"] + columns * STEP["B"])


def test_groups_ask_dram_for_less():
    """8192 x 8192 x 8192 on an H200: one matrix is larger than L2."""
    row_by_row, grouped = (
        tile_order.dram_bytes((8192, 8192, 8192), group, 132, 60 << 20) for group in (1, 16)
    )
    assert grouped < 0.6 * row_by_row
