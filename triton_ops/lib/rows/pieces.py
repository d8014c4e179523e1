"""The pieces in which a program holds a row, or its part of one.

A tile has a power of two of elements, so a row of 18432 is held in two *blocks*, of 16384 and 2048:
no more than a few lanes are idle. Where rows begin between multiples of 16 bytes, they are
*peeled*. Blocks then begin at the multiple at or before a row's start, and are accessed in whole
accesses, those that lie wholly in the row. The *edges*, what is left of the row on either side, are
a last piece, of two accesses' length, which is accessed element by element.

In CUDA C++ a thread has as many accesses as its row needs, so there are no pieces.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.reduce.states import ALL, BY_THREAD

from .operation import map_tile
from .tile import LOADS, all_by_thread, load_held, load_parameters, tile_mask


@triton.constexpr_function
def is_peeled(vector, aligned, column):
    """Whether rows have accesses of 16 bytes without beginning and ending at multiples of them."""
    return bool(vector > 1 and not aligned and not column)


@triton.constexpr_function
def pieces_of(rest, vector, aligned, column):
    """How many pieces there are: a block, a second one if it has elements, edges if peeled."""
    return 1 + (rest > 0) + is_peeled(vector, aligned, column)


@triton.constexpr_function
def piece_size(piece, block, rest, vector):
    """Elements of a piece."""
    return (block, rest, 2 * vector)[piece if rest > 0 or piece == 0 else 2]


@triton.constexpr_function
def is_whole(piece, rest, vector, aligned, column):
    """Whether a piece's accesses are at multiples of 16 bytes: all but edges are, if peeled."""
    blocks = 1 + (rest > 0)
    return aligned or (is_peeled(vector, aligned, column) and piece < blocks)


@triton.jit
def row_shift(pointer, starts, VECTOR: tl.constexpr, PEELED: tl.constexpr):
    """How many elements past a multiple of 16 bytes each row begins, in every array alike."""
    shift = 0
    if PEELED:
        SIZE: tl.constexpr = pointer.dtype.element_ty.primitive_bitwidth // 8
        shift = (pointer + starts).to(tl.int64, bitcast=True) // SIZE % VECTOR
    return shift


