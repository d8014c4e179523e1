"""Products of matrices of any type, size and strides, by addresses of all elements. Twin of
csrc/include/diglot/products/cuda_cores.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.products.epilogue import finish, half_of, store_tile
from diglot.triton_ops.lib.products.schedule import tile_of


@triton.jit
def multiply_by_pointers(
    pointers, sizes, strides, bias_stride, tiles, batch_sizes, batch_starts, batch_strides,
    PRECISION: tl.constexpr, RANK: tl.constexpr, GROUP: tl.constexpr, VECTORS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of C = A B + bias, for each program.

    Args:
        pointers: to A, B, the bias and C. The bias may be None.
        sizes: M, N, K.
        strides: of a row and of a column of A, B and C.
        bias_stride: from a column's bias to the next.
        tiles: rows and columns of tiles, and how many there are in all.
        batch_sizes, batch_starts, batch_strides: of the batch's RANK dimensions; starts and strides
            are those of C, A and B.
        VECTORS: elements of an aligned 16-byte access down A, along A, down B and along B. 1
            means single elements. An access lies wholly inside the matrix, or outside.
        BLOCK: rows, columns and depth of a tile.
    """
    a, b, bias, c = pointers
    index = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    if index < tiles[2]:
        tile_row, tile_column, batch = tile_of(index, tiles[0], tiles[1], GROUP)
        if RANK > 0:
            c += strided_offset(batch, batch_sizes, batch_starts[0], batch_strides[0], RANK, True)
            a += strided_offset(batch, batch_sizes, batch_starts[1], batch_strides[1], RANK, True)
            b += strided_offset(batch, batch_sizes, batch_starts[2], batch_strides[2], RANK, True)
        else:
            c += batch_starts[0]
            a += batch_starts[1]
            b += batch_starts[2]
        multiply_tile(
            (a, b, bias, c), sizes, strides, bias_stride, tile_row, tile_column, PRECISION, VECTORS,
            BLOCK,
        )  # fmt: skip


@triton.jit
def multiply_tile(
    pointers, sizes, strides, bias_stride, tile_row, tile_column, PRECISION: tl.constexpr,
    VECTORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of C = A B + bias. Arguments are those of `multiply_by_pointers`, of one product."""
    a, b, bias, c = pointers
    m, n, k = sizes
    a_row, a_column = strides[0]
    b_row, b_column = strides[1]
    c_row, c_column = strides[2]
    BM: tl.constexpr = BLOCK[0]
    BN: tl.constexpr = BLOCK[1]
    BK: tl.constexpr = BLOCK[2]
    DOWN_A: tl.constexpr = VECTORS[0]
    ALONG_A: tl.constexpr = VECTORS[1]
    DOWN_B: tl.constexpr = VECTORS[2]
    ALONG_B: tl.constexpr = VECTORS[3]
    ACCUMULATOR: tl.constexpr = tl.float64 if c.dtype.element_ty == tl.float64 else tl.float32
    row = tile_row * BM + tl.arange(0, BM)
    column = tile_column * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK).to(tl.int64)
    sums = tl.zeros((BM, BN), ACCUMULATOR)
    for start in range(0, k, BK):
        at = start + depth
        tile_a = load_tile(a, row, at, row < m, at < k, a_row, a_column, DOWN_A, ALONG_A)
        tile_b = load_tile(b, at, column, at < k, column < n, b_row, b_column, DOWN_B, ALONG_B)
        sums = dot(tile_a, tile_b, sums, PRECISION)
    for half in tl.static_range(2):
        first = tile_column * BN + half * (BN // 2)
        part = finish(half_of(sums, half), first, n, bias, bias_stride)
        store_tile(c, part, tile_row * BM, first, m, n, c_row, c_column)


@triton.jit
def load_tile(
    pointer, row, column, is_row, is_column, row_stride, column_stride,
    DOWN: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    """The elements of some rows and columns, zero outside."""
    address = pointer + (row[:, None] * row_stride + column[None, :] * column_stride)
    mask = is_row[:, None] & is_column[None, :]
    if DOWN > 1:
        mask = tl.max_constancy(mask, (DOWN, 1))
        address = tl.max_contiguous(tl.multiple_of(address, (16, 1)), (DOWN, 1))
    if ALONG > 1:
        mask = tl.max_constancy(mask, (1, ALONG))
        address = tl.max_contiguous(tl.multiple_of(address, (1, 16)), (1, ALONG))
    return tl.load(address, mask=mask, other=0.0)
