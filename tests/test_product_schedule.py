"""The order in which both languages compute the tiles of a product."""

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

from diglot.triton_ops.lib.products.schedule import tile_of


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("schedule") / "schedule.so"
    source = ROOT / "tests/planted/schedule.cpp"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{ROOT / 'csrc/include'}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


def tiles_in_cuda(library, rows, columns, batches, group):
    out = torch.empty(rows * columns * batches, 3, dtype=torch.int64)
    count, address = ctypes.c_int64(batches), ctypes.c_void_p(out.data_ptr())
    library.tiles(rows, columns, count, group, address)
    return out.tolist()


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


def loads(tiles, columns_of_a, rows_of_b):
    """Tiles of A and B that the tiles of C read, each once."""
    return len({t[0] for t in tiles}) * columns_of_a + len({t[1] for t in tiles}) * rows_of_b


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 3), st.integers(1, 24))
def test_every_tile_once(library, rows, columns, batches, group):
    tiles = tiles_in_cuda(library, rows, columns, batches, group)
    expected = {(r, c, b) for r in range(rows) for c in range(columns) for b in range(batches)}
    assert len(tiles) == len(expected) and set(map(tuple, tiles)) == expected


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (9, 9, 1, 3), (7, 5, 2, 4), (5, 9, 3, 8), (16, 4, 1, 1)]
)
def test_both_languages_have_one_order(library, sizes):
    assert tiles_in_cuda(library, *sizes) == tiles_in_triton(*sizes)


def test_grouped_tiles_share_loads(library):
    """The first nine of 9 x 9 tiles: 54 loads in groups of three rows, 90 row by row."""
    for order in (lambda group: tiles_in_cuda(library, 9, 9, 1, group),
                  lambda group: tiles_in_triton(9, 9, 1, group)):  # fmt: skip
        assert loads(order(3)[:9], 9, 9) == 54
    row_by_row = [(index // 9, index % 9) for index in range(9)]
    assert loads(row_by_row, 9, 9) == 90
