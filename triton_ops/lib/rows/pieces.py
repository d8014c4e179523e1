"""The pieces in which a program holds a row, or its part of one.

A tile has a power of two of elements, but rows have any length. So a row is held in pieces of one
size, as many as it needs. A long row's piece is one access of each thread. Each thread first
reduces its elements piece by piece, so threads exchange states only once. Where rows begin between
multiples of 16 bytes, they are *peeled*. Pieces then begin at the multiple at or before a row's
start. They are read in the whole accesses that lie wholly in the row. The *edges* are the elements
left on either side, fewer than an access has on each. They are a last piece, which is accessed
element by element.

In CUDA C++ a thread has as many accesses as its row needs, so there are no pieces.
"""

import triton
import triton.language as tl

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
    """The range of the whole accesses between two elements; empty ranges begin behind `begin`."""
    first = (begin + VECTOR - 1) // VECTOR * VECTOR
    return first, tl.maximum(end // VECTOR * VECTOR, first)


@triton.jit
def piece_index(
    P: tl.constexpr, at, begin, end, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Numbers of a piece's elements; for edges, by row.

    Args:
        P: the piece's number.
        at: the number of the first piece's first element, a multiple of VECTOR.
        begin, end: the range of the elements that exist; by row if peeled.
    """
    lane = tl.arange(0, BLOCK)
    if P == PIECES:
        first, last = whole_accesses(begin, end, VECTOR)
        lane = lane[None, :]
        index = tl.where(lane < VECTOR, first[:, None], last[:, None]) + (lane - VECTOR)
    else:
        index = at + P * BLOCK + lane
    return index


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
        if P == PIECES:
            mask = (index >= begin[:, None]) & (index < end[:, None])
            mask &= tl.arange(0, BLOCK)[None, :] < 2 * VECTOR
        else:
            first, last = whole_accesses(begin, end, VECTOR)
            access = (at + P * BLOCK + tl.arange(0, BLOCK) // VECTOR * VECTOR)[None, :]
            mask = (access >= first[:, None]) & (access < last[:, None])
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


@triton.jit
def load_parameter_piece(
    P: tl.constexpr, pointer, shift, at, begin, end, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    COLUMN: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A piece's tile of a weight or bias; None without one.

    It is the same for every row. It begins at a multiple of 16 bytes, but a peeled row does not:
    for such rows it is loaded element by element.
    """
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    values = None
    if pointer is not None:
        if PEELED:
            index = piece_index(P, at, begin, end, BLOCK, PIECES, VECTOR)
            mask = piece_mask(P, at, begin, end, None, BLOCK, PIECES, False, VECTOR, True)
            wide = index if len(index.shape) == 2 else index[None, :]
            pointers = (pointer - shift)[:, None] + wide
            values = tl.load(pointers, mask=mask, other=0.0, eviction_policy=LOADS)
        else:
            index = at + P * BLOCK + tl.arange(0, BLOCK)
            values = load_parameters(pointer, index, end, ALIGNED)
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


@triton.jit
def load_pieces(
    inputs, firsts, steps, at, begin, end, row_mask, OTHER: tl.constexpr, POLICY: tl.constexpr,
    HOLD: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Loads the tiles that an operation holds of each piece."""
    held = ()
    for p in tl.static_range(pieces_of(PIECES, VECTOR, ALIGNED, COLUMN)):
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
    held, at, begin, end, row_mask, REDUCE: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, PIECES: tl.constexpr, COLUMN: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """The states of the rows, from the held tiles of each piece."""
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, COLUMN)
    AXIS: tl.constexpr = 0 if COLUMN else 1
    masks = ()
    for p in tl.static_range(len(held)):
        masks += (piece_mask(  # type: ignore[assignment]
            p, at, begin, end, row_mask, BLOCK, PIECES, COLUMN, VECTOR, PEELED
        ),)  # fmt: skip
    if PEELED:
        length = (end - begin)[:, None]
    else:
        length = tl.minimum(tl.maximum(end - at, 0), BLOCK * PIECES)
    return REDUCE(held, masks, length, AXIS, T)


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
            held[p], states, first, step, at, begin, end, row_mask, MAP, FINISH, T, BLOCK, PIECES,
            COLUMN, STEPS, VECTOR, ALIGNED,
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
