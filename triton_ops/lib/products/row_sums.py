"""Sums of A's rows beside a product C = A B: products of A's tiles with ones. Twin of
csrc/include/diglot/products/row_sums.cuh.

All programs of a row of tiles load the same rows of A, so those of the first column store the sums.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.types import convert

# Columns of ones, the fewest that a product of tiles may have. All sums of a row are equal.
ONES = tl.constexpr(16)


@triton.jit
def sum_rows(tile, sums):
    """Adds the sums of a tile's rows."""
    ones = tl.full((tile.shape[1], ONES), 1.0, tl.float32)
    return dot(tile, convert(ones, tile.dtype), sums)


@triton.jit
def leave_row_sums(sums, scratch, tile_row, tile_column, part, parts):
    """Leaves a part's sums in scratch. It comes before `leave_part`, which counts the arrival."""
    tl.store(_place(scratch, tile_row * parts + part, sums), one_of(sums), mask=tile_column == 0)


@triton.jit
def add_row_sums(sums, scratch, tile_row, tile_column, parts):
    """The sums of all parts, in the order of K, for the last program of a tile of the first column;
    zeros for others.
    """
    total = tl.zeros_like(one_of(sums))
    for part in range(parts):
        place = _place(scratch, tile_row * parts + part, sums)
        total += tl.load(place, mask=tile_column == 0, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def store_row_sums(out, total, row, tile_column, m):
    """Rounds and stores the sums of rows from `row` on, by a program of the first column."""
    rows = row + tl.arange(0, total.shape[0])
    mask = (rows < m) & (tile_column == 0)
    tl.store(out + rows, convert(total, out.dtype.element_ty), mask)


@triton.jit
def one_of(sums):
    """Each row's sum, from one of its equal columns."""
    is_first = (tl.arange(0, sums.shape[1]) == 0)[None, :]
    return tl.sum(tl.where(is_first, sums, 0.0), axis=1)


@triton.jit
def _place(scratch, number, sums):
    ROWS: tl.constexpr = sums.shape[0]
    return scratch + tl.cast(number, tl.int64) * ROWS + tl.arange(0, ROWS)
