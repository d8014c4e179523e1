"""What follows the sums of a product, in every kernel: factors, the bias, a matrix beside the
product, the activation, the rounding, the stores. Twin of
csrc/include/diglot/products/epilogue.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.math import fma
from diglot.triton_ops.lib.products.activations import activate, activation_gradient
from diglot.triton_ops.lib.products.batches import load_of, store_of
from diglot.triton_ops.lib.types import convert, number


@triton.jit
def finish(
    sums, batch, row, column, sizes, strides, around, numbers, outputs,
    ACTIVATION: tl.constexpr, IS_SLOPE: tl.constexpr, HAS_DESCRIPTOR: tl.constexpr,
    IS_EXCHANGED: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """C = activation(alpha sums + bias + beta input), rounded once, of a tile.

    With IS_SLOPE, C = (alpha sums + bias) times the activation's derivative at `input`.

    Args:
        sums: of the tile, which begins at `row` and `column`; of its transpose with IS_EXCHANGED.
        batch: numbers of the matrix of C, and of the input, for descriptors of a batch; and where
            these matrices begin, for pointers.
        sizes: rows and columns of C.
        strides: of a row and of a column of C.
        around: the bias, a pointer or None, and its stride; the input, likewise, and its two.
            Without the first, it is one row for all. Without both, it is a descriptor.
        numbers: the halves of beta and of alpha, each None where both factors are 1.
        outputs: `before`, which gets the elements before their activation, or None; C. Both are
            descriptors with HAS_DESCRIPTOR, else pointers.
        PIECES: 1, 2 or 4 parts of the sums' columns, which are finished in turn and stay in their
            threads. Addresses of 64 bits take two registers each.
    """
    for piece in tl.static_range(PIECES):
        part = piece_of(sums, piece, PIECES)
        at = piece * part.shape[1]
        if IS_EXCHANGED:
            finish_piece(
                part.T, batch, row + at, column, sizes, strides, around, numbers, outputs,
                ACTIVATION, IS_SLOPE, HAS_DESCRIPTOR,
            )  # fmt: skip
        else:
            finish_piece(
                part, batch, row, column + at, sizes, strides, around, numbers, outputs,
                ACTIVATION, IS_SLOPE, HAS_DESCRIPTOR,
            )  # fmt: skip


@triton.jit
def finish_piece(
    part, batch, row, column, sizes, strides, around, numbers, outputs,
    ACTIVATION: tl.constexpr, IS_SLOPE: tl.constexpr, HAS_DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Finishes a piece, which begins at `row` and `column`."""
    bias, bias_stride, input, input_row, input_column = around
    before, c = outputs
    if not HAS_DESCRIPTOR:
        c += batch[2][0]
    COMPUTE: tl.constexpr = part.dtype
    DTYPE: tl.constexpr = c.dtype if HAS_DESCRIPTOR else c.dtype.element_ty
    SHAPE: tl.constexpr = (part.shape[0], part.shape[1])
    if numbers[2] is not None:
        part *= number(numbers[2], numbers[3], COMPUTE)
    if bias is not None:
        part = add_bias(part, column, sizes[1], bias, bias_stride)
    if input is not None:
        strides_of_input = input_row, input_column
        if input_column is not None:
            input += batch[2][1]
        beside = load_input(input, batch[1], row, column, sizes, strides_of_input, SHAPE)
        beside = convert(beside, COMPUTE)
        if IS_SLOPE:
            part = activation_gradient(part, beside, ACTIVATION, DTYPE)
        elif numbers[0] is not None:
            beta = tl.full(SHAPE, number(numbers[0], numbers[1], COMPUTE), COMPUTE)
            part = fma(beta, beside, part)
        else:
            part += beside
    if before is not None:
        if not HAS_DESCRIPTOR:
            before += batch[2][0]
        store(before, part, row, column, sizes, strides, HAS_DESCRIPTOR, batch[0])
    if ACTIVATION != "none" and not IS_SLOPE:
        part = activate(part, ACTIVATION, DTYPE)
    store(c, part, row, column, sizes, strides, HAS_DESCRIPTOR, batch[0])


@triton.jit
def load_input(input, numbers, row, column, sizes, strides, SHAPE: tl.constexpr):
    """The elements beside a part of a tile, which begins at `row` and `column`."""
    if strides[1] is None:
        result = load_of(input, numbers, row, column)
    else:
        columns = column + tl.arange(0, SHAPE[1]).to(tl.int64)
        place = input + columns[None, :] * strides[1]
        mask = (columns < sizes[1])[None, :]
        if strides[0] is None:
            result = tl.broadcast_to(tl.load(place, mask, 0.0), SHAPE)
        else:
            rows = row + tl.arange(0, SHAPE[0]).to(tl.int64)
            mask = (rows < sizes[0])[:, None] & mask
            result = tl.load(rows[:, None] * strides[0] + place, mask, 0.0)
    return result


@triton.jit
def store(c, values, row, column, sizes, strides, HAS_DESCRIPTOR: tl.constexpr, numbers=None):
    """Rounds and stores the values that lie in C. They begin at `row` and `column`."""
    if HAS_DESCRIPTOR:
        store_of(c, numbers, row, column, convert(values, c.dtype))
    else:
        rows = row + tl.arange(0, values.shape[0]).to(tl.int64)
        columns = column + tl.arange(0, values.shape[1]).to(tl.int64)
        place = c + rows[:, None] * strides[0] + columns[None, :] * strides[1]
        mask = (rows < sizes[0])[:, None] & (columns < sizes[1])[None, :]
        tl.store(place, convert(values, c.dtype.element_ty), mask)


@triton.jit
def piece_of(sums, index: tl.constexpr, PIECES: tl.constexpr):
    """The columns of one of 1, 2 or 4 pieces of a tile."""
    if PIECES == 1:
        result = sums
    elif PIECES == 2:
        result = half_of(sums, index)
    else:
        result = half_of(half_of(sums, index // 2), index % 2)
    return result


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
