"""The order in which both languages compute the tiles of a product, and parts of their K."""

from __future__ import annotations

import ctypes
import subprocess

import pytest
import torch
import triton
import triton.language as tl
from backends import DEVICE
from hypothesis import given
from hypothesis import strategies as st
from planted.library import ROOT

from diglot.bench import tile_order
from diglot.triton_ops.launch.product_splits import (
    COUNTERS,
    FIRST,
    FROM_CACHE,
    FROM_MEMORY,
    HIDDEN,
    MOST_BYTES,
    ROUND,
    SUMS,
    TILE,
    TileWork,
)
from diglot.triton_ops.lib.products.schedule import part_of, tile_of


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("schedule") / "schedule.so"
    source = ROOT / "tests/planted/schedule.cpp"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{ROOT / 'csrc/include'}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(path)], check=True)
    made = ctypes.CDLL(str(path))
    made.quotient.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
    made.quotient.restype = ctypes.c_uint32
    made.helped_parts.restype = ctypes.c_int64
    return made


def tiles_in_cuda(library, rows, columns, batches, group):
    out = torch.empty(rows * columns * batches, 3, dtype=torch.int64)
    count, address = ctypes.c_int64(batches), ctypes.c_void_p(out.data_ptr())
    library.tiles(rows, columns, count, group, address)
    return out.tolist()


MOST = 2**31 - 1


@given(of=st.integers(0, MOST), by=st.integers(1, MOST))
def test_the_host_divides_by_a_product(library, of, by):
    near = min(of // by * by + by - 1, MOST)  # the largest number of the same quotient
    for number in {of, near, max(near - by, 0), MOST}:
        assert library.quotient(number, by) == number // by
    for power in (2**30 - 1, 2**30, 2**30 + 1, MOST):
        assert library.quotient(of, power) == of // power


@triton.jit
def write_tiles(out, rows, columns, group, count, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    row, column, batch = tile_of(index, rows, columns, group)
    place = out + index * 3
    tl.store(place, row, index < count)
    tl.store(place + 1, column, index < count)
    tl.store(place + 2, batch, index < count)


def tiles_in_triton(rows, columns, batches, group):
    count = rows * columns * batches
    out = torch.empty(count, 3, dtype=torch.int64, device=DEVICE)
    write_tiles[(1,)](out, rows, columns, group, count, triton.next_power_of_2(count))
    return out.tolist()


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 3), st.integers(1, 24))
def test_every_tile_once(library, rows, columns, batches, group):
    tiles = tiles_in_cuda(library, rows, columns, batches, group)
    expected = {(r, c, b) for r in range(rows) for c in range(columns) for b in range(batches)}
    assert len(tiles) == len(expected) and set(map(tuple, tiles)) == expected


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (9, 9, 1, 3), (7, 5, 2, 4), (5, 9, 3, 8), (16, 4, 1, 1)]
)
def test_both_languages_have_one_order(library, sizes):
    rows, columns, batches, group = sizes
    tiles = tiles_in_cuda(library, *sizes)
    assert tiles == tiles_in_triton(*sizes)
    modelled = tile_order.order(rows, columns, group)
    assert tiles == [[*place, batch] for batch in range(batches) for place in modelled]


def test_grouped_tiles_share_loads(library):
    """The first nine of 9 x 9 tiles: 54 loads in groups of three rows, 90 row by row."""
    for order in (tiles_in_cuda(library, 9, 9, 1, 3), tiles_in_triton(9, 9, 1, 3)):
        assert tile_order.loads(order[:9], 9) == 54
    row_by_row = tile_order.order(9, 9, 1)
    assert row_by_row[:9] == [(0, column) for column in range(9)]
    assert tile_order.loads(row_by_row[:9], 9) == 90


def parts_in_cuda(library, rows, columns, steps, parts):
    out = torch.empty(rows * columns * parts, 4, dtype=torch.int64)
    library.parts_of_tiles(rows, columns, steps, parts, ctypes.c_void_p(out.data_ptr()))
    return out.tolist()


@triton.jit
def write_parts(out, steps, parts, count, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    number, part, first, end = part_of(index, steps, parts)
    place = out + index * 4
    tl.store(place, number, index < count)
    tl.store(place + 1, part, index < count)
    tl.store(place + 2, first, index < count)
    tl.store(place + 3, end, index < count)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 70), st.integers(1, 20))
def test_every_step_of_every_tile_once(library, rows, columns, steps, parts):
    parts = min(parts, steps)
    found, tiles = parts_in_cuda(library, rows, columns, steps, parts), range(rows * columns)
    assert [row[:2] for row in found] == [[tile, part] for tile in tiles for part in range(parts)]
    taken = [(tile, step) for tile, _, first, end in found for step in range(first, end)]
    assert taken == [(tile, step) for tile in tiles for step in range(steps)]
    lengths = {end - first for *_, first, end in found}
    assert min(lengths) > 0 and max(lengths) - min(lengths) <= 1


