"""Products of groups of matrices of any type, size and strides, by addresses of all elements. Twin
of csrc/include/diglot/products/grouped_cuda_cores.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.products.groups import find_group, group_tile, no_group
from diglot.triton_ops.lib.products.pointers import multiply_tile


@triton.jit
def multiply_groups_by_pointers(
    pointers, sizes, strides, steps, groups, tiles,
    PRECISION: tl.constexpr, HEIGHT: tl.constexpr, VECTORS: tl.constexpr,
    DIVIDES_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of C = A B, for each program, if the groups have one for it.

    Args:
        pointers: to A, B, the offsets and C.
        sizes: M, N, K of all groups.
        strides: of a row and of a column of A, B and C.
        steps: from a group's matrix of B, and of C, to the next.
        groups: how many offsets there are.
        tiles: rows of tiles of each group where groups divide K, and columns.
        HEIGHT, VECTORS, BLOCK: GROUP, VECTORS and BLOCK of `multiply_by_pointers`.
        DIVIDES_K: whether groups divide K, not the rows of A and C.
    """
    a, b, offsets, c = pointers
    m, n, k = sizes
    rows, columns = tiles
    TILE: tl.constexpr = 0 if DIVIDES_K else BLOCK[0]
    divided = k if DIVIDES_K else m
    index = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    group = find_group(offsets, index, no_group(divided), groups, divided, rows, columns, TILE)
    number, begin, end, _, last = group
    if index < last:
        row, column = group_tile(index, group, rows, columns, HEIGHT, TILE)
        if DIVIDES_K:
            a += begin * strides[0][1]
            b += begin * strides[1][0]
            c += number * steps[1]
            k = end - begin
        else:
            # The rows past the last group are zeros.
            has_matrix = number < groups
            a += begin * strides[0][0]
            b += tl.where(has_matrix, number, 0) * steps[0]
            c += begin * strides[2][0]
            m = end - begin
            k = tl.where(has_matrix, k, 0)
        multiply_tile(
            (a, b), (None, 0, None, 0, 0), (None, c), (m, n, k), strides, (None, None, None, None),
            row, column, PRECISION, "none", False, VECTORS, BLOCK,
        )  # fmt: skip
