"""Split rows: several programs, which run at once, each hold a part of a row, or of columns.

Each program reduces its part, publishes the state in its mailbox (sync/mailbox.py), and collects
the states of all parts. In CUDA C++ the blocks of a cluster do so in distributed shared memory.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.reduce.states import ALL
from diglot.triton_ops.lib.sync.mailbox import collect, collect_tile, publish
from diglot.triton_ops.lib.types import compute_type

from .operation import finish_rows
from .pieces import (
    is_peeled,
    is_whole,
    load_all_edges,
    load_parameter_pieces,
    load_pieces,
    map_pieces,
    piece_index,
    pieces_of,
    reduce_pieces,
    row_shift,
    width_of,
)
from .tile import (
    LOADS,
    STAGES,
    keep_narrow,
    row_offsets,
    side_by_side,
    tile_pointers,
)

MOST_EARLY_BYTES = tl.constexpr(128)  # of a thread's part of one row, where it loads weights early


@triton.jit
def part_of_row(
    n, VECTOR: tl.constexpr, PEELED: tl.constexpr, HELD: tl.constexpr, SPLITS: tl.constexpr
):
    """How many programs share a row of n elements, and the elements of each. Programs take whole
    lines of memory, of eight accesses. They hold HELD elements, and are as few as can be, unless
    SPLITS is minus their number.
    """
    LINE: tl.constexpr = 8 * VECTOR
    reach = n + VECTOR - 1 if PEELED else n  # elements from the first access on
    programs = (reach + HELD - 1) // HELD if SPLITS > 0 else tl.full((), -SPLITS, tl.int64)
    lines = (reach + programs * LINE - 1) // (programs * LINE)
    return programs, lines * LINE


@triton.constexpr_function
def most_splits(splits):
    """A power of 2 that is at least the number of programs that split a row."""
    return splits if splits > 0 else 1 << (-splits - 1).bit_length()


@triton.jit
def map_split_rows(
    inputs, mailboxes, output, n, count, sizes, starts, strides, steps,
    second, weight, bias, statistics, numbers,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr,
    MAP: tl.constexpr, HOLD: tl.constexpr, FINISH: tl.constexpr, OTHER: tl.constexpr,
    T: tl.constexpr, COLUMN: tl.constexpr, RANK: tl.constexpr, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, ALIKE: tl.constexpr, SIDE: tl.constexpr,
    BLOCK: tl.constexpr, PIECES: tl.constexpr, EARLY: tl.constexpr, THREADS: tl.constexpr,
    SPLITS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """The programs of a group split each row into equal parts. The groups are persistent: they take
    the rows in turn.

    A row has one mailbox for each program and field, sorted by field first. Columns have one for
    each program, column and field.
    """
    COMPUTE: tl.constexpr = compute_type(T)
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    WIDTH: tl.constexpr = SIDE * VECTOR if COLUMN else 1
    program = tl.program_id(0).to(tl.int64)
    if COLUMN:
        programs, size = (n + BLOCK - 1) // BLOCK, BLOCK
    else:
        programs, size = part_of_row(n, VECTOR, PEELED, BLOCK * PIECES, SPLITS)
    MAILBOXES: tl.constexpr = most_splits(SPLITS)
    group, split = program // programs, program % programs
    groups = tl.num_programs(0) // programs
    part = split * size
    # The part's offset is added to the rows' starts, so it takes no registers for each access.
    length = tl.minimum(tl.maximum(n - part, 0), size).to(tl.int32)
    weight = None if weight is None else weight + part
    bias = None if bias is None else bias + part
    every = tl.arange(0, MAILBOXES)
    is_split, every = every < programs, tl.minimum(every, programs.to(tl.int32) - 1)
    if COLUMN:
        column = tl.arange(0, WIDTH)[None, :]
        sent, received = split * WIDTH + column, (every * WIDTH)[:, None] + column
        is_split = is_split[:, None] & (column >= 0)
    else:
        sent, received, is_split = split, every[None, :], is_split[None, :]
    step = programs * WIDTH
    # An operation with `finish` is pipelined if programs have several rows: loads of the next rows
    # are in flight. A program collects a row's states only after it has published those of its
    # next row. It holds the row until then, so it hardly ever waits. If its rows are ALIKE, it
    # loads its part of weight and bias only once. Other peeled rows would have those in flight
    # too, and so much shared memory that fewer programs run. Edges of 16 bits are copied as words,
    # because no copy has fewer than four bytes.
    PIPELINED: tl.constexpr = FINISH is not None and EARLY
    SIZE: tl.constexpr = output.dtype.element_ty.primitive_bitwidth // 8
    HELD_BYTES: tl.constexpr = BLOCK * PIECES * SIZE // THREADS
    LOADED: tl.constexpr = ALIKE and (PIPELINED or HELD_BYTES <= MOST_EARLY_BYTES)
    if LOADED:
        row = side_by_side(group, SIDE, VECTOR, COLUMN)
        first = row_offsets(row, part, sizes, starts, strides, steps, 0, RANK)
        shift, begin, stop = part_of_rows(output, first, n, part, size, length, VECTOR, PEELED)
        weight = load_parameter_pieces(
            weight, shift, 0, begin, stop, BLOCK, PIECES, COLUMN, VECTOR, ALIGNED
        )
        bias = load_parameter_pieces(
            bias, shift, 0, begin, stop, BLOCK, PIECES, COLUMN, VECTOR, ALIGNED
        )
    tiles = (count + SIDE - 1) // SIDE
    end = tl.where(group < tiles, tiles + groups, tiles) if PIPELINED else tiles
    if PIPELINED:
        before = no_pieces(SIDE, BLOCK, PIECES, VECTOR, ALIGNED, T)
    IN_FLIGHT: tl.constexpr = STAGES if PIPELINED and (ALIKE or not PEELED) else 1
    WORDS: tl.constexpr = PEELED and IN_FLIGHT > 1 and T.primitive_bitwidth == 16
    for tile in tl.range(group, end, groups, num_stages=IN_FLIGHT):
        row = side_by_side(tl.full((), tile, tl.int64), SIDE, VECTOR, COLUMN)
        row_mask = row < count
        first = row_offsets(row, part, sizes, starts, strides, steps, 0, RANK)
        shift, begin, stop = part_of_rows(output, first, n, part, size, length, VECTOR, PEELED)
        in_first = row_offsets(row, part, sizes, starts, strides, steps, 1, RANK) - shift
        firsts = (in_first, in_first) if len(inputs) == 1 else (
            in_first, in_first,
            row_offsets(row, part, sizes, starts, strides, steps, 2, RANK) - shift,
        )  # fmt: skip
        held = load_pieces(
            0, PIECES if WORDS else pieces_of(PIECES, VECTOR, ALIGNED, COLUMN), inputs, firsts,
            steps, 0, begin, stop, row_mask, OTHER, LOADS, HOLD, T, BLOCK, PIECES, COLUMN, STEPS,
            VECTOR, ALIGNED,
        )  # fmt: skip
        if WORDS:
            edges = load_all_edges(inputs, firsts, begin, stop, row, count, T, VECTOR)
            held += (edges if HOLD is None else (HOLD(edges, T),),)
        states = reduce_pieces(
            held, 0, begin, stop, row_mask, REDUCE, COMBINE, T, BLOCK, PIECES, COLUMN, VECTOR,
            ALIGNED,
        )  # fmt: skip
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
            # The first row has none before it, so it collects its own states, which nobody uses.
            boxes = mailboxes + tl.maximum(tile - groups, group) * boxes_of_tile
            held, before = before, held
        if PHASE != 1:
            nothing = NONE(tl.full(is_split.shape, 0.0, COMPUTE), T)
            if COLUMN:
                whole = FOLD(collect_tile(boxes, received, step, is_split, nothing), n, 0, T)
            else:
                pack: tl.constexpr = max(1, MAILBOXES // THREADS)
                whole = FOLD(collect(boxes, received, step, is_split, nothing, pack), n, ALL, T)
            results = finish_rows(
                whole, statistics, row, row_mask & (split == 0), n, sizes, starts[-1], strides[-1],
                numbers, FINISH, T, RANK,
            )  # fmt: skip
            first = row_offsets(row, part, sizes, starts, strides, steps, 0, RANK)
            shift, begin, stop = part_of_rows(output, first, n, part, size, length, VECTOR, PEELED)
            first -= shift
            if FINISH is None:
                held = keep_pieces_narrow(
                    held, output, first, steps[0], begin, stop, row_mask, n, BLOCK, PIECES,
                    COLUMN, STEPS, VECTOR, ALIGNED,
                )  # fmt: skip
            map_pieces(
                output, second, weight, bias, LOADED, held, results, first, steps[0], shift, 0,
                begin, stop, row_mask, MAP, FINISH, T, BLOCK, PIECES, COLUMN, STEPS, VECTOR,
                ALIGNED,
            )  # fmt: skip


@triton.jit
def part_of_rows(output, first, n, part, size, length, VECTOR: tl.constexpr, PEELED: tl.constexpr):
    """How far each row is shifted, and the range of the part's elements, counted from the part's
    start.

    `first` is the offset in the output at which the part would begin if rows were not shifted.
    """
    shift, begin, stop = 0, 0, length
    if PEELED:
        shift = row_shift(output, first, VECTOR, True)  # every part starts at a whole access
        begin = tl.minimum(tl.maximum(shift - part, 0), size).to(tl.int32)
        stop = tl.minimum(tl.maximum(shift + n - part, 0), size).to(tl.int32)
    return shift, begin, stop


@triton.jit
def no_pieces(
    SIDE: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Zeros, as pieces of rows that an operation with `finish` holds."""
    pieces = ()
    for p in tl.static_range(pieces_of(PIECES, VECTOR, ALIGNED, False)):
        pieces += (no_tile(SIDE, width_of(p, PIECES, BLOCK, VECTOR), T),)  # type: ignore[assignment]
    return pieces


@triton.jit
def no_tile(SIDE: tl.constexpr, SIZE: tl.constexpr, T: tl.constexpr):
    return (tl.full((SIDE, SIZE), 0.0, compute_type(T)).to(T),)


@triton.jit
def keep_pieces_narrow(
    held, output, first, step, begin, end, row_mask, n, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    kept = ()
    for p in tl.static_range(len(held)):
        index = piece_index(p, 0, begin, end, BLOCK, PIECES, VECTOR)
        pointers = tile_pointers(
            output, first, step, index, COLUMN, STEPS, VECTOR,
            is_whole(p, PIECES, VECTOR, ALIGNED, COLUMN),
        )  # fmt: skip
        kept += (keep_narrow(held[p], pointers, n),)  # type: ignore[assignment]
    return kept
