"""Resident rows: one program holds whole rows, or columns, in registers, for the reduction and the
map.

Twin of csrc/include/diglot/rows/resident.cuh.
"""

import triton
import triton.language as tl

from .operation import finish_rows
from .pieces import (
    is_peeled,
    load_parameter_pieces,
    load_pieces,
    map_pieces,
    pieces_of,
    reduce_pieces,
    row_shift,
)
from .tile import LOADS, row_offsets, side_by_side


@triton.jit
def map_resident_rows(
    inputs, output, n, count, sizes, starts, strides, steps,
    second, weight, bias, statistics, numbers,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, MAP: tl.constexpr, HOLD: tl.constexpr,
    FINISH: tl.constexpr, OTHER: tl.constexpr, T: tl.constexpr, COLUMN: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Loads the rows once, reduces them and maps them."""
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    n = n.to(tl.int32)  # a row that is held is short
    # Steps from element to element of a column may be long. Pieces of one peeled row begin at its
    # whole accesses. In any row, no whole access comes before the second one.
    at = tl.full((), 0, tl.int64) if COLUMN else (VECTOR if PEELED else 0)
    if PEELED and SIDE == 1:
        at = None
    row = side_by_side(tl.program_id(0).to(tl.int64), SIDE, VECTOR, COLUMN)
    exists = row < count
    row_mask = None if SIDE == 1 and not COLUMN else exists
    first = row_offsets(row, 0, sizes, starts, strides, steps, 0, RANK)
    shift = row_shift(output, first, VECTOR, PEELED)
    first -= shift
    in_first = row_offsets(row, 0, sizes, starts, strides, steps, 1, RANK) - shift
    firsts = (first, in_first) if len(inputs) == 1 else (
        first, in_first, row_offsets(row, 0, sizes, starts, strides, steps, 2, RANK) - shift
    )  # fmt: skip
    begin = shift.to(tl.int32) if PEELED else 0
    end = begin + n
    held = load_pieces(
        0, pieces_of(PIECES, VECTOR, ALIGNED, COLUMN), inputs, firsts, steps, at, begin, end,
        row_mask, OTHER, LOADS, HOLD, T, BLOCK, PIECES, COLUMN, STEPS, VECTOR, ALIGNED,
    )  # fmt: skip
    if EARLY:
        weight = load_parameter_pieces(
            weight, shift, at, begin, end, BLOCK, PIECES, COLUMN, VECTOR, ALIGNED
        )
        bias = load_parameter_pieces(
            bias, shift, at, begin, end, BLOCK, PIECES, COLUMN, VECTOR, ALIGNED
        )
    states = reduce_pieces(
        held, at, begin, end, row_mask, REDUCE, COMBINE, T, BLOCK, PIECES, COLUMN, VECTOR, ALIGNED
    )
    results = finish_rows(
        states, statistics, row, exists, n, sizes, starts[-1], strides[-1], numbers,
        FINISH, T, RANK,
    )  # fmt: skip
    map_pieces(
        output, second, weight, bias, EARLY, held, results, first, steps[0], shift, at,
        begin, end, row_mask, MAP, FINISH, T, BLOCK, PIECES, COLUMN, STEPS, VECTOR, ALIGNED,
    )  # fmt: skip
