"""The pieces in which a program holds a row, or its part of one.

A tile has a power of two of elements, but rows have any length. So a row is held in pieces of one
size, as many as it needs. A long row's piece is one access of each thread. Each thread first
reduces its elements piece by piece, so threads exchange states only once. Where rows begin between
multiples of 16 bytes, they are *peeled*. Pieces then begin at the multiple at or before a row's
start. They are read in whole accesses: those in the row, less the first and the last. The *edges*
are the elements left on either side, fewer than two accesses have on each. They are a last piece,
which is accessed element by element. It is reduced apart from the others. Its tile is so small
that each warp has all of it, so the warps need not exchange anything for that.

A weight lies otherwise than a peeled row. Its accesses are whole, too: a thread reads two
neighbours and shifts the elements of its own access together (`load_shifted`). Both lie in the
weight, because the first and the last access of a row belong to the edges.

In CUDA C++ a thread has as many accesses as its row needs, so there are no pieces.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.reduce.states import ALL
from diglot.triton_ops.lib.types import INTERPRETED

from .operation import map_tile
from .tile import LOADS, load_held, load_parameters, tile_mask, widened_tile


@triton.constexpr_function
def is_peeled(vector, aligned, column):
    """Whether rows have accesses of 16 bytes without beginning and ending at multiples of them."""
    return bool(vector > 1 and not aligned and not column)


@triton.constexpr_function
def pieces_of(pieces, vector, aligned, column):
    """How many pieces there are, with the edges of peeled rows."""
    return pieces + is_peeled(vector, aligned, column)


@triton.constexpr_function
def width_of(piece, pieces, block, vector):
    """Elements of a piece's tile. Edges have two sides, each of less than two accesses."""
    return 4 * vector if piece == pieces else block


@triton.constexpr_function
def is_whole(piece, pieces, vector, aligned, column):
    """Whether a piece's accesses are at multiples of 16 bytes: all but edges are, if peeled."""
    return aligned or (is_peeled(vector, aligned, column) and piece < pieces)


@triton.jit
def row_shift(pointer, starts, VECTOR: tl.constexpr, PEELED: tl.constexpr):
    """How many elements past a multiple of 16 bytes each row begins, the same in every array."""
    shift = 0
    if PEELED:
        SIZE: tl.constexpr = pointer.dtype.element_ty.primitive_bitwidth // 8
        shift = (pointer + starts).to(tl.int64, bitcast=True) // SIZE % VECTOR
    return shift