@given(st.integers(1, 400), st.integers(1, 300), st.integers(2, 140), st.integers(0, 12))
def test_helpers_take_the_ends_of_the_last_tiles(library, tiles, steps, blocks, cost):
    """Each step once. Of a tile, parts follow one another, and have places of their own."""
    most = tiles + 3 * blocks
    out = torch.empty(most, 7, dtype=torch.int64)
    address = ctypes.c_void_p(out.data_ptr())
    count = library.helped_parts(tiles, steps, blocks, cost, ctypes.c_int64(most), address)
    left = tiles % blocks
    working = min(blocks, 9 * left)
    if left == 0 or -(-left * (steps + cost) // working) >= steps:
        assert count == 0
        return
    found = out[:count].tolist()
    of_tiles = {}
    for block, tile, part, first, end, beside, slot in found:
        of_tiles.setdefault(tile, []).append((part, first, end, beside, slot, block))
    assert of_tiles.keys() == set(range(tiles))
    for parts in map(sorted, of_tiles.values()):
        assert [part for part, *_ in parts] == list(range(len(parts)))
        assert {beside for *_, beside, _, _ in parts} == {len(parts)}
        ends = [0, *(end for _, _, end, *_ in parts)]
        assert [first for _, first, *_ in parts] == ends[:-1] and ends[-1] == steps
        assert all(first < end for _, first, end, *_ in parts)
    slots = [slot for *_, slot in found if slot >= 0]
    assert len(set(slots)) == len(slots) and max(slots) < left + working
    # Blocks with a tile in the last round have as many steps of it, and helpers no more.
    taken = dict.fromkeys(range(blocks), 0)
    for block, _, _, first, end, beside, _ in found:
        taken[block] += (end - first) * (beside > 1)
    kept = -(-left * (steps + cost) // working)
    assert {taken[block] for block in range(left)} == {kept}
    assert max(taken.values()) <= kept


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 7, 3), (1, 4, 128, 5), (3, 1, 16, 16)])
def test_both_languages_have_the_same_parts(library, sizes):
    rows, columns, steps, parts = sizes
    count = rows * columns * parts
    out = torch.empty(count, 4, dtype=torch.int64, device=DEVICE)
    write_parts[(1,)](out, steps, parts, count, triton.next_power_of_2(count))
    assert out.tolist() == parts_in_cuda(library, *sizes)


def chosen_in_cuda(library, work, asked, multiprocessors):
    arguments = (ctypes.c_int64(work.tiles), work.steps, ctypes.c_double(work.step),
                 ctypes.c_int64(work.bytes), work.counters, ctypes.c_int64(asked),
                 ctypes.c_int64(multiprocessors))  # fmt: skip
    return library.chosen_parts(*arguments)


def work_of(tiles, steps, bytes=1 << 15, counters=1, **others):
    return TileWork(
        **{
            "tiles": tiles,
            "steps": steps,
            "step": 250,
            "ahead": 200,
            "loaded": 1 << 14,
            "memory": 1 << 22,
        }
        | {"bytes": bytes, "counters": counters}
        | others
    )


@given(st.integers(1, 2000), st.integers(1, 500), st.sampled_from([1, 2]), st.integers(1, 20),
       st.sampled_from([3, 8, 132]))  # fmt: skip
def test_both_languages_have_room_for_the_same_parts(
    library, tiles, steps, counters, asked, blocks
):
    work = work_of(tiles, steps, counters=counters)
    parts = work.parts(asked, blocks)
    assert parts == chosen_in_cuda(library, work, asked, blocks)
    assert 1 <= parts <= steps
    if parts > 1:
        assert tiles * counters <= COUNTERS and tiles * parts * work.bytes <= MOST_BYTES


@given(st.integers(1, 2000), st.integers(1, 500), st.sampled_from([3, 8, 132]))
def test_no_other_parts_take_less_time(tiles, steps, blocks):
    work = work_of(tiles, steps)
    parts = work.parts(0, blocks)
    for other in filter(work.can_split, range(1, 17)):
        assert work.time(parts, blocks) <= work.time(other, blocks)


def test_k_is_split_where_tiles_leave_multiprocessors_without_work():
    """16 tiles of many steps on 132 multiprocessors are split; enough tiles are not."""
    few, many = (work_of(tiles, 256, 64 * 16 * 4) for tiles in (16, 1024))
    assert 1 < few.parts(0, 132) <= 8 and many.parts(0, 132) == 1
    assert few._replace(steps=8).parts(0, 132) == 1  # the sums' way would take longer
    assert many.parts(7, 132) == 7 and few.parts(400, 132) == 256


def test_time_of_a_product():
    """The longer of loading and computing hides most of the shorter; tiles come in rounds."""
    work = work_of(132, 64, memory=0)
    one = work.time(1, 132) - FIRST
    assert one == pytest.approx((1 - HIDDEN) * FIRST + 64 * 250 + TILE - FIRST)
    two = work._replace(tiles=133).time(1, 132)
    assert two - work.time(1, 132) == pytest.approx(64 * 250 + TILE)
    twice = work._replace(tiles=264, programs=2)  # two programs on an SM take turns
    assert twice.time(1, 132) - work.time(1, 132) == pytest.approx(64 * 250)
    assert twice._replace(tiles=132).time(1, 132) == work.time(1, 132)
    parts = work._replace(tiles=66), twice._replace(tiles=132)  # whose ends take turns too
    once, both = (each.time(2, 132) - each.time(1, 132) for each in parts)
    assert both - once == pytest.approx(ROUND + work.bytes / SUMS + 32 * 250)
    slow = work._replace(memory=1 << 34)
    assert slow.time(1, 132) > (1 << 34) / FROM_MEMORY
    heavy = work._replace(loaded=1 << 20)
    assert heavy.time(1, 132) > 64 * (1 << 20) / FROM_CACHE > heavy._replace(tiles=1).time(1, 132)
