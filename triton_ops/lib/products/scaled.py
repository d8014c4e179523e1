"""Products of 8-bit floats with scales, by tensor descriptors and by addresses. Twin of
csrc/include/diglot/products/scaled.cuh and scaled_cuda_cores.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.float8 import float8_bits_to_float16
from diglot.triton_ops.lib.products.epilogue import add_bias, half_of, store
from diglot.triton_ops.lib.products.pointers import load_tile
from diglot.triton_ops.lib.products.scales import (
    SCALED_DEPTH,
    add_products,
    load_scales,
    scales_of_half,
)
from diglot.triton_ops.lib.products.schedule import tile_of
from diglot.triton_ops.lib.types import convert


@triton.jit
def multiply_scaled_by_descriptors(
    a, b, scales, bias, c, sizes, row_stride, strides, tiles,
    MODE: tl.constexpr, WIDTHS: tl.constexpr, HAS_DESCRIPTOR: tl.constexpr, GROUP: tl.constexpr,
    IS_HALVED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """C = (A · scales) (B · scales) + bias.

    Args:
        a, b: descriptors of A and of B's transpose: tensor cores take 8-bit floats along K alone.
        scales, strides, MODE, WIDTHS: of A and B, as `add_products` takes them.
        bias: a pointer to contiguous elements, or None.
        c: a descriptor; without HAS_DESCRIPTOR a pointer to rows that begin every `row_stride`.
        sizes: M, N, K.
        tiles: rows and columns of tiles, and how many there are in all.
        IS_HALVED: whether the two halves of a tile's columns are multiplied apart. Then tensor
            cores multiply one while the other is added.
        BLOCK: rows and columns of a tile. C is stored in two halves of the columns.
    """
    m, n, k = tl.cast(sizes[0], tl.int32), tl.cast(sizes[1], tl.int32), tl.cast(sizes[2], tl.int32)
    rows, columns = tl.cast(tiles[0], tl.int32), tl.cast(tiles[1], tl.int32)
    BM: tl.constexpr = BLOCK[0]
    BN: tl.constexpr = BLOCK[1]
    HALF: tl.constexpr = BN // 2
    PART: tl.constexpr = HALF if IS_HALVED else BN
    for index in tl.range(
        tl.program_id(0), tl.cast(tiles[2], tl.int32), tl.num_programs(0), flatten=True
    ):
        tile_row, tile_column, _ = tile_of(index, rows, columns, GROUP)
        row, column = tile_row * BM, tile_column * BN
        left, right = tl.zeros((BM, PART), tl.float32), tl.zeros((BM, PART), tl.float32)
        for start in range(0, k, SCALED_DEPTH):
            tile_a, tile_b = a.load([row, start]), b.load([column, start]).T
            block = start // SCALED_DEPTH
            left = add_products(
                left, tile_a, tile_b, scales, strides, (row, column), (m, n), block, MODE, WIDTHS
            )
            if IS_HALVED:
                tile_b = b.load([column + HALF, start]).T
                right = add_products(
                    right, tile_a, tile_b, scales, strides, (row, column + HALF), (m, n), block,
                    MODE, WIDTHS,
                )  # fmt: skip
        if not IS_HALVED:
            left, right = half_of(left, 0), half_of(left, 1)
        if MODE != "blocks":
            of_a = load_scales(scales[0], strides[0], row, m, 0, WIDTHS[0], BM, 0)
            of_b = load_scales(scales[1], strides[1], column, n, 0, WIDTHS[1], BN, 1)
        for half in tl.static_range(2):
            first, part = column + half * HALF, left if half == 0 else right
            if MODE != "blocks":
                part *= of_a * scales_of_half(of_b, half, WIDTHS[1])
            if bias is not None:
                part = add_bias(part, first, n, bias, 1)
            if HAS_DESCRIPTOR:
                c.store([row, first], convert(part, c.dtype))
            else:
                store(c, part, row, first, (m, n), (row_stride, 1), False)


@triton.jit
def multiply_scaled_by_pointers(
    pointers, scales, sizes, matrix_strides, bias_stride, strides, tiles,
    ARE_E5M2: tl.constexpr, IS_NATIVE: tl.constexpr, MODE: tl.constexpr, WIDTHS: tl.constexpr,
    GROUP: tl.constexpr, VECTORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of the same, for each program. float16 holds 8-bit floats exactly, and tensor cores
    take it along any dimension, so elements are widened to it.

    Args:
        pointers: to A, B, the bias and C. The bias may be None.
        matrix_strides: of a row and of a column of A, B and C.
        bias_stride: from a column's bias to the next.
        ARE_E5M2: whether A, and B, are e5m2. Pointers may be to their bits.
        IS_NATIVE: whether the GPU knows 8-bit floats.
        VECTORS: as `multiply_by_pointers` takes them.
        BLOCK: rows and columns of a tile.
    """
    a, b, bias, c = pointers
    m, n, k = sizes
    a_row, a_column = matrix_strides[0]
    b_row, b_column = matrix_strides[1]
    c_row, c_column = matrix_strides[2]
    BM: tl.constexpr = BLOCK[0]
    BN: tl.constexpr = BLOCK[1]
    a, b = (
        a.to(tl.pointer_type(tl.uint8), bitcast=True),
        b.to(tl.pointer_type(tl.uint8), bitcast=True),
    )
    index = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    if index < tiles[2]:
        tile_row, tile_column, _ = tile_of(index, tiles[0], tiles[1], GROUP)
        first_row, first_column = tile_row * BM, tile_column * BN
        row, column = first_row + tl.arange(0, BM), first_column + tl.arange(0, BN)
        depth = tl.arange(0, SCALED_DEPTH).to(tl.int64)
        sums = tl.zeros((BM, BN), tl.float32)
        for start in range(0, k, SCALED_DEPTH):
            at = start + depth
            tile_a = load_tile(a, row, at, row < m, at < k, a_row, a_column, VECTORS[0], VECTORS[1])
            tile_b = load_tile(
                b, at, column, at < k, column < n, b_row, b_column, VECTORS[2], VECTORS[3]
            )
            tile_a = _widen(tile_a, ARE_E5M2[0], IS_NATIVE)
            tile_b = _widen(tile_b, ARE_E5M2[1], IS_NATIVE)
            # Tensor cores add all products of float16 in float32.
            sums = add_products(
                sums, tile_a, tile_b, scales, strides, (first_row, first_column), (m, n),
                start // SCALED_DEPTH, MODE if MODE == "blocks" else "fast", WIDTHS,
            )  # fmt: skip
        if MODE != "blocks":
            of_a = load_scales(scales[0], strides[0], first_row, m, 0, WIDTHS[0], BM, 0)
            of_b = load_scales(scales[1], strides[1], first_column, n, 0, WIDTHS[1], BN, 1)
        for half in tl.static_range(2):
            first, part = first_column + half * (BN // 2), half_of(sums, half)
            if MODE != "blocks":
                part *= of_a * scales_of_half(of_b, half, WIDTHS[1])
            if bias is not None:
                part = add_bias(part, first, n, bias, bias_stride)
            store(c, part, first_row, first, (m, n), (c_row, c_column), False)


@triton.jit
def _widen(bits, IS_E5M2: tl.constexpr, IS_NATIVE: tl.constexpr):
    """8-bit floats, given by their bits, in float16."""
    if IS_NATIVE:
        TYPE: tl.constexpr = tl.float8e5 if IS_E5M2 else tl.float8e4nv
        result = convert(bits.to(TYPE, bitcast=True), tl.float16)
    else:
        result = float8_bits_to_float16(bits, IS_E5M2)
    return result
