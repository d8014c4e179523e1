"""Resident rows: one program holds whole rows, or columns, in registers from the reduction on.

Twin of csrc/include/diglot/rows/resident.cuh.
"""

import triton
import triton.language as tl

from .operation import finish_rows, map_tile
from .tile import LOADS, load_held, load_parameters, tile_mask


@triton.jit
def map_resident_rows(
    inputs, output, row, row_mask, firsts, out_offset, index, n, sizes, starts, strides, steps,
    second, weight, bias, statistics, numbers,
    REDUCE: tl.constexpr, MAP: tl.constexpr, HOLD: tl.constexpr, FINISH: tl.constexpr,
    OTHER: tl.constexpr, T: tl.constexpr, COLUMN: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Loads the rows once, reduces them and maps them."""
    mask = tile_mask(index, n, row_mask, COLUMN)
    values = load_held(
        inputs, firsts, steps, index, mask, OTHER, LOADS, HOLD, T, COLUMN, STEPS, VECTOR, ALIGNED
    )
    states = REDUCE(values, mask, n, 0 if COLUMN else 1, T)
    results = finish_rows(
        states, statistics, row, row_mask, n, sizes, starts[-1], strides[-1], numbers,
        FINISH, T, RANK,
    )  # fmt: skip
    map_tile(
        output, second, load_parameters(weight, index, n, ALIGNED),
        load_parameters(bias, index, n, ALIGNED), values, results, out_offset, steps[0], index,
        mask, MAP, FINISH, T, COLUMN, STEPS, VECTOR, ALIGNED,
    )  # fmt: skip
