"""Scales of the operands of a product: of rows of A and columns of B, or of blocks of 128 along K.
Twin of csrc/include/diglot/products/scales.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.math import fma
from diglot.triton_ops.lib.mma.dot import dot

# Elements along K whose products have one scale, and are added in float32 by exact sums.
SCALED_DEPTH = tl.constexpr(128)


@triton.jit
def load_scales(scale, strides, first, count, size, block, WIDTH: tl.constexpr):
    """Scales of `count` neighbouring rows of A, or columns of B; 0 behind the last of `size`.

    Args:
        scale: a pointer.
        strides: from a row's, or a block of rows', to the next, and from a block along K to the
            next. 0 where one scale serves all.
        first: the first row.
        block: the number of the block along K.
        WIDTH: rows that share a scale; 0 if all rows of all blocks do.
    """
    if WIDTH == 0:
        result = tl.full((count,), tl.load(scale), tl.float32)
    else:
        side = first + tl.arange(0, count).to(tl.int64)
        place = scale + side // WIDTH * strides[0] + block * strides[1]
        result = tl.load(place, side < size, 0.0)
    return result


@triton.jit
def scales_of(sums, scales, strides, place, sizes, block, WIDTHS: tl.constexpr):
    """The scale of each sum of a part of a tile: that of its row times that of its column.

    Args:
        scales, strides, WIDTHS: of A and B, as `load_scales` takes them.
        place, sizes: the first row and column, and how many there are in C.
        block: the number of the block along K.
    """
    of_a = load_scales(scales[0], strides[0], place[0], sums.shape[0], sizes[0], block, WIDTHS[0])
    of_b = load_scales(scales[1], strides[1], place[1], sums.shape[1], sizes[1], block, WIDTHS[1])
    return of_a[:, None] * of_b[None, :]


@triton.jit
def add_products(
    sums, a, b, scales, strides, place, sizes, block, MODE: tl.constexpr, WIDTHS: tl.constexpr
):
    """sums + a b, of tiles that are SCALED_DEPTH deep. Arguments are those of `scales_of`.

    Args:
        MODE: "blocks": sums of products of blocks are scaled, and added in float32; "exact": they
            are added in float32; "fast": tensor cores add them.
    """
    if MODE == "blocks":
        part = dot(a, b, tl.zeros_like(sums))
        sums = fma(part, scales_of(sums, scales, strides, place, sizes, block, WIDTHS), sums)
    elif MODE == "exact":
        sums = dot(a, b, sums, max_num_imprecise_acc=SCALED_DEPTH)
    else:
        sums = dot(a, b, sums)
    return sums


@triton.jit
def scale_sums(sums, scales, strides, place, sizes, MODE: tl.constexpr, WIDTHS: tl.constexpr):
    """Finished sums times their scales, if those of blocks have not multiplied them before."""
    if MODE != "blocks":
        sums *= scales_of(sums, scales, strides, place, sizes, 0, WIDTHS)
    return sums
