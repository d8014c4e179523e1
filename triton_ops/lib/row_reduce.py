"""How rows of arrays are walked in a kernel that reduces each to a state and then maps it.

Twin of csrc/include/diglot/row_reduce.cuh. An operation is functions here, on whole tiles, whose
states are tuples:

    reduce(values, mask, left, AXIS, T)
                              the states of a tile's rows; `values` has a tile for each input,
                              `mask` says which elements are there, `left` how many of a row
    combine(a, b, T)          of two parts of the rows
    none(zeros, T)            of nothing, of the shape of `zeros`
    fold(states, AXIS, T)     of a tile of states: along an axis, which stays, or ALL: of scalars
    map(states, values, T)    the output's tile, in the type that is computed in

An operation along rows, not columns, may also have a weight and a bias, the same for every row:
map(states, values, weight, bias, T) gets a tile of each that is given. Then there are

    hold(values, T)           the one tile that is held of the inputs' tiles, instead of them; it is
                              a second output; or there is none
    finish(states, n, numbers, T)
                              of the states of whole rows of n elements: what is mapped with, and
                              written to arrays that have one element for each row

Rows are the second dimension of a tile (rows, elements), or, as columns, the first of one
(elements, columns), whose columns are those of whole accesses. A row is held in registers by one
program while it fits. Triton has no memory in which a program could keep more of it: a longer row
is shared by programs that run at once, each of which holds a part and tells the others its state
(row_exchange.py); or, where programs cannot wait for each other, it is read twice, in tiles, whose
states are combined by threads (reduce.py), and across them at last.

Tall columns, of which a program could only hold a narrow strip, take two launches, both of which
stream strips of 512 bytes. The first one reduces chunks of the columns; the second one combines the
chunks' states and maps, in reverse order: what was read last is in the L2 cache. What an operation
does not reduce the first one does not read: Triton's compiler leaves it out.
"""

import triton
import triton.language as tl

from .elementwise import strided_offset
from .reduce.states import ALL, BY_THREAD
from .sync.mailbox import collect, collect_tile, publish
from .types import compute_type, convert, opaque, widen

ROWS, TILES, COLUMNS, COLUMN_TILES, SHARED_ROWS, SHARED_COLUMNS, REDUCED_COLUMNS, MAPPED_COLUMNS = (
    tl.constexpr(0),
    tl.constexpr(1),
    tl.constexpr(2),
    tl.constexpr(3),
    tl.constexpr(4),
    tl.constexpr(5),
    tl.constexpr(6),
    tl.constexpr(7),
)
# What is read stays in the L2 cache longer than what is written, which so goes to memory all along:
# faster with arrays beyond the cache. (What a pipeline loads is not told apart.)
LOADS = tl.constexpr("evict_last")
STAGES = tl.constexpr(3)  # tiles in flight, where there is a loop
# Of columns that take two launches: tiles in flight in the first one, and states that a program of
# the second one loads at once.
CHUNK_STAGES, CHUNK_STATES = tl.constexpr(5), tl.constexpr(1024)


@triton.jit
def side_by_side(tile, SIDE: tl.constexpr, VECTOR: tl.constexpr, COLUMN: tl.constexpr):
    """The numbers of a tile's rows; of its columns, those of the accesses that they belong to."""
    if COLUMN:
        result = tile * SIDE + tl.arange(0, SIDE * VECTOR) // VECTOR
    else:
        result = tile * SIDE + tl.arange(0, SIDE)
    return result


