"""Products of 16-bit matrices by tensor descriptors. Twin of
csrc/include/diglot/products/tensor_cores.cuh.

A program computes tiles of C, one after the other. The compiler makes one loop of all their steps,
so that the next tile's operands are on their way while a tile is stored.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.products.epilogue import finish, half_of, store_tile
from diglot.triton_ops.lib.products.schedule import tile_of
from diglot.triton_ops.lib.types import convert


@triton.jit
def multiply_by_descriptors(
    a, b, bias, c, sizes, row_stride, tiles,
    ALONG_M: tl.constexpr, ALONG_N: tl.constexpr, HAS_DESCRIPTOR: tl.constexpr,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """C = A B + bias.

    Args:
        a, b: descriptors of matrices whose rows are contiguous: A, or its transpose where ALONG_M;
            B, or its transpose where not ALONG_N.
        bias: a pointer to contiguous elements, or None.
        c: a descriptor; without HAS_DESCRIPTOR a pointer to rows that begin every `row_stride`.
        sizes: M, N, K.
        tiles: rows and columns of tiles, and how many there are in all.
        BLOCK: rows, columns and depth of a tile. C is stored in two halves of the columns, which
            leaves shared memory for another stage.
    """
    m, n, k = tl.cast(sizes[0], tl.int32), tl.cast(sizes[1], tl.int32), tl.cast(sizes[2], tl.int32)
    rows, columns = tl.cast(tiles[0], tl.int32), tl.cast(tiles[1], tl.int32)
    BM: tl.constexpr = BLOCK[0]
    BN: tl.constexpr = BLOCK[1]
    BK: tl.constexpr = BLOCK[2]
    for index in tl.range(
        tl.program_id(0), tl.cast(tiles[2], tl.int32), tl.num_programs(0), flatten=True
    ):
        tile_row, tile_column, _ = tile_of(index, rows, columns, GROUP)
        row, column = tile_row * BM, tile_column * BN
        sums = tl.zeros((BM, BN), tl.float32)
        for start in range(0, k, BK):
            tile_a = a.load([start, row]).T if ALONG_M else a.load([row, start])
            tile_b = b.load([start, column]) if ALONG_N else b.load([column, start]).T
            sums = dot(tile_a, tile_b, sums)
        for half in tl.static_range(2):
            first = column + half * (BN // 2)
            part = finish(half_of(sums, half), first, n, bias, 1)
            if HAS_DESCRIPTOR:
                c.store([row, first], convert(part, c.dtype))
            else:
                store_tile(c, part, row, first, m, n, row_stride, 1)
