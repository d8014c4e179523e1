"""What follows the sums of a product, in every kernel: the bias, the rounding, the stores by
addresses. Twin of csrc/include/diglot/products/epilogue.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.types import convert


@triton.jit
def finish(sums, column, n, bias, bias_stride):
    """The elements of C, before their rounding, of a part of a tile that begins at `column`.

    Args:
        sums: of the part.
        n: columns of C.
        bias: a pointer, or None.
        bias_stride: from a column's bias to the next.
    """
    if bias is not None:
        columns = column + tl.arange(0, sums.shape[1]).to(tl.int64)
        sums += tl.load(bias + columns * bias_stride, columns < n, 0.0).to(sums.dtype)[None, :]
    return sums


@triton.jit
def half_of(sums, half: tl.constexpr):
    """The left or the right half of a tile's columns."""
    ROWS: tl.constexpr = sums.shape[0]
    HALF: tl.constexpr = sums.shape[1] // 2
    left, right = tl.permute(tl.reshape(sums, (ROWS, 2, HALF)), (0, 2, 1)).split()
    return left if half == 0 else right


@triton.jit
def store_tile(c, sums, row, column, m, n, row_stride, column_stride):
    """Stores the part of a tile that lies in C. The tile begins at `row` and `column`.

    Addresses of 64 bits take two registers each, so callers store a half at a time.
    """
    rows = row + tl.arange(0, sums.shape[0]).to(tl.int64)
    columns = column + tl.arange(0, sums.shape[1]).to(tl.int64)
    place = c + rows[:, None] * row_stride + columns[None, :] * column_stride
    mask = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(place, convert(sums, c.dtype.element_ty), mask)
