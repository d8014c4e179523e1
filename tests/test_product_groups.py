"""The tiles of groups, in both languages: each once, whatever the offsets."""

from __future__ import annotations

import ctypes
import itertools
import subprocess

import pytest
import torch
import triton
import triton.language as tl
from backends import DEVICE
from hypothesis import assume, given
from hypothesis import strategies as st
from planted.library import ROOT

from diglot.triton_ops.lib.products.groups import (
    find_group,
    group_tile,
    group_within,
    groups_of,
    no_group,
    tiles_before,
)

MOST = 4096  # tiles


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("groups") / "groups.so"
    source = ROOT / "tests/planted/groups.cpp"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{ROOT / 'csrc/include'}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(path)], check=True)
    found = ctypes.CDLL(str(path))
    found.tiles_of_groups.restype = ctypes.c_int64
    return found


def in_cuda(library, ends, size, tile, rows, columns, height, step=1, align=1):
    """Row, column, group, begin and end of each tile."""
    offsets, out = torch.tensor(ends, dtype=torch.int32), torch.empty(MOST, 5, dtype=torch.int64)
    count = library.tiles_of_groups(
        ctypes.c_void_p(offsets.data_ptr()), len(ends), ctypes.c_int64(size), tile, rows, columns,
        height, align, step, ctypes.c_void_p(out.data_ptr()),
    )  # fmt: skip
    assert count >= 0
    return out[:count].tolist()


@triton.jit
def write_tile(out, count, index, group, rows, columns, height, TILE: tl.constexpr):
    row, column = group_tile(index, group, rows, columns, height, TILE)
    place = out + index * 5
    tl.store(place, row)
    tl.store(place + 1, column)
    tl.store(place + 2, group[0])
    tl.store(place + 3, group[1])
    tl.store(place + 4, group[2])
    tl.atomic_add(count, 1)


@triton.jit
def write_tiles(offsets, out, count, groups, size, rows, columns, height, step, TILE: tl.constexpr):
    size = size.to(tl.int64)
    group = no_group(size)
    index = tl.program_id(0).to(tl.int64)
    group = find_group(offsets, index, group, groups, size, rows, columns, TILE)
    while index < group[4]:
        write_tile(out, count, index, group, rows, columns, height, TILE)
        index += step
        group = find_group(offsets, index, group, groups, size, rows, columns, TILE)


@triton.jit
def write_tiles_of_table(
    offsets, out, count, groups, size, rows, columns, height, step, TILE: tl.constexpr
):
    """The same by a table. Programs know how many tiles are theirs."""
    program = tl.program_id(0)
    table = groups_of(offsets, groups, size.to(tl.int32), rows, columns, TILE, 16)
    own = tiles_before(table[4], program, step) - tiles_before(table[3], program, step)
    index = program
    for _ in range(tl.sum(own, 0)):
        write_tile(out, count, index, group_within(table, index), rows, columns, height, TILE)
        index += step


def in_triton(ends, size, tile, rows, columns, height, step=1, kernel=write_tiles):
    offsets = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    out = torch.empty(MOST, 5, dtype=torch.int64, device=DEVICE)
    count = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    sizes = torch.tensor(size).to(DEVICE)
    kernel[(step,)](offsets, out, count, len(ends), int(sizes), rows, columns, height, step, tile)
    return out[: int(count)].tolist()


def ranges(ends, size, has_rest):
    """Each group's range of the divided dimension; behind the last offset is one more group."""
    bounds = [0]
    for end in [*ends, size] if has_rest else ends:
        bounds.append(min(max(end, bounds[-1]), size))
    return list(itertools.pairwise(bounds))


def tiles(ends, size, tile, rows, columns, align=1):
    """All tiles, in any order."""
    return {
        (row, column, group, begin, end)
        for group, (begin, end) in enumerate(ranges(ends, size, has_rest=tile > 0))
        for row in range(-(-(end - begin // align * align) // tile) if tile else rows)
        if tile == 0 or begin < end
        for column in range(columns)
    }


# Sorted ones, empty groups, and offsets that are not sorted or lie outside.
OFFSETS = st.lists(st.integers(-3, 60), max_size=6)


@given(OFFSETS, st.integers(0, 50), st.sampled_from([0, 1, 4, 16]), st.integers(1, 3),
       st.integers(1, 3), st.integers(1, 4), st.integers(1, 5),
       st.sampled_from([1, 2, 8]))  # fmt: skip
def test_every_tile_once(library, ends, size, tile, rows, columns, height, step, align):
    assume(tile == 0 or tile >= align)  # as tiles of tensor cores are
    found = in_cuda(library, ends, size, tile, rows, columns, height, step, align)
    expected = tiles(ends, size, tile, rows, columns, align)
    assert len(found) == len(expected) and set(map(tuple, found)) == expected
    assert [f[2] for f in found] == sorted(f[2] for f in found)  # group by group


@pytest.mark.parametrize("tile", [0, 4])
@pytest.mark.parametrize("ends", [[5, 5, 13], [0, 0, 0], [], [9, 2, 40], [-1, 7, 8]], ids=str)
def test_both_languages_have_one_order(library, ends, tile):
    for step in (1, 3):
        sizes = ends, 21, tile, 3, 2, 2, step
        assert in_cuda(library, *sizes) == in_triton(*sizes)
        assert in_cuda(library, *sizes) == in_triton(*sizes, kernel=write_tiles_of_table)


def test_no_range_leaves_the_dimension(library):
    for ends in ([50, -50, 50], [2**31 - 1, -(2**31)], [20, 21, 22]):
        for *_, begin, end in in_cuda(library, ends, 21, 4, 0, 1, 1):
            assert 0 <= begin <= end <= 21
