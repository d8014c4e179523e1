"""Scales of the operands of a product: of rows of A and columns of B, or of blocks of 128 along K.
Twin of csrc/include/diglot/products/scales.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.math import fma
from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.products.epilogue import half_of

# Elements along K whose products have one scale, and are added in float32 by exact sums.
SCALED_DEPTH = tl.constexpr(128)


@triton.jit
def load_scales(
    scale, strides, first, size, block, WIDTH: tl.constexpr, COUNT: tl.constexpr,
    AXIS: tl.constexpr,
):  # fmt: skip
    """Scales of COUNT neighbouring rows of A, as a column, or of columns of B, as a row; 0 behind
    the last of `size`. A number, if one serves all of them.

    Args:
        scale: a pointer.
        strides: from a row's, or a block of rows', to the next, and from a block along K to the
            next. 0 where one scale serves all.
        first: the first row, a multiple of COUNT, which is a power of two.
        block: the number of the block along K.
        WIDTH: rows that share a scale; 0 if all rows of all blocks do.
        AXIS: 0 for rows of A, 1 for columns of B.
    """
    scale += block * strides[1]
    if WIDTH == 0:
        result = tl.load(scale)
    elif COUNT <= WIDTH:
        result = tl.load(scale + first // WIDTH * strides[0], first < size, 0.0)
    else:
        side = first + tl.arange(0, COUNT)
        result = tl.load(scale + side.to(tl.int64) // WIDTH * strides[0], side < size, 0.0)
        result = tl.expand_dims(result, 1 - AXIS)
    return result


@triton.jit
def scales_of_half(scales, half: tl.constexpr, WIDTH: tl.constexpr):
    """Scales of the left or right half of some columns, from `load_scales`."""
    return scales if WIDTH == 0 else half_of(scales, half)


@triton.jit
def add_products(
    sums, a, b, scales, strides, place, sizes, block, MODE: tl.constexpr, WIDTHS: tl.constexpr
):
    """sums + a b, of tiles that are SCALED_DEPTH deep.

    Args:
        scales, strides, WIDTHS: of A and B, as `load_scales` takes them.
        place, sizes: the first row and column of `sums`, and how many there are in C.
        block: the number of the block along K.
        MODE: "blocks": sums of products of blocks are scaled, and added in float32; "exact": they
            are added in float32; "fast": tensor cores add them.
    """
    ROWS: tl.constexpr = sums.shape[0]
    COLUMNS: tl.constexpr = sums.shape[1]
    if MODE == "blocks":  # scales arrive while tensor cores multiply
        of_a = load_scales(scales[0], strides[0], place[0], sizes[0], block, WIDTHS[0], ROWS, 0)
        of_b = load_scales(scales[1], strides[1], place[1], sizes[1], block, WIDTHS[1], COLUMNS, 1)
        part = dot(a, b, tl.zeros_like(sums))
        sums = fma(part, tl.broadcast_to(of_a * of_b, sums.shape), sums)
    elif MODE == "exact":
        sums += dot(a, b, tl.zeros_like(sums))
    else:
        sums = dot(a, b, sums)
    return sums
