"""How rows of arrays are walked in a kernel that reduces each to a state and then maps it.

Twin of csrc/include/diglot/row_reduce.cuh. An operation is functions here, on whole tiles, whose
states are tuples:

    reduce(values, mask, left, AXIS, T)
                              the states of a tile's rows; `values` has a tile for each input,
                              `mask` says which elements are there, `left` how many of a row
    combine(a, b, T)          of two parts of the rows
    none(zeros, T)            of nothing, of the shape of `zeros`
    fold(states, T)           of a whole tile of states: one state of scalars
    map(states, values, T)    the output's tile, in the type that is computed in

An operation along rows, not columns, may have more:

    hold(values, T)           the one tile that is held of the inputs' tiles, instead of them; it is
                              a second output
    finish(states, n, numbers, T)
                              of the states of whole rows of n elements: what is mapped with, and
                              written to arrays that have one element for each row

and arrays that are the same for every row, whose tiles follow the held ones in `map`.

Rows are the second dimension of a tile (rows, elements), or, as columns, the first of one
(elements, accesses side by side, elements of an access). A row is held in registers by one program
while it fits; Triton has no memory in which a program could keep more of it, so that a longer one
is read twice, in tiles. Their states are combined by threads (reduce.py), and across them at last.
"""

import triton
import triton.language as tl

from .elementwise import strided_offset
from .reduce import BY_THREAD
from .types import compute_type, convert

