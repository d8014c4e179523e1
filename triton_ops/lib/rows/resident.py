"""Resident rows: one program holds whole rows, or columns, in registers from the reduction on.

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
    SIDE: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Loads the rows once, reduces them and maps them.

    With STAGES the programs are persistent: they take the rows in turn, loads of the next ones are
    in flight meanwhile, and weight and bias are loaded once.
    """
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    program = tl.program_id(0).to(tl.int64)
    n = n.to(tl.int32)  # a row that is held is short
    if STAGES == 0:
        _map_tile_of_rows(
            inputs, output, program, n, count, sizes, starts, strides, steps,
            second, weight, bias, None, None, statistics, numbers, REDUCE, COMBINE, MAP, HOLD,
            FINISH, OTHER, T, COLUMN, RANK, STEPS, VECTOR, ALIGNED, SIDE, BLOCK, REST,
        )  # fmt: skip
    else:
        weights, biases = None, None
        if not PEELED:
            weights = load_parameter_pieces(weight, 0, 0, n, 0, BLOCK, REST, COLUMN, VECTOR, ALIGNED)
            biases = load_parameter_pieces(bias, 0, 0, n, 0, BLOCK, REST, COLUMN, VECTOR, ALIGNED)
        tiles = (count + SIDE - 1) // SIDE
        for tile in tl.range(program, tiles, tl.num_programs(0), num_stages=STAGES):
            _map_tile_of_rows(
                inputs, output, tl.full((), tile, tl.int64), n, count, sizes, starts, strides,
                steps, second, weight, bias, weights, biases, statistics, numbers, REDUCE,
                COMBINE, MAP, HOLD, FINISH, OTHER, T, COLUMN, RANK, STEPS, VECTOR, ALIGNED, SIDE,
                BLOCK, REST,
            )  # fmt: skip


@triton.jit
def _map_tile_of_rows(
    inputs, output, tile, n, count, sizes, starts, strides, steps,
    second, weight, bias, weights, biases, statistics, numbers,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, MAP: tl.constexpr, HOLD: tl.constexpr,
    FINISH: tl.constexpr, OTHER: tl.constexpr, T: tl.constexpr, COLUMN: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """The same of one tile. `weights` and `biases` are tiles of the two, if they are loaded yet."""
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    at = tl.full((), 0, tl.int64) if COLUMN else 0  # steps from element to element may be long
    row = side_by_side(tile, SIDE, VECTOR, COLUMN)
    row_mask = row < count
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
        inputs, firsts, steps, at, begin, end, row_mask, OTHER, LOADS, HOLD, T, BLOCK, REST,
        COLUMN, STEPS, VECTOR, ALIGNED,
    )  # fmt: skip
    states = reduce_pieces(
        held, at, begin, end, row_mask, REDUCE, COMBINE, T, BLOCK, REST, COLUMN, VECTOR, ALIGNED
    )
    results = finish_rows(
        states, statistics, row, row_mask, n, sizes, starts[-1], strides[-1], numbers,
        FINISH, T, RANK,
    )  # fmt: skip
    if weights is None:
        weights = load_parameter_pieces(
            weight, at, begin, end, begin, BLOCK, REST, COLUMN, VECTOR, ALIGNED
        )
        biases = load_parameter_pieces(bias, at, begin, end, begin, BLOCK, REST, COLUMN, VECTOR, ALIGNED)
    map_pieces(
        output, second, weights, biases, held, results, first, steps[0], at, begin, end,
        row_mask, MAP, FINISH, T, BLOCK, REST, COLUMN, STEPS, VECTOR, ALIGNED,
    )  # fmt: skip