@triton.jit
def tile_pointers(
    pointer, starts, step, index,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Pointers to the elements with numbers `index` of the rows that begin at `starts`."""
    first = pointer + starts
    if COLUMN:
        first += tl.arange(0, starts.shape[0]) % VECTOR
        result = first[None, :] + (index * tl.full((), step, index.dtype))[:, None]
        result = tl.max_contiguous(result, [1, VECTOR])
        if ALIGNED:
            result = tl.multiple_of(result, [1, 16])
    else:
        if ALIGNED:
            first = tl.multiple_of(first, 16)
        if STEPS:
            result = first[:, None] + (index.to(tl.int64) * step)[None, :]
        else:
            result = first[:, None] + index[None, :]
    return result


@triton.jit
def tile_mask(index, n, there, COLUMN: tl.constexpr):
    """Which elements of a tile are there: those below n of rows that are."""
    if COLUMN:
        mask = (index < n)[:, None] & there[None, :]
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
        values = tl.load(at, mask=(index < n)[None, :], other=0.0, eviction_policy=LOADS)
    return values


@triton.jit
def store_statistic(pointer, value, at, there):
    """Stores one element for each row to an array."""
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
def all_opaque(values):
    return (opaque(values[0]),) if len(values) == 1 else (opaque(values[0]), opaque(values[1]))


@triton.jit
def widened_tile(tile, T: tl.constexpr):
    """The same in the type that is computed in, in which it is not kept; or None."""
    result = None
    if tile is not None:
        result = widen(opaque(tile), compute_type(T))
    return result


@triton.jit
def map_tile(
    output, second, weight, bias, values, states, start, step, index, mask,
    MAP: tl.constexpr, FINISH: tl.constexpr, T: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Stores a tile of the output, and of the second one, which is what is held."""
    values = all_opaque(values)
    if second is not None:
        at = tile_pointers(second, start, step, index, COLUMN, STEPS, VECTOR, ALIGNED)
        tl.store(at, values[0], mask=mask)
    if FINISH is None:
        result = MAP(states, values, T)
    else:
        result = MAP(states, values, weight, bias, T)
    at = tile_pointers(output, start, step, index, COLUMN, STEPS, VECTOR, ALIGNED)
    tl.store(at, convert(result, output.dtype.element_ty), mask=mask)


@triton.jit
def finish_rows(
    states, statistics, row, there, n, sizes, start, strides, numbers,
    FINISH: tl.constexpr, T: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """What is mapped with, of the states of whole rows; stored, where that is asked for."""
    results = states
    if FINISH is not None:
        results = FINISH(states, n, numbers, T)
        if statistics is not None:
            at = strided_offset(row, sizes, start, strides, RANK, True)
            for k in tl.static_range(len(statistics)):
                store_statistic(statistics[k], results[k], at, there)
    return results


@triton.jit
def kept(values, at, n):
    """The same values, but the compiler does not know that: a load that never happens might change
    them. So narrow ones are kept as they are, instead of as what they were converted to; and what
    follows is in their layout, instead of that of the few states.
    """
    first = unless(n < 0, at, values[0])
    return (first,) if len(values) == 1 else (first, unless(n < 0, at, values[1]))


@triton.jit
def unless(condition, at, values):
    """The values; if a condition holds, what is at `at`."""
    mask = tl.full(at.shape, condition, tl.int1)
    return tl.load(at.to(tl.pointer_type(values.dtype), bitcast=True), mask=mask, other=values)


@triton.jit
def offsets(row, part, sizes, starts, strides, steps, A: tl.constexpr, RANK: tl.constexpr):
    """Where parts of rows, from their elements with number `part` on, begin in the A-th array."""
    start = starts[A] + part * steps[A]
    return strided_offset(row, sizes, start, strides[A], RANK, True)


@triton.jit
def share_rows(
    inputs, words, output, n, count, sizes, starts, strides, steps,
    second, weight, bias, statistics, numbers,
    REDUCE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr, MAP: tl.constexpr,
    HOLD: tl.constexpr, FINISH: tl.constexpr,
    OTHER: tl.constexpr, T: tl.constexpr, COLUMN: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr, SHARES: tl.constexpr,
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
    part = share * BLOCK
    left = tl.minimum(n - part, BLOCK)
    # What all threads share is added to where rows begin: it takes no registers for each access.
    index = tl.arange(0, BLOCK)
    weight = None if weight is None else weight + part
    bias = None if bias is None else bias + part
    every = tl.arange(0, SHARES)
    is_share, every = every < programs, tl.minimum(every, programs.to(tl.int32) - 1)
    if COLUMN:
        column = tl.arange(0, WIDTH)[None, :]
        own, all = share * WIDTH + column, (every * WIDTH)[:, None] + column
        is_share = is_share[:, None] & (column >= 0)
    else:
        own, all, is_share = share, every[None, :], is_share[None, :]
    step = programs * WIDTH
    # A weight and a bias, of which a program has one part, are kept. Where there may be some, loads
    # of the next rows are on their way, and a row's states are asked for only when those of the
    # next row have been told, so that a program, which keeps a row until then, hardly ever waits.
    PIPELINED: tl.constexpr = FINISH is not None
    weight = load_shared(weight, index, left, ALIGNED)
    bias = load_shared(bias, index, left, ALIGNED)
    tiles = (count + SIDE - 1) // SIDE
    end = tl.where(group < tiles, tiles + groups, tiles) if PIPELINED else tiles
    if PIPELINED:
        before = tl.full((SIDE, BLOCK), 0.0, COMPUTE).to(T)
    for tile in tl.range(group, end, groups, num_stages=STAGES if PIPELINED else 1):
        row = side_by_side(tl.full((), tile, tl.int64), SIDE, VECTOR, COLUMN)
        there = row < count
        mask = tile_mask(index, left, there, COLUMN)
        first = offsets(row, part, sizes, starts, strides, steps, 1, RANK)
        firsts = (first, first) if len(inputs) == 1 else (
            first, first, offsets(row, part, sizes, starts, strides, steps, 2, RANK)
        )  # fmt: skip
        values = load_held(
            inputs, firsts, steps, index, mask, OTHER, LOADS, HOLD, T, COLUMN, STEPS, VECTOR,
            ALIGNED,
        )  # fmt: skip
        states = REDUCE(values, mask, left, 0 if COLUMN else 1, T)
        of_row = len(states) * step
        own_words = words + tile * of_row
        if COLUMN:
            own_words = tl.multiple_of(own_words, 16)
        if PHASE != 2:
            is_row = tl.full(states[0].shape, tile < tiles, tl.int1) if PIPELINED else None
            publish(own_words, own, step, states, is_row)
        if PIPELINED:
            row -= groups * SIDE
            there = (row >= group * SIDE) & (row < count)
            mask = tile_mask(index, left, there, COLUMN)
            # At first there is none before, and what is not needed is waited for.
            own_words = words + tl.maximum(tile - groups, group) * of_row
            held, before = before, values[0]
            values = (held,)
        if PHASE != 1:
            nothing = NONE(tl.full(is_share.shape, 0.0, COMPUTE), T)
            if COLUMN:
                whole = FOLD(collect_tile(own_words, all, step, is_share, nothing), 0, T)
            else:
                whole = FOLD(
                    collect(own_words, all, step, is_share, nothing, max(1, SHARES // THREADS)),
                    ALL,
                    T,
                )
            results = finish_rows(
                whole, statistics, row, there & (share == 0), n, sizes, starts[-1], strides[-1],
                numbers, FINISH, T, RANK,
            )  # fmt: skip
            out_at = offsets(row, part, sizes, starts, strides, steps, 0, RANK)
            at = tile_pointers(output, out_at, steps[0], index, COLUMN, STEPS, VECTOR, ALIGNED)
            if not PIPELINED:
                values = kept(values, at, n)
            map_tile(
                output, second, widened_tile(weight, T), widened_tile(bias, T), values, results,
                out_at, steps[0], index, mask, MAP, FINISH, T, COLUMN, STEPS, VECTOR, ALIGNED,
            )  # fmt: skip


@triton.jit
def by_depth(tile, DEPTH: tl.constexpr):
    """A tile of columns as (accesses, threads, columns): a reduction over the first axis is one in
    registers.
    """
    return tl.reshape(tile, (tile.shape[0] // DEPTH, DEPTH, tile.shape[1]))


@triton.jit
def all_by_depth(values, DEPTH: tl.constexpr):
    first = by_depth(values[0], DEPTH)
    return (first,) if len(values) == 1 else (first, by_depth(values[1], DEPTH))


@triton.jit
def load_states(words, at, step, mask, none):
    """The states that a launch before has written to words."""
    first = _load_field(words, at, mask, none[0])
    return (first,) if len(none) == 1 else (first, _load_field(words + step, at, mask, none[1]))


@triton.jit
def _load_field(words, at, mask, none):
    bits = tl.load(words + at, mask=mask, other=0)
    return tl.where(mask, bits.to(none.dtype, bitcast=True), none)


@triton.jit
def take_chunk(
    inputs, words, output, n, count, sizes, starts, strides, steps,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr,
    MAP: tl.constexpr, OTHER: tl.constexpr, T: tl.constexpr, MAPS: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Of columns that take two launches: a program's strip of them, and its chunk. Strips side by
    side are read at once. Words are those of the states' first field, for each chunk and column,
    then those of the next.
    """
    COMPUTE: tl.constexpr = compute_type(T)
    WIDTH: tl.constexpr = SIDE * VECTOR
    program = tl.program_id(0).to(tl.int64)
    if MAPS:
        program = tl.num_programs(0) - 1 - program
    strips = (count + SIDE - 1) // SIDE
    strip, chunk = program % strips, program // strips
    chunks = tl.num_programs(0) // strips
    share = ((n + chunks - 1) // chunks + BLOCK - 1) // BLOCK * BLOCK
    begin = chunk * share
    end = tl.minimum(begin + share, n)
    row = side_by_side(strip, SIDE, VECTOR, True)
    there = row < count
    index = tl.arange(0, BLOCK).to(tl.int64)
    out_at = strided_offset(row, sizes, starts[0], strides[0], RANK, True)
    in_at = strided_offset(row, sizes, starts[1], strides[1], RANK, True)
    firsts = (out_at, in_at) if len(inputs) == 1 else (
        out_at, in_at, strided_offset(row, sizes, starts[2], strides[2], RANK, True)
    )  # fmt: skip
    columns = count * VECTOR
    column = strip * WIDTH + tl.arange(0, WIDTH)[None, :]
    step = chunks * columns
    if MAPS:
        DEEP: tl.constexpr = CHUNK_STATES // WIDTH
        nothing = NONE(tl.full((DEEP, WIDTH), 0.0, COMPUTE), T)
        states = nothing
        for base in tl.range(0, chunks, DEEP, num_stages=1):
            every = base + tl.arange(0, DEEP)[:, None]
            mask = (every < chunks) & (column < columns)
            more = load_states(words, every * columns + column, step, mask, nothing)
            states = COMBINE(states, more, T)
        states = FOLD(states, 0, T)
    else:
        DEPTH: tl.constexpr = max(1, THREADS // SIDE)
        states = NONE(tl.full((1, DEPTH, WIDTH), 0.0, COMPUTE), T)
    last = begin + (end - begin - 1) // BLOCK * BLOCK
    for at in tl.range(begin, end, BLOCK, num_stages=STAGES if MAPS else CHUNK_STAGES):
        first = begin + last - at if MAPS else at
        mask = tile_mask(first + index, n, there, True)
        values = load_tiles(
            inputs, firsts, steps, first + index, mask, OTHER,
            "evict_first" if MAPS else "evict_last", True, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
        if MAPS:
            map_tile(
                output, None, None, None, values, states, out_at, steps[0], first + index, mask,
                MAP, None, T, True, STEPS, VECTOR, ALIGNED,
            )  # fmt: skip
        else:
            parts = all_by_depth(values, DEPTH)
            left = tl.minimum(n - first, BLOCK)
            states = COMBINE(states, REDUCE(parts, by_depth(mask, DEPTH), left, 0, T), T)
    if not MAPS:
        whole = FOLD(states, 1, T)
        for field in tl.static_range(len(whole)):
            bits = tl.reshape(whole[field], (1, WIDTH)).to(words.dtype.element_ty, bitcast=True)
            tl.store(words + field * step + chunk * columns + column, bits, mask=column < columns)


@triton.jit
def reduce_then_map_rows(
    inputs, words, output, n, count, sizes, starts, strides, steps,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr,
    MAP: tl.constexpr, OTHER: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
    SHARES: tl.constexpr, PHASE: tl.constexpr,
    second=None, weight=None, bias=None, statistics=None, numbers=None,
    HOLD: tl.constexpr = None, FINISH: tl.constexpr = None,
):  # fmt: skip
    """output = map(states, inputs), where the states are those of whole rows.

    Args:
        inputs: one array, or two.
        words: of programs that share rows, zeros, as row_exchange.py has them; of columns that
            take two launches, room for their states; or None.
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
        SHARES: of programs that share a row, not less than there are.
        PHASE: of these, 1 or 2, or all.
        second: an array that lies as the output does, for what is held; or None.
        weight, bias: arrays of n elements without gaps; or None.
        statistics: arrays of one element for each row; or None: nobody asked for them.
        numbers: arguments of `finish`.
    """
    COMPUTE: tl.constexpr = compute_type(T)
    COLUMN: tl.constexpr = (KIND == COLUMNS) | (KIND == COLUMN_TILES) | (KIND >= SHARED_COLUMNS)
    row = side_by_side(tl.program_id(0).to(tl.int64), SIDE, VECTOR, COLUMN)
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
            second, weight, bias, statistics, numbers, REDUCE, NONE, FOLD, MAP, HOLD, FINISH,
            OTHER, T, KIND == SHARED_COLUMNS, RANK, STEPS, VECTOR, ALIGNED, SIDE, BLOCK,
            THREADS, SHARES, PHASE,
        )  # fmt: skip
    elif (KIND == REDUCED_COLUMNS) | (KIND == MAPPED_COLUMNS):
        take_chunk(
            inputs, words, output, n, count, sizes, starts, strides, steps,
            REDUCE, COMBINE, NONE, FOLD, MAP, OTHER, T, KIND == MAPPED_COLUMNS, RANK, STEPS,
            VECTOR, ALIGNED, SIDE, BLOCK, THREADS,
        )  # fmt: skip
    elif (KIND == ROWS) | (KIND == COLUMNS):
        mask = tile_mask(index, n, there, COLUMN)
        values = load_held(
            inputs, firsts, steps, index, mask, OTHER, LOADS, HOLD, T, COLUMN, STEPS, VECTOR,
            ALIGNED,
        )  # fmt: skip
        states = REDUCE(values, mask, n, 0 if COLUMN else 1, T)
        results = finish_rows(
            states, statistics, row, there, n, sizes, starts[-1], strides[-1], numbers,
            FINISH, T, RANK,
        )  # fmt: skip
        map_tile(
            output, second, load_shared(weight, index, n, ALIGNED),
            load_shared(bias, index, n, ALIGNED), values, results, out_at, steps[0], index, mask,
            MAP, FINISH, T, COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
    else:
        if COLUMN:
            states = NONE(tl.full((1, SIDE * VECTOR), 0.0, COMPUTE), T)
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
            states = FOLD(states, ALL, T)
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
                output, second, load_shared(weight, first + index, n, ALIGNED),
                load_shared(bias, first + index, n, ALIGNED), values, results, out_at, steps[0],
                first + index, mask, MAP, FINISH, T, COLUMN, STEPS, VECTOR, ALIGNED,
            )  # fmt: skip
