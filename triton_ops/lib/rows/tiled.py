"""Tiled rows: a program reads its rows, or columns, in tiles and in two passes.

The first pass reduces: each thread combines the states of its tiles (reduce/states.py), and then
the threads' states are combined. The second pass maps. Twin of csrc/include/diglot/rows/tiled.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.reduce.states import ALL, BY_THREAD
from diglot.triton_ops.lib.types import compute_type

from .operation import finish_rows, map_tile
from .tile import STAGES, all_by_thread, by_thread, load_held, load_parameters, tile_mask


@triton.jit
def map_tiled_rows(
    inputs, output, row, row_mask, firsts, out_offset, index, n, sizes, starts, strides, steps,
    second, weight, bias, statistics, numbers,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr,
    MAP: tl.constexpr, HOLD: tl.constexpr, FINISH: tl.constexpr,
    OTHER: tl.constexpr, T: tl.constexpr, COLUMN: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Reduces the rows in a first pass over their tiles, and maps them in a second one."""
    COMPUTE: tl.constexpr = compute_type(T)
    if COLUMN:
        states = NONE(tl.full((1, SIDE * VECTOR), 0.0, COMPUTE), T)
    else:
        states = NONE(tl.full((1, THREADS, 1), 0.0, COMPUTE), T)
    # The L2 cache keeps what the first pass reads for the second one.
    for first in tl.range(0, n, BLOCK, num_stages=STAGES):
        mask = tile_mask(first + index, n, row_mask, COLUMN)
        values = load_held(
            inputs, firsts, steps, first + index, mask, OTHER, "evict_last", HOLD, T,
            COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
        length = tl.minimum(n - first, BLOCK)
        if COLUMN:
            states = COMBINE(states, REDUCE(values, mask, length, 0, T), T)
        else:
            parts = all_by_thread(values, VECTOR, THREADS)
            mask = by_thread(mask, VECTOR, THREADS)
            states = COMBINE(states, REDUCE(parts, mask, length, BY_THREAD, T), T)
    if not COLUMN:
        states = FOLD(states, ALL, T)
    results = finish_rows(
        states, statistics, row, row_mask, n, sizes, starts[-1], strides[-1], numbers,
        FINISH, T, RANK,
    )  # fmt: skip
    for first in tl.range(0, n, BLOCK, num_stages=STAGES):
        mask = tile_mask(first + index, n, row_mask, COLUMN)
        values = load_held(
            inputs, firsts, steps, first + index, mask, OTHER, "evict_first", HOLD, T,
            COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
        map_tile(
            output, second, load_parameters(weight, first + index, n, ALIGNED),
            load_parameters(bias, first + index, n, ALIGNED), values, results, out_offset,
            steps[0], first + index, mask, MAP, FINISH, T, COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
