"""Products of groups of 16-bit matrices by tensor descriptors. Twin of
csrc/include/diglot/products/grouped_tensor_cores.cuh.

A program computes several tiles, in one loop of all their steps: so the next tile's operands are on
their way while a tile is stored. The compiler makes such a loop itself where all tiles have equally
many steps (descriptors.py), but groups of K differ.

Groups of rows: a tile may load rows of the next group, but `store_ragged` does not store them.
Groups of K: `load_ragged` gives zeros behind a group's end.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.products.epilogue import half_of, store
from diglot.triton_ops.lib.products.groups import group_tile, group_within, groups_of, tiles_before
from diglot.triton_ops.lib.products.ragged import load_ragged, store_ragged
from diglot.triton_ops.lib.types import convert


@triton.jit
def multiply_groups_by_descriptors(
    a, b, offsets, c, sizes, groups, tiles, c_strides, HEIGHT: tl.constexpr,
    DIVIDES_K: tl.constexpr, ALONG_N: tl.constexpr, IS_EXCHANGED: tl.constexpr,
    HAS_DESCRIPTOR: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """C = A B for each group.

    Args:
        a, b: descriptors. Groups of rows: of A; and of the matrices of B, or of their transposes
            where not ALONG_N. Groups of K: ragged ones of A's transpose, and of B.
        offsets: a pointer.
        c: a descriptor, ragged for groups of rows. Without HAS_DESCRIPTOR a pointer.
        sizes: M, N, K of all groups.
        groups: how many offsets there are.
        tiles: rows of tiles of each group where groups divide K, and columns.
        c_strides: from a group's matrix of C, and from a row, to the next, of a pointer.
        HEIGHT: GROUP of `multiply_by_descriptors`.
        DIVIDES_K: whether groups divide K, not the rows of A and C.
        IS_EXCHANGED: whether products are those of the transposes.
        COUNT: a power of two that is not less than the number of groups, with that of other rows.
        BLOCK: rows, columns and depth of a tile. C is stored in two halves of the columns.
    """
    m, n, k = tl.cast(sizes[0], tl.int32), tl.cast(sizes[1], tl.int32), tl.cast(sizes[2], tl.int32)
    groups = tl.cast(groups, tl.int32)
    rows, columns = tl.cast(tiles[0], tl.int32), tl.cast(tiles[1], tl.int32)
    BM: tl.constexpr = BLOCK[0]
    BN: tl.constexpr = BLOCK[1]
    BK: tl.constexpr = BLOCK[2]
    TILE: tl.constexpr = 0 if DIVIDES_K else BM
    program, programs = tl.program_id(0), tl.num_programs(0)
    table = groups_of(offsets, groups, k if DIVIDES_K else m, rows, columns, TILE, COUNT)
    numbers, begins, ends, firsts, lasts = table
    # The rows past the last group are zeros: a step outside of A and B. An empty group has one too.
    depths = ends - begins if DIVIDES_K else tl.where(numbers < groups, k, 0)
    steps = tl.maximum(tl.cdiv(depths, BK), 1)
    own = tiles_before(lasts, program, programs) - tiles_before(firsts, program, programs)
    index, step, final = program - programs, -1, -1
    number, begin, end, row, column = 0, 0, 0, 0, 0
    sums = tl.zeros((BN, BM) if IS_EXCHANGED else (BM, BN), tl.float32)
    for _ in tl.range(tl.sum(own.to(tl.int64) * steps, 0)):
        step = tl.where(step == final, 0, step + 1)
        if step == 0:
            index += programs
            group = group_within(table, index)
            number, begin, end = group[0], group[1], group[2]
            final = tl.sum(tl.where(numbers == number, steps, 0), 0) - 1
            tile_row, tile_column = group_tile(index, group, rows, columns, HEIGHT, TILE)
            row, column = tile_row * BM, tile_column * BN
        start = step * BK
        if DIVIDES_K:
            tile_a = load_ragged(a, begin, end, start, row).T
            tile_b = load_ragged(b, begin, end, start, column)
        else:
            tile_a = a.load([tl.where(number < groups, begin + row, m), start])
            if ALONG_N:
                tile_b = b.load([number, start, column]).reshape(BK, BN)
            else:
                tile_b = b.load([number, column, start]).reshape(BN, BK).T
        if IS_EXCHANGED:
            sums = dot(tile_b.T, tile_a.T, sums)
        else:
            sums = dot(tile_a, tile_b, sums)
        if step == final:
            tile = sums.T if IS_EXCHANGED else sums
            for half in tl.static_range(2):
                part, left = half_of(tile, half), column + half * (BN // 2)
                if not HAS_DESCRIPTOR:
                    first, limit = (row, m) if DIVIDES_K else (begin + row, end)
                    place = c + tl.cast(number, tl.int64) * c_strides[0]
                    store(place, part, first, left, (limit, n), (c_strides[1], 1), False)
                elif DIVIDES_K:
                    part = convert(part, c.dtype).reshape(1, BM, BN // 2)
                    c.store([number, row, left], part)
                else:
                    store_ragged(c, begin, end, row, left, convert(part, c.dtype))
            sums = tl.zeros_like(sums)
