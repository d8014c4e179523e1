"""How rows of arrays are walked in a kernel that reduces each to a state and then maps it.

Twin of csrc/include/diglot/row_reduce.cuh. An operation is functions here, on whole tiles, whose
states are tuples:

    reduce(values, AXIS, T)   the states of a tile's rows; `values` has a tile for each input
    combine(a, b, T)          of two parts of the rows
    none(zeros, T)            of nothing, of the shape of `zeros`
    fold(states, AXIS, T)     of a tile of states: along an axis, which stays, or ALL: of scalars
    map(states, values, T)    the output's tile, in the type that is computed in

Rows are the second dimension of a tile (rows, elements), or, as columns, the first of one
(elements, accesses side by side, elements of an access). A row is held in registers by one program
while it fits. Triton has no memory in which a program could keep more of it: a longer row is shared
by programs that run at once, each of which holds a part and tells the others its state
(row_exchange.py); or, where programs cannot wait for each other, it is read twice, in tiles, whose
states are combined by threads (reduce.py), and across them at last.
"""

import triton
import triton.language as tl

from .elementwise import strided_offset
from .reduce import ALL, BY_THREAD
from .row_exchange import collect, publish
from .types import compute_type, convert, opaque

ROWS, TILES, COLUMNS, COLUMN_TILES, SHARED_ROWS, SHARED_COLUMNS = (
    tl.constexpr(0),
    tl.constexpr(1),
    tl.constexpr(2),
    tl.constexpr(3),
    tl.constexpr(4),
    tl.constexpr(5),
)
STAGES = tl.constexpr(3)  # tiles in flight, where there is a loop