ROWS, TILES, COLUMNS, COLUMN_TILES = (
    tl.constexpr(0),
    tl.constexpr(1),
    tl.constexpr(2),
    tl.constexpr(3),
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
def load_shared(pointer, index, n, ALIGNED: tl.constexpr):
    """A tile, of one row, of an array that is the same for every row; None if it is not given."""
    values = None
    if pointer is not None:
        at = (pointer + index)[None, :]
        if ALIGNED:
            at = tl.multiple_of(at, [16, 16])
        values = tl.load(at, mask=(index < n)[None, :], other=0.0)
    return values


@triton.jit
def store_statistic(pointer, value, at, there):
    """Stores one element for each row to an array, if it is given."""
    if pointer is not None:
        if len(value.shape) == 0:
            tl.store(pointer + at, tl.broadcast_to(value, at.shape), mask=there)
        else:
            tl.store((pointer + at)[:, None], value, mask=there[:, None])


@triton.jit
def by_thread(tile, VECTOR: tl.constexpr, THREADS: tl.constexpr):
    """A tile of one row as (accesses, threads, elements of an access): a reduction over all but the
    threads is one in registers.
    """
    ACCESSES: tl.constexpr = tile.shape[1] // (THREADS * VECTOR)
    return tl.reshape(tile, (ACCESSES, THREADS, VECTOR))


@triton.jit
def all_by_thread(values, VECTOR: tl.constexpr, THREADS: tl.constexpr):
    first = by_thread(values[0], VECTOR, THREADS)
    return (first,) if len(values) == 1 else (first, by_thread(values[1], VECTOR, THREADS))


@triton.jit
def load_held(
    inputs, starts, steps, index, mask, OTHER: tl.constexpr, POLICY: tl.constexpr,
    HOLD: tl.constexpr, T: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """What an operation holds of the inputs' tiles."""
    values = load_tiles(
        inputs, starts, steps, index, mask, OTHER, POLICY, COLUMN, STEPS, VECTOR, ALIGNED
    )
    return values if HOLD is None else (HOLD(values, T),)


@triton.jit
def map_tile(
    output, second, shared, values, states, start, step, index, mask, n,
    MAP: tl.constexpr, T: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Stores a tile of the output, and of the second one, which is what is held."""
    if second is not None:
        at = tile_pointers(second, start, step, index, COLUMN, STEPS, VECTOR, ALIGNED)
        tl.store(at, values[0], mask=mask)
    every = values if len(shared) == 0 else (
        values[0],
        load_shared(shared[0], index, n, ALIGNED),
        load_shared(shared[1], index, n, ALIGNED),
    )  # fmt: skip
    at = tile_pointers(output, start, step, index, COLUMN, STEPS, VECTOR, ALIGNED)
    tl.store(at, convert(MAP(states, every, T), output.dtype.element_ty), mask=mask)


@triton.jit
def finish_rows(
    states, statistics, row, there, n, sizes, start, strides, numbers,
    FINISH: tl.constexpr, T: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """What is mapped with, of the states of whole rows; stored, where that is asked for."""
    results = states
    if FINISH is not None:
        results = FINISH(states, n, numbers, T)
        at = strided_offset(row, sizes, start, strides, RANK, True)
        for k in tl.static_range(len(statistics)):
            store_statistic(statistics[k], results[k], at, there)
    return results


@triton.jit
def reduce_then_map_rows(
    inputs, output, n, count, sizes, starts, strides, steps,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr,
    MAP: tl.constexpr, OTHER: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
    second=None, shared=(), statistics=(), numbers=(),
    HOLD: tl.constexpr = None, FINISH: tl.constexpr = None,
):  # fmt: skip
    """output = map(states, inputs), where the states are those of whole rows.

    Args:
        inputs: one array, or two.
        n: accesses of a row; of columns, elements.
        count: rows; of columns, accesses side by side.
        sizes: of the other dimensions, the fastest first.
        starts, strides, steps: of each array, the output first, and the statistics, if there are
            some, as one array last: the offset of the first row, the strides of the other
            dimensions, and from an element of a row to the next.
        OTHER: stands for elements that are not there.
        T: the type for which is computed.
        RANK: how many other dimensions there are.
        STEPS: whether a step is not 1.
        VECTOR: elements of an access.
        ALIGNED: whether all accesses are at multiples of 16 bytes.
        SIDE: rows of a program; of columns, accesses side by side.
        BLOCK: elements of a row in a tile.
        second: an array that lies as the output does, for what is held; or None.
        shared: none or two arrays of n elements without gaps, of which each may be None.
        statistics: arrays of one element for each row, of which each may be None.
        numbers: arguments of `finish`.
    """
    COMPUTE: tl.constexpr = compute_type(T)
    COLUMN: tl.constexpr = (KIND == COLUMNS) | (KIND == COLUMN_TILES)
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
    if (KIND == ROWS) | (KIND == COLUMNS):
        mask = tile_mask(index, n, there, COLUMN)
        values = load_held(
            inputs, firsts, steps, index, mask, OTHER, "", HOLD, T, COLUMN, STEPS, VECTOR, ALIGNED
        )
        states = REDUCE(values, mask, n, 0 if COLUMN else 1, T)
        results = finish_rows(
            states, statistics, row, there, n, sizes, starts[-1], strides[-1], numbers,
            FINISH, T, RANK,
        )  # fmt: skip
        map_tile(
            output, second, shared, values, results, out_at, steps[0], index, mask, n, MAP, T,
            COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
    else:
        if COLUMN:
            states = NONE(tl.full((1, SIDE, VECTOR), 0.0, COMPUTE), T)
        else:
            states = NONE(tl.full((1, THREADS, 1), 0.0, COMPUTE), T)
        # What is read here is read again, and is to stay in the L2 cache until then.
        for first in tl.range(0, n, BLOCK, num_stages=STAGES):
            mask = tile_mask(first + index, n, there, COLUMN)
            values = load_held(
                inputs, firsts, steps, first + index, mask, OTHER, "evict_last", HOLD, T,
                COLUMN, STEPS, VECTOR, ALIGNED,
            )  # fmt: skip
            left = tl.minimum(n - first, BLOCK)
            if COLUMN:
                states = COMBINE(states, REDUCE(values, mask, left, 0, T), T)
            else:
                parts = all_by_thread(values, VECTOR, THREADS)
                mask = by_thread(mask, VECTOR, THREADS)
                states = COMBINE(states, REDUCE(parts, mask, left, BY_THREAD, T), T)
        if not COLUMN:
            states = FOLD(states, T)
        results = finish_rows(
            states, statistics, row, there, n, sizes, starts[-1], strides[-1], numbers,
            FINISH, T, RANK,
        )  # fmt: skip
        for first in tl.range(0, n, BLOCK, num_stages=STAGES):
            mask = tile_mask(first + index, n, there, COLUMN)
            values = load_held(
                inputs, firsts, steps, first + index, mask, OTHER, "evict_first", HOLD, T,
                COLUMN, STEPS, VECTOR, ALIGNED,
            )  # fmt: skip
            map_tile(
                output, second, shared, values, results, out_at, steps[0], first + index, mask, n,
                MAP, T, COLUMN, STEPS, VECTOR, ALIGNED,
            )  # fmt: skip