@triton.jit
def whole_accesses(begin, end, VECTOR: tl.constexpr):
    """The range of the whole accesses between two elements; empty ranges begin behind `begin`."""
    first = (begin + VECTOR - 1) // VECTOR * VECTOR
    return first, tl.maximum(end // VECTOR * VECTOR, first)


@triton.jit
def piece(
    P: tl.constexpr, at, begin, end, row_mask, BLOCK: tl.constexpr, REST: tl.constexpr,
    COLUMN: tl.constexpr, VECTOR: tl.constexpr, PEELED: tl.constexpr,
):  # fmt: skip
    """Numbers of a piece's elements, which of them exist, and how many of each row.

    Args:
        P: which piece.
        at: the number of the first block's first element, a multiple of VECTOR.
        begin, end: numbers of the elements that there are; by row if peeled.
    """
    if PEELED:
        first, last = whole_accesses(begin, end, VECTOR)
    if P == (2 if REST > 0 else 1):
        lane = tl.arange(0, 2 * VECTOR)[None, :]
        index = tl.where(lane < VECTOR, first[:, None], last[:, None]) + (lane - VECTOR)
        mask = (index >= begin[:, None]) & (index < end[:, None]) & row_mask[:, None]
        length = (end - begin - (last - first))[:, None]
    else:
        SIZE: tl.constexpr = piece_size(P, BLOCK, REST, VECTOR)
        lane = tl.arange(0, SIZE)
        start = at + P * BLOCK
        index = start + lane
        if PEELED:
            access = (start + lane // VECTOR * VECTOR)[None, :]
            mask = (access >= first[:, None]) & (access < last[:, None]) & row_mask[:, None]
            length = tl.minimum(tl.maximum(last - start, 0), SIZE)
            length = (length - tl.minimum(tl.maximum(first - start, 0), SIZE))[:, None]
        else:
            mask = tile_mask(index, end, row_mask, COLUMN)
            length = tl.minimum(tl.maximum(end - start, 0), SIZE)
    return index, mask, length


@triton.jit
def load_piece(
    P: tl.constexpr, inputs, firsts, steps, at, begin, end, row_mask,
    OTHER: tl.constexpr, POLICY: tl.constexpr, HOLD: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, REST: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """What an operation holds of a piece (`load_held`)."""
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    index, mask, _ = piece(P, at, begin, end, row_mask, BLOCK, REST, COLUMN, VECTOR, PEELED)
    return load_held(
        inputs, firsts, steps, index, mask, OTHER, POLICY, HOLD, T, COLUMN, STEPS, VECTOR,
        is_whole(P, REST, VECTOR, ALIGNED, COLUMN),
    )  # fmt: skip


@triton.jit
def load_parameter_piece(
    P: tl.constexpr, pointer, at, begin, end, BLOCK: tl.constexpr, REST: tl.constexpr,
    COLUMN: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A piece's tile of a weight or bias; None if there is none.

    It is the same for every row. For peeled rows, `pointer` says where each row's copy of it
    begins, which is shifted as the row is (norm/shifted.py).
    """
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    values = None
    if pointer is not None:
        if PEELED:
            index, mask, _ = piece(P, at, begin, end, end > 0, BLOCK, REST, False, VECTOR, True)
            wide = index if len(index.shape) == 2 else index[None, :]
            values = tl.load(pointer[:, None] + wide, mask=mask, other=0.0, eviction_policy=LOADS)
        else:
            SIZE: tl.constexpr = piece_size(P, BLOCK, REST, VECTOR)
            index = at + P * BLOCK + tl.arange(0, SIZE)
            values = load_parameters(pointer, index, end, ALIGNED)
    return values


@triton.jit
def map_piece(
    P: tl.constexpr, output, second, weight, bias, values, states, first, step,
    at, begin, end, row_mask, MAP: tl.constexpr, FINISH: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, REST: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Maps and stores a piece, with its tiles of weight and bias."""
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    index, mask, _ = piece(P, at, begin, end, row_mask, BLOCK, REST, COLUMN, VECTOR, PEELED)
    map_tile(
        output, second, weight, bias, values, states, first, step, index, mask,
        MAP, FINISH, T, COLUMN, STEPS, VECTOR, is_whole(P, REST, VECTOR, ALIGNED, COLUMN),
    )  # fmt: skip


@triton.jit
def load_pieces(
    inputs, firsts, steps, at, begin, end, row_mask, OTHER: tl.constexpr, POLICY: tl.constexpr,
    HOLD: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """What an operation holds of each piece."""
    held = ()
    for p in tl.static_range(pieces_of(REST, VECTOR, ALIGNED, COLUMN)):
        held += (load_piece(  # type: ignore[assignment]
            p, inputs, firsts, steps, at, begin, end, row_mask, OTHER, POLICY, HOLD, T,
            BLOCK, REST, COLUMN, STEPS, VECTOR, ALIGNED,
        ),)  # fmt: skip
    return held


@triton.jit
def load_parameter_pieces(
    pointer, at, begin, end, BLOCK: tl.constexpr, REST: tl.constexpr,
    COLUMN: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Each piece's tile of a weight or bias; None if there is none."""
    loaded = None
    if pointer is not None:
        loaded = ()
        for p in tl.static_range(pieces_of(REST, VECTOR, ALIGNED, COLUMN)):
            loaded += (load_parameter_piece(  # type: ignore[assignment]
                p, pointer, at, begin, end, BLOCK, REST, COLUMN, VECTOR, ALIGNED
            ),)  # fmt: skip
    return loaded


@triton.jit
def accesses_by_thread(
    P: tl.constexpr, at, begin, end, BLOCK: tl.constexpr, REST: tl.constexpr,
    VECTOR: tl.constexpr, PEELED: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Which accesses of a block of one row exist, as (accesses, threads, 1)."""
    SIZE: tl.constexpr = piece_size(P, BLOCK, REST, VECTOR)
    ACCESSES: tl.constexpr = SIZE // (THREADS * VECTOR)
    access = tl.arange(0, ACCESSES)[:, None, None] * THREADS + tl.arange(0, THREADS)[None, :, None]
    index = at + P * BLOCK + access * VECTOR
    if PEELED:
        first, last = whole_accesses(begin, end, VECTOR)
        mask = (index >= first[None, :, None]) & (index < last[None, :, None])
    else:
        mask = index < end
    return mask


@triton.jit
def reduce_piece(
    P: tl.constexpr, values, at, begin, end, row_mask, REDUCE: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, REST: tl.constexpr, COLUMN: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr, BY_THREADS: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """The states of a piece's rows, or of each thread's part of them, and how many elements."""
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    _, mask, length = piece(P, at, begin, end, row_mask, BLOCK, REST, COLUMN, VECTOR, PEELED)
    if BY_THREADS:
        parts = all_by_thread(values, VECTOR, THREADS)
        mask = accesses_by_thread(P, at, begin, end, BLOCK, REST, VECTOR, PEELED, THREADS)
        states = REDUCE(parts, mask, length, BY_THREAD, T)
    else:
        states = REDUCE(values, mask, length, 0 if COLUMN else 1, T)
    return states, length


@triton.jit
def reduce_pieces(
    held, at, begin, end, row_mask, REDUCE: tl.constexpr, COMBINE: tl.constexpr,
    FOLD: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
    ONCE: tl.constexpr, COLUMN: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    THREADS: tl.constexpr,
):  # fmt: skip
    """The states of the rows, of what is held of each piece.

    With ONCE, of a row in two blocks, each thread combines its parts of both first, so that threads
    exchange states once.
    """
    states, count = reduce_piece(
        0, held[0], at, begin, end, row_mask, REDUCE, T, BLOCK, REST, COLUMN, VECTOR, ALIGNED,
        ONCE, THREADS,
    )  # fmt: skip
    if REST > 0:
        others, length = reduce_piece(
            1, held[1], at, begin, end, row_mask, REDUCE, T, BLOCK, REST, COLUMN, VECTOR, ALIGNED,
            ONCE, THREADS,
        )  # fmt: skip
        states = COMBINE(states, others, T)
        count += length
    if ONCE:
        states = FOLD(states, total(count), ALL, T)
    if is_peeled(VECTOR, ALIGNED, COLUMN):
        EDGES: tl.constexpr = 2 if REST > 0 else 1
        others, length = reduce_piece(
            EDGES, held[EDGES], at, begin, end, row_mask, REDUCE, T, BLOCK, REST, COLUMN, VECTOR,
            ALIGNED, False, THREADS,
        )  # fmt: skip
        if ONCE:
            others = FOLD(others, total(length), ALL, T)
        states = COMBINE(states, others, T)
    return states


@triton.jit
def total(length):
    """The one length of one row."""
    return tl.sum(length) if len(length.shape) > 0 else length


@triton.jit
def map_pieces(
    output, second, weights, biases, held, states, first, step, at, begin, end, row_mask,
    MAP: tl.constexpr, FINISH: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, REST: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Maps and stores all pieces."""
    for p in tl.static_range(len(held)):
        map_piece(
            p, output, second, None if weights is None else weights[p],
            None if biases is None else biases[p], held[p], states, first, step, at, begin, end,
            row_mask, MAP, FINISH, T, BLOCK, REST, COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
