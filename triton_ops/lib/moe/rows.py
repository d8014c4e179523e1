"""Rows on their way between tokens, and tokens sorted by experts. Twin of
csrc/include/diglot/moe/rows.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.math import fma
from diglot.triton_ops.lib.moe.activation import accesses
from diglot.triton_ops.lib.types import compute_type, convert


@triton.jit
def sum_rows(
    input, places, weights, out, sources, columns, terms, spread, row_stride, column_stride,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of the result is a weighted sum of rows of the input, which its places name.

    Args:
        input, places, weights, out: pointers. The weights may be None.
        sources: rows of the input.
        columns: of a row.
        terms: of a sum.
        spread: places that share a row of the input, and have weights each; 0: the terms have them.
        row_stride, column_stride: of the input.
        VECTOR: elements of an access, which divide `columns`.
    """
    T: tl.constexpr = out.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK // VECTOR)[:, None] * VECTOR
    column = first + tl.arange(0, VECTOR)[None, :]
    sums = tl.zeros((BLOCK // VECTOR, VECTOR), COMPUTE)
    for term in range(row * terms, (row + 1) * terms):
        place = tl.load(places + term)
        source = place // tl.maximum(spread, 1)
        inside = (place >= 0) & (source < sources)
        address = accesses(input, source * row_stride + column * column_stride, VECTOR)
        values = tl.load(address, (first < columns) & inside, 0.0).to(COMPUTE)
        if weights is not None:
            weight = tl.load(weights + tl.where(spread > 0, place, term), inside, 0.0)
            sums = fma(weight + tl.zeros_like(sums), values, sums)
        else:
            sums += values
    address = accesses(out, row * columns + column, VECTOR)
    tl.store(address, convert(sums, T), first < columns)
