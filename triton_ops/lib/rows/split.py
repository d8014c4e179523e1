"""Split rows: several programs, which run at once, each hold a part of a row, or of columns.

Each program reduces its part, publishes the state in its mailbox (sync/mailbox.py), and collects
the states of all parts. In CUDA C++ the blocks of a cluster do so in distributed shared memory.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.reduce.states import ALL
from diglot.triton_ops.lib.sync.mailbox import collect, collect_tile, publish
from diglot.triton_ops.lib.types import compute_type

from .operation import finish_rows, map_tile
from .tile import (
    LOADS,
    STAGES,
    keep_narrow,
    load_held,
    load_parameters,
    row_offsets,
    side_by_side,
    tile_mask,
    tile_pointers,
    widened_tile,
)


@triton.jit
def map_split_rows(
    inputs, mailboxes, output, n, count, sizes, starts, strides, steps,
    second, weight, bias, statistics, numbers,
    REDUCE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr, MAP: tl.constexpr,
    HOLD: tl.constexpr, FINISH: tl.constexpr,
    OTHER: tl.constexpr, T: tl.constexpr, COLUMN: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr, SPLITS: tl.constexpr,
    PHASE: tl.constexpr,
):  # fmt: skip
    """The programs of a group split each row into parts of BLOCK elements. The groups are
    persistent: they take the rows in turn.

    A row has one mailbox for each program and field, by field first. Columns have one for each
    program, column and field.
    """
    COMPUTE: tl.constexpr = compute_type(T)
    WIDTH: tl.constexpr = SIDE * VECTOR if COLUMN else 1
    program = tl.program_id(0).to(tl.int64)
    programs = (n + BLOCK - 1) // BLOCK  # of a group
    group, split = program // programs, program % programs
    groups = tl.num_programs(0) // programs
    part = split * BLOCK
    length = tl.minimum(n - part, BLOCK)
    # The part's offset is added to where rows begin, so it takes no registers for each access.
    index = tl.arange(0, BLOCK)
    weight = None if weight is None else weight + part
    bias = None if bias is None else bias + part
    every = tl.arange(0, SPLITS)
    is_split, every = every < programs, tl.minimum(every, programs.to(tl.int32) - 1)
    if COLUMN:
        column = tl.arange(0, WIDTH)[None, :]
        sent, received = split * WIDTH + column, (every * WIDTH)[:, None] + column
        is_split = is_split[:, None] & (column >= 0)
    else:
        sent, received, is_split = split, every[None, :], is_split[None, :]
    step = programs * WIDTH
    # An operation with `finish` is pipelined: loads of the next rows are in flight, and a program
    # collects a row's states only after it has published those of its next row. It holds the row
    # until then, and so hardly ever waits. The program's part of weight and bias is loaded once.
    PIPELINED: tl.constexpr = FINISH is not None
    weight = load_parameters(weight, index, length, ALIGNED)
    bias = load_parameters(bias, index, length, ALIGNED)
    tiles = (count + SIDE - 1) // SIDE
    end = tl.where(group < tiles, tiles + groups, tiles) if PIPELINED else tiles
    if PIPELINED:
        before = tl.full((SIDE, BLOCK), 0.0, COMPUTE).to(T)
    for tile in tl.range(group, end, groups, num_stages=STAGES if PIPELINED else 1):
        row = side_by_side(tl.full((), tile, tl.int64), SIDE, VECTOR, COLUMN)
        row_mask = row < count
        mask = tile_mask(index, length, row_mask, COLUMN)
        first = row_offsets(row, part, sizes, starts, strides, steps, 1, RANK)
        firsts = (first, first) if len(inputs) == 1 else (
            first, first, row_offsets(row, part, sizes, starts, strides, steps, 2, RANK)
        )  # fmt: skip
        values = load_held(
            inputs, firsts, steps, index, mask, OTHER, LOADS, HOLD, T, COLUMN, STEPS, VECTOR,
            ALIGNED,
        )  # fmt: skip
        states = REDUCE(values, mask, length, 0 if COLUMN else 1, T)
        boxes_of_tile = len(states) * step
        boxes = mailboxes + tile * boxes_of_tile
        if COLUMN:
            boxes = tl.multiple_of(boxes, 16)
        if PHASE != 2:
            is_row = tl.full(states[0].shape, tile < tiles, tl.int1) if PIPELINED else None
            publish(boxes, sent, step, states, is_row)
        if PIPELINED:
            row -= groups * SIDE
            row_mask = (row >= group * SIDE) & (row < count)
            mask = tile_mask(index, length, row_mask, COLUMN)
            # The first time there is no row before: it collects its own states, to no purpose.
            boxes = mailboxes + tl.maximum(tile - groups, group) * boxes_of_tile
            held, before = before, values[0]
            values = (held,)
        if PHASE != 1:
            nothing = NONE(tl.full(is_split.shape, 0.0, COMPUTE), T)
            if COLUMN:
                whole = FOLD(collect_tile(boxes, received, step, is_split, nothing), 0, T)
            else:
                pack: tl.constexpr = max(1, SPLITS // THREADS)
                whole = FOLD(collect(boxes, received, step, is_split, nothing, pack), ALL, T)
            results = finish_rows(
                whole, statistics, row, row_mask & (split == 0), n, sizes, starts[-1], strides[-1],
                numbers, FINISH, T, RANK,
            )  # fmt: skip
            out_offset = row_offsets(row, part, sizes, starts, strides, steps, 0, RANK)
            pointers = tile_pointers(
                output, out_offset, steps[0], index, COLUMN, STEPS, VECTOR, ALIGNED
            )
            if not PIPELINED:
                values = keep_narrow(values, pointers, n)
            map_tile(
                output, second, widened_tile(weight, T), widened_tile(bias, T), values, results,
                out_offset, steps[0], index, mask, MAP, FINISH, T, COLUMN, STEPS, VECTOR, ALIGNED,
            )  # fmt: skip
