"""The tiles of a product of groups. Offsets in the GPU's memory say where groups end, so programs
find their tiles themselves. Twin of csrc/include/diglot/products/groups.cuh.

Programs that read all offsets at once hold a table of all groups. Others walk from group to group.

Groups divide a dimension: C's rows, or K. Group g ends at offsets[g]. An offset below an earlier
one makes an empty group, and one past the end is the end, so that no offset leads out of bounds.
Rows past the last offset are one more group, of zeros.

Tiles go group by group. Within a group they are in the order of `tile_of`.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.products.schedule import tile_of


@triton.jit
def no_group(size):
    """What `find_group` begins with: number, begin, end, first and last of the group before all.

    Args:
        size: of the divided dimension, an integer of 64 bits. The numbers have its type.
    """
    zero = size - size
    return zero - 1, zero, zero, zero, zero


@triton.jit
def find_group(offsets, index, group, groups, size, rows, columns, TILE: tl.constexpr):
    """Moves on to the group of tile `index`. Past all tiles, `index` is not below its last.

    Programs ask for ascending tiles, so they read each offset once.

    Args:
        offsets: a pointer to the ends of the groups.
        index: the number of the tile.
        group: its number, its range [begin, end) of the divided dimension, and the numbers
            [first, last) of its tiles.
        groups: how many offsets there are.
        size: of the divided dimension.
        rows: of tiles, where groups divide K: then each group has all of them.
        columns: of tiles.
        TILE: rows of a tile, where groups divide rows; 0 where they divide K.
    """
    number, begin, end, first, last = group
    final = groups - 1 if TILE == 0 else groups
    while (index >= last) & (number < final):
        number += 1
        begin = end
        offset = tl.load(offsets + number, number < groups, 0).to(tl.int64)
        offset = tl.where(number < groups, offset, size)
        end = tl.minimum(tl.maximum(offset, begin), size)
        first = last
        last += group_rows(begin, end, rows, TILE) * columns
    return number, begin, end, first, last


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def groups_of(
    offsets, groups, size, rows, columns, TILE: tl.constexpr, COUNT: tl.constexpr
):  # fmt: skip
    """The table of all groups: vectors of the numbers that `find_group` has of one.

    Args:
        COUNT: elements of a vector. Those behind the groups have no tiles.
    """
    numbers = tl.arange(0, COUNT)
    before = tl.load(offsets + numbers - 1, (numbers > 0) & (numbers <= groups), 0)
    behind = tl.load(offsets + numbers, numbers < groups, size)
    begins = tl.associative_scan(tl.minimum(tl.maximum(before, 0), size), 0, larger)
    ends = tl.associative_scan(tl.minimum(tl.maximum(behind, 0), size), 0, larger)
    count = groups if TILE == 0 else groups + 1
    tiles = tl.where(numbers < count, group_rows(begins, ends, rows, TILE) * columns, 0)
    lasts = tl.cumsum(tiles, 0)
    return numbers, begins, ends, lasts - tiles, lasts


@triton.jit
def group_within(table, index):
    """The group of tile `index`, as `find_group` has it."""
    numbers, begins, ends, firsts, lasts = table
    number = tl.sum((lasts <= index).to(tl.int32), 0)
    is_it = numbers == number
    return (
        number,
        tl.sum(tl.where(is_it, begins, 0), 0),
        tl.sum(tl.where(is_it, ends, 0), 0),
        tl.sum(tl.where(is_it, firsts, 0), 0),
        tl.sum(tl.where(is_it, lasts, 0), 0),
    )


@triton.jit
def tiles_before(index, program, programs):
    """How many tiles before tile `index` are those of a program, which takes every one after
    `programs` others.
    """
    return (index + programs - 1 - program) // programs


@triton.jit
def group_tile(index, group, rows, columns, height, TILE: tl.constexpr):
    """Row and column of a tile of the group that `find_group` found."""
    _, begin, end, first, _ = group
    rows = tl.maximum(group_rows(begin, end, rows, TILE), 1)  # compilers look past the last tile
    row, column, _ = tile_of(index - first, rows, columns, height)
    return row, column


@triton.jit
def group_rows(begin, end, rows, TILE: tl.constexpr):
    """Rows of tiles of a group."""
    return rows if TILE == 0 else (end - begin + TILE - 1) // TILE