@triton.jit
def tile_pointers(
    pointer, starts, step, index,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Pointers to the elements with numbers `index` of the rows that begin at `starts`."""
    first = pointer + starts
    if COLUMN:
        pointers = first[None, :] + (index * step)[:, None]
        if ALIGNED:
            pointers = tl.multiple_of(pointers, [16, 16])
        result = pointers[:, :, None] + tl.arange(0, VECTOR)[None, None, :]
    else:
        if ALIGNED:
            first = tl.multiple_of(first, 16)
        if STEPS:
            result = first[:, None] + (index * step)[None, :]
        else:
            result = first[:, None] + index[None, :]
    return result


@triton.jit
def tile_mask(index, n, there, COLUMN: tl.constexpr):
    """Which elements of a tile are there: those below n of rows that are."""
    if COLUMN:
        mask = (index < n)[:, None, None] & there[None, :, None]
    else:
        mask = (index < n)[None, :] & there[:, None]
    return mask


@triton.jit
def _load_second(
    inputs, starts, steps, index, mask, OTHER: tl.constexpr, POLICY: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    at = tile_pointers(inputs[1], starts[2], steps[2], index, COLUMN, STEPS, VECTOR, ALIGNED)
    return tl.load(at, mask=mask, other=OTHER, eviction_policy=POLICY)


@triton.jit
def load_tiles(
    inputs, starts, steps, index, mask, OTHER: tl.constexpr, POLICY: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A tile of each input; OTHER where nothing is there."""
    at = tile_pointers(inputs[0], starts[1], steps[1], index, COLUMN, STEPS, VECTOR, ALIGNED)
    first = tl.load(at, mask=mask, other=OTHER, eviction_policy=POLICY)
    return (first,) if len(inputs) == 1 else (first, _load_second(
        inputs, starts, steps, index, mask, OTHER, POLICY, COLUMN, STEPS, VECTOR, ALIGNED
    ))  # fmt: skip


@triton.jit
def by_thread(values, VECTOR: tl.constexpr, THREADS: tl.constexpr):
    """Tiles of one row as (accesses, threads, elements of an access): a reduction over all but the
    threads is one in registers.
    """
    BLOCK: tl.constexpr = values[0].shape[1]
    ACCESSES: tl.constexpr = BLOCK // (THREADS * VECTOR)
    SHAPE: tl.constexpr = (ACCESSES, THREADS, VECTOR)
    first = tl.reshape(values[0], SHAPE)
    return (first,) if len(values) == 1 else (first, tl.reshape(values[1], SHAPE))


@triton.jit
def all_opaque(values):
    return (opaque(values[0]),) if len(values) == 1 else (opaque(values[0]), opaque(values[1]))


@triton.jit
def anchored(values, at, n):
    """The same values: a load that never happens makes the compiler go on in their layout, and
    bring the few states into it, instead of the values into that of the states.
    """
    at = at.to(tl.pointer_type(values[0].dtype), bitcast=True)
    first = tl.load(at, mask=tl.full(at.shape, n < 0, tl.int1), other=values[0])
    return (first,) if len(values) == 1 else (first, values[1])


@triton.jit
def load_share(
    inputs, tile, n, count, sizes, starts, strides, steps, index, OTHER: tl.constexpr,
    COLUMN: tl.constexpr, RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    row = tl.full((), tile, tl.int64) * SIDE + tl.arange(0, SIDE)
    at = strided_offset(row, sizes, starts[1], strides[1], RANK, True)
    firsts = (at, at) if len(inputs) == 1 else (
        at, at, strided_offset(row, sizes, starts[2], strides[2], RANK, True)
    )  # fmt: skip
    mask = tile_mask(index, n, row < count, COLUMN)
    return load_tiles(inputs, firsts, steps, index, mask, OTHER, "", COLUMN, STEPS, VECTOR, ALIGNED)


@triton.jit
def share_rows(
    inputs, words, output, n, count, sizes, starts, strides, steps,
    REDUCE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr, MAP: tl.constexpr,
    OTHER: tl.constexpr, T: tl.constexpr, COLUMN: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, SHARES: tl.constexpr, EARLY: tl.constexpr,
    PHASE: tl.constexpr,
):  # fmt: skip
    """The programs of a group share rows, BLOCK elements of each for a program; the groups walk
    them in turn.

    A row's words are those of its first field, one for each program, then those of the next. Of
    columns they are as many for each program as it has columns.
    """
    COMPUTE: tl.constexpr = compute_type(T)
    WIDTH: tl.constexpr = SIDE * VECTOR if COLUMN else 1
    program = tl.program_id(0).to(tl.int64)
    programs = (n + BLOCK - 1) // BLOCK  # of a group
    group, share = program // programs, program % programs
    groups = tl.num_programs(0) // programs
    index = share * BLOCK + tl.arange(0, BLOCK)
    every = tl.arange(0, SHARES).to(tl.int64)
    if COLUMN:
        column = (tl.arange(0, SIDE) * VECTOR)[:, None] + tl.arange(0, VECTOR)[None, :]
        own, all = share * WIDTH + column[None], (every * WIDTH)[:, None, None] + column[None]
        is_share = (every < programs)[:, None, None] & (column[None] >= 0)
    else:
        own, all, is_share = share, every[None, :], (every < programs)[None, :]
    if EARLY:
        ahead = load_share(
            inputs, group, n, count, sizes, starts, strides, steps, index, OTHER,
            COLUMN, RANK, STEPS, VECTOR, ALIGNED, SIDE,
        )  # fmt: skip
    for tile in range(group, (count + SIDE - 1) // SIDE, groups):
        if EARLY:
            values = ahead
        else:
            values = load_share(
                inputs, tile, n, count, sizes, starts, strides, steps, index, OTHER,
                COLUMN, RANK, STEPS, VECTOR, ALIGNED, SIDE,
            )  # fmt: skip
        states = REDUCE(values, 0 if COLUMN else 1, T)
        first = tile * (programs * len(states) * WIDTH)
        if PHASE != 2:
            publish(words, first + own, programs * WIDTH, states)
        if EARLY:
            ahead = load_share(
                inputs, tile + groups, n, count, sizes, starts, strides, steps, index, OTHER,
                COLUMN, RANK, STEPS, VECTOR, ALIGNED, SIDE,
            )  # fmt: skip
        if PHASE != 1:
            row = tl.full((), tile, tl.int64) * SIDE + tl.arange(0, SIDE)
            mask = tile_mask(index, n, row < count, COLUMN)
            nothing = NONE(tl.full(is_share.shape, 0.0, COMPUTE), T)
            parts = collect(words, first + all, programs * WIDTH, is_share, nothing)
            whole = FOLD(parts, 0 if COLUMN else ALL, T)
            out_at = strided_offset(row, sizes, starts[0], strides[0], RANK, True)
            at = tile_pointers(output, out_at, steps[0], index, COLUMN, STEPS, VECTOR, ALIGNED)
            if COLUMN:
                values = anchored(values, at, n)
            result = convert(MAP(whole, all_opaque(values), T), output.dtype.element_ty)
            tl.store(at, result, mask=mask)


@triton.jit
def reduce_then_map_rows(
    inputs, words, output, n, count, sizes, starts, strides, steps,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr,
    MAP: tl.constexpr, OTHER: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
    SHARES: tl.constexpr, EARLY: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """output = map(states, inputs), where the states are those of whole rows.

    Args:
        inputs: one array, or two.
        words: of programs that share rows, zeros, as row_exchange.py has them; or None.
        n: accesses of a row; of columns, elements.
        count: rows; of columns, accesses side by side.
        sizes: of the other dimensions, the fastest first.
        starts, strides, steps: of each array, the output first: the offset of the first row, the
            strides of the other dimensions, and from an element of a row to the next.
        OTHER: stands for elements that are not there.
        T: the type for which is computed.
        RANK: how many other dimensions there are.
        STEPS: whether a step is not 1.
        VECTOR: elements of an access.
        ALIGNED: whether all accesses are at multiples of 16 bytes.
        SIDE: rows of a program; of columns, accesses side by side.
        BLOCK: elements of a row in a tile.
        SHARES: of programs that share a row, not less than there are; with the columns of a
            program, not less than its threads.
        PHASE: of these, 1 or 2, or all.
    """
    COMPUTE: tl.constexpr = compute_type(T)
    OUT: tl.constexpr = output.dtype.element_ty
    COLUMN: tl.constexpr = (KIND == COLUMNS) | (KIND == COLUMN_TILES) | (KIND == SHARED_COLUMNS)
    row = tl.program_id(0).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    there = row < count
    out_at = strided_offset(row, sizes, starts[0], strides[0], RANK, True)
    in_at = strided_offset(row, sizes, starts[1], strides[1], RANK, True)
    firsts = (out_at, in_at) if len(inputs) == 1 else (
        out_at, in_at, strided_offset(row, sizes, starts[2], strides[2], RANK, True)
    )  # fmt: skip
    if not COLUMN:
        n = n * VECTOR  # a multiple, as the compiler sees: no access is cut by the end
    index = tl.arange(0, BLOCK).to(tl.int64)
    if (KIND == SHARED_ROWS) | (KIND == SHARED_COLUMNS):
        share_rows(
            inputs, words, output, n, count, sizes, starts, strides, steps,
            REDUCE, NONE, FOLD, MAP, OTHER, T, KIND == SHARED_COLUMNS,
            RANK, STEPS, VECTOR, ALIGNED, SIDE, BLOCK, SHARES, EARLY, PHASE,
        )  # fmt: skip
    elif (KIND == ROWS) | (KIND == COLUMNS):
        mask = tile_mask(index, n, there, COLUMN)
        values = load_tiles(
            inputs, firsts, steps, index, mask, OTHER, "", COLUMN, STEPS, VECTOR, ALIGNED
        )
        states = REDUCE(values, 0 if COLUMN else 1, T)
        at = tile_pointers(output, out_at, steps[0], index, COLUMN, STEPS, VECTOR, ALIGNED)
        tl.store(at, convert(MAP(states, all_opaque(values), T), OUT), mask=mask)
    else:
        if COLUMN:
            states = NONE(tl.full((1, SIDE, VECTOR), 0.0, COMPUTE), T)
        else:
            states = NONE(tl.full((1, THREADS, 1), 0.0, COMPUTE), T)
        # What is read here is read again, and is to stay in the L2 cache until then.
        for first in tl.range(0, n, BLOCK, num_stages=STAGES):
            mask = tile_mask(first + index, n, there, COLUMN)
            values = load_tiles(
                inputs, firsts, steps, first + index, mask, OTHER, "evict_last",
                COLUMN, STEPS, VECTOR, ALIGNED,
            )  # fmt: skip
            if COLUMN:
                states = COMBINE(states, REDUCE(values, 0, T), T)
            else:
                states = COMBINE(
                    states, REDUCE(by_thread(values, VECTOR, THREADS), BY_THREAD, T), T
                )
        if not COLUMN:
            states = FOLD(states, ALL, T)
        for first in tl.range(0, n, BLOCK, num_stages=STAGES):
            mask = tile_mask(first + index, n, there, COLUMN)
            values = load_tiles(
                inputs, firsts, steps, first + index, mask, OTHER, "evict_first",
                COLUMN, STEPS, VECTOR, ALIGNED,
            )  # fmt: skip
            at = tile_pointers(
                output, out_at, steps[0], first + index, COLUMN, STEPS, VECTOR, ALIGNED
            )
            tl.store(at, convert(MAP(states, values, T), OUT), mask=mask)
