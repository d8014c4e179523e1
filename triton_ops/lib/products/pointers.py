"""Products of matrices of any type, size and strides, by addresses of all elements. Twin of
csrc/include/diglot/products/cuda_cores.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.products.epilogue import finish
from diglot.triton_ops.lib.products.schedule import tile_of


@triton.jit
def multiply_by_pointers(
    pointers, around, outputs, sizes, strides, tiles, batch_sizes, batch_starts, batch_strides,
    numbers, PRECISION: tl.constexpr, RANK: tl.constexpr, ACTIVATION: tl.constexpr,
    IS_SLOPE: tl.constexpr, GROUP: tl.constexpr, VECTORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of C = A B, and what follows it, for each program.

    Args:
        pointers: to A and B.
        around, outputs, numbers: as of `finish`, and so are ACTIVATION and IS_SLOPE.
        sizes: M, N, K.
        strides: of a row and of a column of A, B and C.
        tiles: rows and columns of tiles, and how many there are in all.
        batch_sizes, batch_starts, batch_strides: of the batch's RANK dimensions; starts and strides
            are those of C, A, B and the input.
        VECTORS: elements of an aligned 16-byte access down A, along A, down B and along B. 1
            means single elements. An access lies wholly inside the matrix, or outside.
        BLOCK: rows, columns and depth of a tile.
    """
    a, b = pointers
    bias, bias_stride, input, input_row, input_column = around
    before, c = outputs
    index = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    if index < tiles[2]:
        tile_row, tile_column, batch = tile_of(index, tiles[0], tiles[1], GROUP)
        if RANK > 0:
            in_c = strided_offset(batch, batch_sizes, batch_starts[0], batch_strides[0], RANK, True)
            a += strided_offset(batch, batch_sizes, batch_starts[1], batch_strides[1], RANK, True)
            b += strided_offset(batch, batch_sizes, batch_starts[2], batch_strides[2], RANK, True)
        else:
            in_c = batch_starts[0]
            a += batch_starts[1]
            b += batch_starts[2]
        c += in_c
        if before is not None:
            before += in_c
        if input is not None:
            if RANK > 0:
                input += strided_offset(
                    batch, batch_sizes, batch_starts[3], batch_strides[3], RANK, True
                )
            else:
                input += batch_starts[3]
        multiply_tile(
            (a, b), (bias, bias_stride, input, input_row, input_column), (before, c), sizes,
            strides, numbers, tile_row, tile_column, PRECISION, ACTIVATION, IS_SLOPE, VECTORS,
            BLOCK,
        )  # fmt: skip


@triton.jit
def multiply_tile(
    pointers, around, outputs, sizes, strides, numbers, tile_row, tile_column,
    PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, IS_SLOPE: tl.constexpr,
    VECTORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of C, and what follows it. Arguments are those of `multiply_by_pointers`, of one
    product.
    """
    a, b = pointers
    c = outputs[1]
    m, n, k = sizes
    a_row, a_column = strides[0]
    b_row, b_column = strides[1]
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
    finish(
        sums, (None, None, (0, 0)), tile_row * BM, tile_column * BN, (m, n), strides[2], around,
        numbers, outputs, ACTIVATION, IS_SLOPE, False, False, 2,
    )  # fmt: skip


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
