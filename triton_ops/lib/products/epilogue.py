"""What follows the sums of a product, in every kernel: factors, the bias, a matrix beside the
product, the activation, the rounding, the stores. Twin of
csrc/include/diglot/products/epilogue.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.math import fma
from diglot.triton_ops.lib.products.activations import activate, activation_gradient
from diglot.triton_ops.lib.types import convert, number


@triton.jit
def finish(
    sums, row, column, sizes, strides, around, numbers, outputs,
    ACTIVATION: tl.constexpr, IS_SLOPE: tl.constexpr, HAS_DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """C = activation(alpha sums + bias + beta input), rounded once, of a tile.

    With IS_SLOPE, C = (alpha sums + bias) times the activation's derivative at `input`.

    Args:
        sums: of the tile, which begins at `row` and `column`.
        sizes: rows and columns of C.
        strides: of a row and of a column of C.
        around: the bias, a pointer or None, and its stride; the input, likewise, and its two.
        numbers: the halves of beta and of alpha, each None where both factors are 1.
        outputs: `before`, which gets the elements before their activation, or None; C. Both are
            descriptors with HAS_DESCRIPTOR, else pointers.

    The tile is finished in two halves of its columns. Addresses of 64 bits take two registers each.
    """
    bias, bias_stride, input, input_row, input_column = around
    before, c = outputs
    COMPUTE: tl.constexpr = sums.dtype
    DTYPE: tl.constexpr = c.dtype if HAS_DESCRIPTOR else c.dtype.element_ty
    ROWS: tl.constexpr = sums.shape[0]
    HALF: tl.constexpr = sums.shape[1] // 2
    rows = row + tl.arange(0, ROWS).to(tl.int64)
    for half in tl.static_range(2):
        part = half_of(sums, half)
        first = column + half * HALF
        columns = first + tl.arange(0, HALF).to(tl.int64)
        if numbers[2] is not None:
            part *= number(numbers[2], numbers[3], COMPUTE)
        if bias is not None:
            part = add_bias(part, first, sizes[1], bias, bias_stride)
        if input is not None:
            place = input + rows[:, None] * input_row + columns[None, :] * input_column
            mask = (rows < sizes[0])[:, None] & (columns < sizes[1])[None, :]
            beside = convert(tl.load(place, mask, 0.0), COMPUTE)
            if IS_SLOPE:
                part = activation_gradient(part, beside, ACTIVATION, DTYPE)
            elif numbers[0] is not None:
                beta = tl.full((ROWS, HALF), number(numbers[0], numbers[1], COMPUTE), COMPUTE)
                part = fma(beta, beside, part)
            else:
                part += beside
        if before is not None:
            store(before, part, row, first, sizes, strides, HAS_DESCRIPTOR)
        if ACTIVATION != "none" and not IS_SLOPE:
            part = activate(part, ACTIVATION, DTYPE)
        store(c, part, row, first, sizes, strides, HAS_DESCRIPTOR)


@triton.jit
def store(c, values, row, column, sizes, strides, HAS_DESCRIPTOR: tl.constexpr):
    """Rounds and stores the values that lie in C. They begin at `row` and `column`."""
    if HAS_DESCRIPTOR:
        c.store([row, column], convert(values, c.dtype))
    else:
        rows = row + tl.arange(0, values.shape[0]).to(tl.int64)
        columns = column + tl.arange(0, values.shape[1]).to(tl.int64)
        place = c + rows[:, None] * strides[0] + columns[None, :] * strides[1]
        mask = (rows < sizes[0])[:, None] & (columns < sizes[1])[None, :]
        tl.store(place, convert(values, c.dtype.element_ty), mask)


@triton.jit
def half_of(sums, half: tl.constexpr):
    """The left or the right half of a tile's columns."""
    ROWS: tl.constexpr = sums.shape[0]
    HALF: tl.constexpr = sums.shape[1] // 2
    left, right = tl.permute(tl.reshape(sums, (ROWS, 2, HALF)), (0, 2, 1)).split()
    return left if half == 0 else right


@triton.jit
def add_bias(sums, column, n, bias, bias_stride):
    """A part of a tile, which begins at `column`, plus the bias of its columns; C has `n`."""
    columns = column + tl.arange(0, sums.shape[1]).to(tl.int64)
    added = tl.load(bias + columns * bias_stride, columns < n, 0.0)
    return sums + added.to(sums.dtype)[None, :]
