"""Tiled rows: a program reads its rows, or columns, in tiles and in two passes.

The first pass reduces: each thread combines the states of its tiles (reduce/states.py), and then
the threads' states are combined. The second pass maps. Twin of csrc/include/diglot/rows/tiled.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.reduce.states import ALL, BY_THREAD
from diglot.triton_ops.lib.types import compute_type

from .operation import finish_rows
from .pieces import (
    is_peeled,
    load_parameter_piece,
    load_piece,
    map_piece,
    piece_mask,
    pieces_of,
    row_shift,
    whole_accesses,
)
from .tile import STAGES, all_by_thread, row_offsets, side_by_side


@triton.jit
def map_tiled_rows(
    inputs, output, n, count, sizes, starts, strides, steps,
    second, weight, bias, statistics, numbers,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr,
    MAP: tl.constexpr, HOLD: tl.constexpr, FINISH: tl.constexpr,
    OTHER: tl.constexpr, T: tl.constexpr, COLUMN: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Reduces the rows in a first pass over their tiles, and maps them in a second one."""
    COMPUTE: tl.constexpr = compute_type(T)
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    row = side_by_side(tl.program_id(0).to(tl.int64), SIDE, VECTOR, COLUMN)
    row_mask = row < count
    out_first = row_offsets(row, 0, sizes, starts, strides, steps, 0, RANK)
    shift = row_shift(output, out_first, VECTOR, PEELED)
    out_first -= shift
    in_first = row_offsets(row, 0, sizes, starts, strides, steps, 1, RANK) - shift
    firsts = (out_first, in_first) if len(inputs) == 1 else (
        out_first, in_first, row_offsets(row, 0, sizes, starts, strides, steps, 2, RANK) - shift
    )  # fmt: skip
    end = shift + n
    stop = tl.max(end) if PEELED else n  # of one row
    if COLUMN:
        states = NONE(tl.full((1, SIDE * VECTOR), 0.0, COMPUTE), T)
    else:
        states = NONE(tl.full((1, THREADS, 1), 0.0, COMPUTE), T)
    # The L2 cache keeps what the first pass reads for the second one.
    for at in tl.range(0, stop, BLOCK, num_stages=STAGES):
        values = load_piece(
            0, inputs, firsts, steps, at, shift, end, row_mask, OTHER, "evict_last", HOLD, T,
            BLOCK, 1, COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
        length = tl.minimum(n - at, BLOCK)  # of columns
        if COLUMN:
            mask = piece_mask(0, at, shift, end, row_mask, BLOCK, 1, COLUMN, VECTOR, PEELED)
            states = COMBINE(states, REDUCE((values,), (mask,), length, 0, T), T)
        else:
            parts = all_by_thread(values, VECTOR, THREADS)
            mask = accesses_by_thread(at, shift, end, BLOCK, VECTOR, PEELED, THREADS)
            states = COMBINE(states, REDUCE((parts,), (mask,), length, BY_THREAD, T), T)
    if not COLUMN:
        count = n
        if PEELED:
            first, last = whole_accesses(shift, end, VECTOR)
            count = tl.sum(last - first)
        states = FOLD(states, count, ALL, T)
    EDGES: tl.constexpr = 4 * VECTOR
    # Pieces after the first one: the edges, if there are any.
    for p in tl.static_range(1, pieces_of(1, VECTOR, ALIGNED, COLUMN)):
        edges = load_piece(
            p, inputs, firsts, steps, 0, shift, end, row_mask, OTHER, "evict_last", HOLD, T,
            EDGES, 1, COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
        mask = piece_mask(p, 0, shift, end, row_mask, EDGES, 1, COLUMN, VECTOR, PEELED)
        length = n - count
        edge_states = FOLD(REDUCE((edges,), (mask,), length, 1, T), length, ALL, T)
        states = COMBINE(states, edge_states, T)
    results = finish_rows(
        states, statistics, row, row_mask, n, sizes, starts[-1], strides[-1], numbers,
        FINISH, T, RANK,
    )  # fmt: skip
    for at in tl.range(0, stop, BLOCK, num_stages=STAGES):
        values = load_piece(
            0, inputs, firsts, steps, at, shift, end, row_mask, OTHER, "evict_first", HOLD, T,
            BLOCK, 1, COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
        map_piece(
            0, output, second,
            load_parameter_piece(
                0, weight, shift, at, shift, end, BLOCK, 1, COLUMN, VECTOR, ALIGNED
            ),
            load_parameter_piece(
                0, bias, shift, at, shift, end, BLOCK, 1, COLUMN, VECTOR, ALIGNED
            ),
            values, results, out_first, steps[0], at, shift, end, row_mask,
            MAP, FINISH, T, BLOCK, 1, COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
    for p in tl.static_range(1, pieces_of(1, VECTOR, ALIGNED, COLUMN)):
        map_piece(
            p, output, second,
            load_parameter_piece(
                p, weight, shift, 0, shift, end, EDGES, 1, COLUMN, VECTOR, ALIGNED
            ),
            load_parameter_piece(
                p, bias, shift, 0, shift, end, EDGES, 1, COLUMN, VECTOR, ALIGNED
            ),
            edges, results, out_first, steps[0], 0, shift, end, row_mask,
            MAP, FINISH, T, EDGES, 1, COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip


@triton.jit
def accesses_by_thread(
    at, begin, end, BLOCK: tl.constexpr, VECTOR: tl.constexpr, PEELED: tl.constexpr,
    THREADS: tl.constexpr,
):  # fmt: skip
    """Which accesses of a tile of one row exist, as (accesses, threads, 1)."""
    ACCESSES: tl.constexpr = BLOCK // (THREADS * VECTOR)
    access = tl.arange(0, ACCESSES)[:, None, None] * THREADS + tl.arange(0, THREADS)[None, :, None]
    index = at + access * VECTOR
    if PEELED:
        first, last = whole_accesses(begin, end, VECTOR)
        mask = (index >= first[None, :, None]) & (index < last[None, :, None])
    else:
        mask = index < end
    return mask