@triton.jit
def whole_accesses(begin, end, VECTOR: tl.constexpr):
    """The range of the whole accesses between two elements, less the first and the last; empty
    ranges begin behind `begin`.
    """
    first = (begin + VECTOR - 1) // VECTOR * VECTOR + VECTOR
    return first, tl.maximum(end // VECTOR * VECTOR - VECTOR, first)


@triton.jit
def piece_index(
    P: tl.constexpr, at, begin, end, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Numbers of a piece's elements; for edges, by row.

    Args:
        P: the piece's number.
        at: the number of the first piece's first element, a multiple of VECTOR. None: pieces begin
            at the whole accesses of one peeled row, which reach into the last piece.
        begin, end: the range of the elements that exist; by row if peeled.
    """
    lane = tl.arange(0, width_of(P, PIECES, BLOCK, VECTOR))
    if P == PIECES:
        EDGE: tl.constexpr = 2 * VECTOR
        first, last = whole_accesses(begin, end, VECTOR)
        lane = lane[None, :]
        index = tl.where(lane < EDGE, first[:, None], last[:, None]) + (lane - EDGE)
    else:
        index = piece_start(P, at, begin, end, BLOCK, VECTOR) + lane
    return index


@triton.jit
def piece_start(P: tl.constexpr, at, begin, end, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """The number of a piece's first element."""
    if at is None:
        start, _ = whole_accesses(begin, end, VECTOR)
    else:
        start = at
    return start + P * BLOCK


@triton.jit
def piece_mask(
    P: tl.constexpr, at, begin, end, row_mask, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    COLUMN: tl.constexpr, VECTOR: tl.constexpr, PEELED: tl.constexpr,
):  # fmt: skip
    """Which elements of a piece exist; True if all do.

    Args:
        row_mask: which rows exist. None: there is one row, it exists, and it reaches into the last
            piece.
    """
    index = piece_index(P, at, begin, end, BLOCK, PIECES, VECTOR)
    if PEELED:
        IS_FULL: tl.constexpr = at is None and P < PIECES - 1
        if P == PIECES:
            mask = (index >= begin[:, None]) & (index < end[:, None])
        elif IS_FULL and row_mask is None:
            mask = True
        else:
            mask = access_mask(P, at, begin, end, BLOCK, VECTOR, BLOCK, VECTOR)
        if row_mask is not None:
            mask &= row_mask[:, None]
    elif row_mask is not None:
        mask = tile_mask(index, end, row_mask, COLUMN)
    elif P == PIECES - 1:
        mask = tile_mask(index, end, tl.full((1,), True, tl.int1), False)
    else:
        mask = True
    return mask


@triton.jit
def access_mask(
    P: tl.constexpr, at, begin, end, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
    SIZE: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Which accesses of a peeled row's piece exist, for a tile of SIZE that has EACH of them."""
    first, last = whole_accesses(begin, end, VECTOR)
    start = piece_start(P, at, begin, end, BLOCK, VECTOR)
    access = (start + tl.arange(0, SIZE) // EACH * VECTOR)[None, :]
    mask = access < last[:, None]
    if at is not None:
        mask &= access >= first[:, None]
    return mask


@triton.jit
def load_piece(
    P: tl.constexpr, inputs, firsts, steps, at, begin, end, row_mask,
    OTHER: tl.constexpr, POLICY: tl.constexpr, HOLD: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, PIECES: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Loads the tiles that an operation holds of a piece (`load_held`)."""
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    index = piece_index(P, at, begin, end, BLOCK, PIECES, VECTOR)
    mask = piece_mask(P, at, begin, end, row_mask, BLOCK, PIECES, COLUMN, VECTOR, PEELED)
    return load_held(
        inputs, firsts, steps, index, mask, OTHER, POLICY, HOLD, T, COLUMN, STEPS, VECTOR,
        is_whole(P, PIECES, VECTOR, ALIGNED, COLUMN),
    )  # fmt: skip


@triton.constexpr_function
def is_shifted(dtype, vector):
    """Whether whole accesses of a weight are shifted: those of 16 bytes, of small elements."""
    return dtype.primitive_bitwidth * vector == 128 and vector >= 4


@triton.constexpr_function
def words_of(block, vector):
    """Words of four bytes in a tile whose accesses have 16."""
    return block * 4 // vector


@triton.jit
def load_shifted(pointers, at, mask, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """A tile of BLOCK elements from number `at` on, for each of the pointers, which may lie between
    multiples of 16 bytes.

    Each thread reads the two accesses among which its own lies, as words of four bytes.
    """
    T: tl.constexpr = pointers.dtype.element_ty
    shift = row_shift(pointers, 0, VECTOR, True)
    first = tl.multiple_of((pointers - shift).to(tl.pointer_type(tl.uint32), bitcast=True), 16)
    WORDS: tl.constexpr = words_of(BLOCK, VECTOR)
    number = at // VECTOR * 4 + tl.arange(0, WORDS)
    place = first[:, None] + number[None, :]
    a = tl.load(place, mask=mask, other=0, eviction_policy=LOADS)
    b = tl.load(place + 4, mask=mask, other=0, eviction_policy=LOADS)
    a0, a1, a2, a3 = four_words(a)
    b0, b1, b2, b3 = four_words(b)
    PER_WORD: tl.constexpr = VECTOR // 4
    words = (shift // PER_WORD).to(tl.int32)[:, None]
    by_two, by_one = words >= 2, words % 2 == 1
    c0, c1, c2 = tl.where(by_two, a2, a0), tl.where(by_two, a3, a1), tl.where(by_two, b0, a2)
    c3, c4 = tl.where(by_two, b1, a3), tl.where(by_two, b2, b0)
    d0, d1, d2 = tl.where(by_one, c1, c0), tl.where(by_one, c2, c1), tl.where(by_one, c3, c2)
    d3 = tl.where(by_one, c4, c3)
    if PER_WORD == 1:
        result = tile_of_words(d0, d1, d2, d3).to(T, bitcast=True)
    else:
        c5 = tl.where(by_two, b3, b1)
        d4 = tl.where(by_one, c5, c4)
        bits = (shift % 2 * 16).to(tl.uint32)[:, None]
        word = tile_of_words(
            shifted(d0, d1, bits), shifted(d1, d2, bits), shifted(d2, d3, bits),
            shifted(d3, d4, bits),
        )  # fmt: skip
        low, high = (word & 0xFFFF).to(tl.uint16), (word >> 16).to(tl.uint16)
        result = tl.reshape(tl.join(low, high), (word.shape[0], BLOCK)).to(T, bitcast=True)
    return result


@triton.jit
def four_words(tile):
    """The words of each access of a tile (rows, words), as tiles (rows, accesses)."""
    pairs = tl.reshape(tile, (tile.shape[0], tile.shape[1] // 4, 2, 2))
    even, odd = tl.split(pairs)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def tile_of_words(first, second, third, fourth):
    """The inverse of `four_words`."""
    pairs = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(pairs, (first.shape[0], first.shape[1] * 4))


@triton.jit
def shifted_at_once(word, next, bits):
    """The word that begins `bits` further on, of fewer than 32."""
    # Written out, because LLVM makes three instructions of it.
    return tl.inline_asm_elementwise(
        "shf.r.wrap.b32 $0, $1, $2, $3;", "=r,r,r,r", [word, next, bits], dtype=tl.uint32,
        is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def shifted_in_steps(word, next, bits):
    """The same, where no machine runs PTX."""
    return (word >> bits) | (next << 1 << (31 - bits))


shifted = shifted_in_steps if INTERPRETED else shifted_at_once


@triton.jit
def load_parameter_piece(
    P: tl.constexpr, pointer, shift, at, begin, end, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    COLUMN: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A piece's tile of a weight or bias; None without one.

    It is the same for every row, so it begins otherwise than peeled rows do.
    """
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    values = None
    if pointer is not None:
        if PEELED and P < PIECES and is_shifted(pointer.dtype.element_ty, VECTOR):
            start = piece_start(P, at, begin, end, BLOCK, VECTOR)
            mask = True
            if at is not None or P == PIECES - 1:
                mask = access_mask(
                    P, at, begin, end, BLOCK, VECTOR, words_of(BLOCK, VECTOR), 4
                )  # fmt: skip
            values = load_shifted(pointer - shift, start, mask, BLOCK, VECTOR)
        elif PEELED:
            index = piece_index(P, at, begin, end, BLOCK, PIECES, VECTOR)
            mask = piece_mask(P, at, begin, end, None, BLOCK, PIECES, False, VECTOR, True)
            wide = index if len(index.shape) == 2 else index[None, :]
            pointers = (pointer - shift)[:, None] + wide
            values = tl.load(pointers, mask=mask, other=0.0, eviction_policy=LOADS)
        else:
            index = at + P * BLOCK + tl.arange(0, BLOCK)
            values = load_parameters(pointer, index, end, VECTOR, ALIGNED)
    return values


@triton.jit
def map_piece(
    P: tl.constexpr, output, second, weight, bias, values, states, first, step,
    at, begin, end, row_mask, MAP: tl.constexpr, FINISH: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, PIECES: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Maps and stores a piece, with its tiles of weight and bias."""
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    index = piece_index(P, at, begin, end, BLOCK, PIECES, VECTOR)
    mask = piece_mask(P, at, begin, end, row_mask, BLOCK, PIECES, COLUMN, VECTOR, PEELED)
    map_tile(
        output, second, widened_tile(weight, T), widened_tile(bias, T), values, states, first,
        step, index, mask, MAP, FINISH, T, COLUMN, STEPS, VECTOR,
        is_whole(P, PIECES, VECTOR, ALIGNED, COLUMN),
    )  # fmt: skip


@triton.constexpr_function
def copied_pieces(dtype, pieces, vector, aligned):
    """How many pieces of rows a pipelined loop can load by asynchronous copies. These have four
    bytes at least. Edges of smaller elements can be read as words (`load_edges`), which takes more
    registers than rows of many pieces leave.
    """
    if aligned or dtype.primitive_bitwidth > 16:
        return pieces_of(pieces, vector, aligned, False)
    return pieces + (pieces <= 4) if vector > 1 else 0


@triton.jit
def load_edges(
    pointer, firsts, begin, end, row_mask, is_last, T: tl.constexpr, VECTOR: tl.constexpr
):
    """The edges of peeled rows of 16 bits, read as words of four bytes.

    Args:
        firsts: the multiple of 16 bytes at or before each row's start.
        is_last: which rows end an array. No word is read that reaches beyond it.
    """
    index = piece_index(0, 0, begin, end, 0, 0, VECTOR)
    exists = (index >= begin[:, None]) & (index < end[:, None]) & row_mask[:, None]
    first, last = whole_accesses(begin, end, VECTOR)
    word = tl.arange(0, 2 * VECTOR)[None, :]
    number = tl.where(word < VECTOR, first[:, None], last[:, None]) + 2 * (word - VECTOR)
    is_word = (number + 1 >= begin[:, None]) & (number < end[:, None]) & row_mask[:, None]
    words = tl.load(
        (pointer + firsts)[:, None].to(tl.pointer_type(tl.uint32), bitcast=True) + number // 2,
        mask=is_word & ~(is_last[:, None] & (number + 1 == end[:, None])), other=0,
        eviction_policy=LOADS,
    )  # fmt: skip
    low, high = (words & 0xFFFF).to(tl.uint16), (words >> 16).to(tl.uint16)
    bits = tl.reshape(tl.join(low, high), index.shape)
    tile = tl.where(exists, bits, 0).to(tl.uint16).to(T, bitcast=True)
    is_alone = exists & is_last[:, None] & (index % 2 == 0) & (index + 1 == end[:, None])
    alone = tl.load(
        (pointer + firsts)[:, None] + index, mask=is_alone, other=0.0, eviction_policy=LOADS
    )
    return tl.where(is_alone, alone, tile)


@triton.jit
def load_all_edges(inputs, firsts, begin, end, row, count, T: tl.constexpr, VECTOR: tl.constexpr):
    """`load_edges` of each input, of `count` rows; `firsts` begins with the output's."""
    exists, is_last = row < count, row == count - 1
    edges = (load_edges(inputs[0], firsts[1], begin, end, exists, is_last, T, VECTOR),)
    if len(inputs) == 2:
        edges += (  # type: ignore[assignment]
            load_edges(inputs[1], firsts[2], begin, end, exists, is_last, T, VECTOR),
        )
    return edges


@triton.jit
def load_pieces(
    FIRST: tl.constexpr, LAST: tl.constexpr, inputs, firsts, steps, at, begin, end, row_mask,
    OTHER: tl.constexpr, POLICY: tl.constexpr, HOLD: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, PIECES: tl.constexpr, COLUMN: tl.constexpr, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Loads the tiles that an operation holds of each piece, from FIRST to LAST."""
    held = ()
    for p in tl.static_range(FIRST, LAST):
        held += (load_piece(  # type: ignore[assignment]
            p, inputs, firsts, steps, at, begin, end, row_mask, OTHER, POLICY, HOLD, T,
            BLOCK, PIECES, COLUMN, STEPS, VECTOR, ALIGNED,
        ),)  # fmt: skip
    return held


@triton.jit
def load_parameter_pieces(
    pointer, shift, at, begin, end, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    COLUMN: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Each piece's tile of a weight or bias; None without one."""
    loaded = None
    if pointer is not None:
        loaded = ()
        for p in tl.static_range(pieces_of(PIECES, VECTOR, ALIGNED, COLUMN)):
            loaded += (load_parameter_piece(  # type: ignore[assignment]
                p, pointer, shift, at, begin, end, BLOCK, PIECES, COLUMN, VECTOR, ALIGNED
            ),)  # fmt: skip
    return loaded


@triton.jit
def reduce_pieces(
    held, at, begin, end, row_mask, REDUCE: tl.constexpr, COMBINE: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, PIECES: tl.constexpr, COLUMN: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """The states of the rows, from the held tiles of each piece."""
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    AXIS: tl.constexpr = 0 if COLUMN else 1
    whole, masks = (), ()
    for p in tl.static_range(PIECES):
        whole += (held[p],)  # type: ignore[assignment]
        masks += (piece_mask(  # type: ignore[assignment]
            p, at, begin, end, row_mask, BLOCK, PIECES, COLUMN, VECTOR, PEELED
        ),)  # fmt: skip
    if PEELED:
        first, last = whole_accesses(begin, end, VECTOR)
        length = (last - first)[:, None]
        mask = piece_mask(
            PIECES, at, begin, end, row_mask, BLOCK, PIECES, COLUMN, VECTOR, PEELED
        )  # fmt: skip
        rest = scalar_of((end - begin)[:, None] - length)
        IS_ONE: tl.constexpr = length.shape[0] == 1
        states = REDUCE(whole, masks, length, AXIS, T)
        edges = REDUCE((held[PIECES],), (mask,), rest, ALL if IS_ONE else AXIS, T)
        states = COMBINE(states, edges, T)
    else:
        length = tl.minimum(tl.maximum(end - at, 0), BLOCK * PIECES)
        states = REDUCE(whole, masks, length, AXIS, T)
    return states


@triton.jit
def scalar_of(column):
    """A column of one row as a scalar, which has no layout: edges keep that of their loads."""
    return tl.sum(column) if len(column.shape) == 2 and column.shape[0] == 1 else column


@triton.jit
def scalars_of(states):
    """`scalar_of` each state."""
    result = ()
    for k in tl.static_range(len(states)):
        result += (scalar_of(states[k]),)  # type: ignore[assignment]
    return result


@triton.jit
def map_pieces(
    output, second, weight, bias, LOADED: tl.constexpr, held, states, first, step, shift,
    at, begin, end, row_mask, MAP: tl.constexpr, FINISH: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, PIECES: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Maps and stores all pieces. With LOADED, weight and bias are loaded pieces too; otherwise
    each piece of them is loaded when it is needed.
    """
    for p in tl.static_range(len(held)):
        map_piece(
            p, output, second,
            parameter_piece(
                p, weight, LOADED, shift, at, begin, end, BLOCK, PIECES, COLUMN, VECTOR, ALIGNED
            ),
            parameter_piece(
                p, bias, LOADED, shift, at, begin, end, BLOCK, PIECES, COLUMN, VECTOR, ALIGNED
            ),
            held[p], states if p < PIECES else scalars_of(states), first, step, at, begin, end,
            row_mask, MAP, FINISH, T, BLOCK, PIECES, COLUMN, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip


@triton.jit
def parameter_piece(
    P: tl.constexpr, parameter, LOADED: tl.constexpr, shift, at, begin, end, BLOCK: tl.constexpr,
    PIECES: tl.constexpr, COLUMN: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A piece's tile of a weight or bias. With LOADED, `parameter` has all pieces; otherwise it is
    a pointer.
    """
    values = None
    if parameter is not None:
        if LOADED:
            values = parameter[P]
        else:
            values = load_parameter_piece(
                P, parameter, shift, at, begin, end, BLOCK, PIECES, COLUMN, VECTOR, ALIGNED
            )
    return values
