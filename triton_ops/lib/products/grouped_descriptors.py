"""Products of groups of rows of 16-bit matrices by tensor descriptors. Twin of
csrc/include/diglot/products/grouped_tensor_cores.cuh, for groups of rows alone.

One descriptor serves all groups: a tile may load rows of the next group, but does not store them.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.products.epilogue import half_of, store
from diglot.triton_ops.lib.products.groups import find_group, group_tile, no_group


@triton.jit
def multiply_groups_by_descriptors(
    a, b, offsets, c, sizes, groups, columns, row_stride, HEIGHT: tl.constexpr,
    ALONG_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """C = A B for each group. A program computes several tiles.

    Args:
        a: a descriptor of A, whose rows are contiguous.
        b: a descriptor of the matrices of B, or of their transposes where not ALONG_N.
        offsets: a pointer.
        c: a pointer to rows that begin every `row_stride`.
        sizes: M, N, K.
        groups: how many offsets there are.
        columns: of tiles.
        HEIGHT, BLOCK: as in `multiply_groups_by_pointers`.
    """
    m, n, k = sizes
    BM: tl.constexpr = BLOCK[0]
    BN: tl.constexpr = BLOCK[1]
    BK: tl.constexpr = BLOCK[2]
    index = tl.program_id(0).to(tl.int64)
    number, begin, end, first, last = find_group(
        offsets, index, no_group(m), groups, m, 0, columns, BM
    )
    while index < last:
        tile_row, tile_column = group_tile(
            index, (number, begin, end, first, last), 0, columns, HEIGHT, BM
        )
        row, column = (begin + tile_row * BM).to(tl.int32), (tile_column * BN).to(tl.int32)
        # The rows past the last group are zeros.
        matrix = tl.minimum(number, groups - 1).to(tl.int32)
        depth = tl.where(number < groups, k, 0).to(tl.int32)
        sums = tl.zeros((BM, BN), tl.float32)
        for start in range(0, depth, BK):
            tile_a = a.load([row, start])
            if ALONG_N:
                tile_b = b.load([matrix, start, column]).reshape(BK, BN)
            else:
                tile_b = b.load([matrix, column, start]).reshape(BN, BK).T
            sums = dot(tile_a, tile_b, sums)
        for half in tl.static_range(2):
            left = column + half * (BN // 2)
            store(c, half_of(sums, half), row, left, (end, n), (row_stride, 1), False)
        index += tl.num_programs(0)
        number, begin, end, first, last = find_group(
            offsets, index, (number, begin, end, first, last), groups, m, 0, columns, BM
        )
