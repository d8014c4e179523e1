"""Tiles of rows: which elements they have, and how a program loads them.

A tile of rows is (rows, elements). A tile of columns is (elements, columns), where columns come in
whole accesses. Twin of csrc/include/diglot/rows/tile.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.types import compute_type, opaque, widen

# Inputs stay in the L2 cache longer than outputs, so outputs reach memory all along. That is faster
# with arrays larger than the cache. (Loads of a pipelined loop make no difference.)
LOADS = tl.constexpr("evict_last")
STAGES = tl.constexpr(3)  # of a pipelined loop


@triton.jit
def side_by_side(tile, SIDE: tl.constexpr, VECTOR: tl.constexpr, COLUMN: tl.constexpr):
    """The numbers of a tile's rows; for columns, the number of each column's access."""
    if COLUMN:
        result = tile * SIDE + tl.arange(0, SIDE * VECTOR) // VECTOR
    else:
        result = tile * SIDE + tl.arange(0, SIDE)
    return result


@triton.jit
def row_offsets(row, part, sizes, starts, strides, steps, A: tl.constexpr, RANK: tl.constexpr):
    """Offsets in the A-th array of each row's element number `part`."""
    start = starts[A] + part * steps[A]
    return strided_offset(row, sizes, start, strides[A], RANK, True)


@triton.constexpr_function
def bytes_of_access(dtype, vector):
    """Bytes of an access of elements, 16 at most. Accesses are at multiples of them."""
    return min(16, vector * dtype.primitive_bitwidth // 8)


@triton.jit
def tile_pointers(
    pointer, starts, step, index,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Pointers to the elements with numbers `index` of the rows that begin at `starts`.

    `index` is the same for every row, or is (rows, elements).
    """
    first = pointer + starts
    if COLUMN:
        first += tl.arange(0, starts.shape[0]) % VECTOR
        result = first[None, :] + (index * tl.full((), step, index.dtype))[:, None]
        result = tl.max_contiguous(result, [1, VECTOR])
        if ALIGNED:
            result = tl.multiple_of(result, [1, 16])
    else:
        if ALIGNED:
            first = tl.multiple_of(first, bytes_of_access(pointer.dtype.element_ty, VECTOR))
        wide = index if len(index.shape) == 2 else index[None, :]
        result = first[:, None] + (wide.to(tl.int64) * step if STEPS else wide)
    return result


@triton.jit
def tile_mask(index, n, row_mask, COLUMN: tl.constexpr):
    """Which elements of a tile exist: those below n, of rows that exist."""
    if COLUMN:
        mask = (index < n)[:, None] & row_mask[None, :]
    else:
        mask = (index < n)[None, :] & row_mask[:, None]
    return mask


@triton.jit
def _load_second(
    inputs, starts, steps, index, mask, OTHER: tl.constexpr, POLICY: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    pointers = tile_pointers(inputs[1], starts[2], steps[2], index, COLUMN, STEPS, VECTOR, ALIGNED)
    return tl.load(pointers, mask=mask, other=OTHER, eviction_policy=POLICY)


@triton.jit
def load_tiles(
    inputs, starts, steps, index, mask, OTHER: tl.constexpr, POLICY: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A tile of each input; OTHER where the mask is false."""
    pointers = tile_pointers(inputs[0], starts[1], steps[1], index, COLUMN, STEPS, VECTOR, ALIGNED)
    first = tl.load(pointers, mask=mask, other=OTHER, eviction_policy=POLICY)
    return (first,) if len(inputs) == 1 else (first, _load_second(
        inputs, starts, steps, index, mask, OTHER, POLICY, COLUMN, STEPS, VECTOR, ALIGNED
    ))  # fmt: skip


@triton.jit
def load_held(
    inputs, starts, steps, index, mask, OTHER: tl.constexpr, POLICY: tl.constexpr,
    HOLD: tl.constexpr, T: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """What an operation holds: the inputs' tiles, or the one tile that HOLD makes of them."""
    values = load_tiles(
        inputs, starts, steps, index, mask, OTHER, POLICY, COLUMN, STEPS, VECTOR, ALIGNED
    )
    return values if HOLD is None else (HOLD(values, T),)


@triton.jit
def load_parameters(pointer, index, n, VECTOR: tl.constexpr, ALIGNED: tl.constexpr):
    """A tile of one row: a weight or bias, which is the same for every row. None without one."""
    values = None
    if pointer is not None:
        pointers = (pointer + index)[None, :]
        if ALIGNED:
            BYTES: tl.constexpr = bytes_of_access(pointer.dtype.element_ty, VECTOR)
            pointers = tl.multiple_of(pointers, [16, BYTES])
        values = tl.load(pointers, mask=(index < n)[None, :], other=0.0, eviction_policy=LOADS)
    return values


@triton.jit
def by_thread(tile, VECTOR: tl.constexpr, THREADS: tl.constexpr):
    """A tile of one row as (accesses, threads, elements of an access), so that a reduction over all
    axes except the threads stays in registers.
    """
    ACCESSES: tl.constexpr = tile.shape[1] // (THREADS * VECTOR)
    return tl.reshape(tile, (ACCESSES, THREADS, VECTOR))


@triton.jit
def all_by_thread(values, VECTOR: tl.constexpr, THREADS: tl.constexpr):
    first = by_thread(values[0], VECTOR, THREADS)
    return (first,) if len(values) == 1 else (first, by_thread(values[1], VECTOR, THREADS))


@triton.jit
def by_depth(tile, DEPTH: tl.constexpr):
    """A tile of columns as (accesses, threads, columns), so that a reduction over the first axis
    stays in registers.
    """
    return tl.reshape(tile, (tile.shape[0] // DEPTH, DEPTH, tile.shape[1]))


@triton.jit
def all_by_depth(values, DEPTH: tl.constexpr):
    first = by_depth(values[0], DEPTH)
    return (first,) if len(values) == 1 else (first, by_depth(values[1], DEPTH))


@triton.jit
def all_opaque(values):
    return (opaque(values[0]),) if len(values) == 1 else (opaque(values[0]), opaque(values[1]))


@triton.jit
def widened_tile(tile, T: tl.constexpr):
    """The tile in the type of the computation; it is converted only here. None stays None."""
    result = None
    if tile is not None:
        result = widen(opaque(tile), compute_type(T))
    return result


@triton.jit
def keep_narrow(values, pointers, n):
    """The same values, behind a load that never happens. The compiler must assume that it may.

    So it keeps narrow values unconverted. It also does the following arithmetic in their layout,
    not in that of the few states.
    """
    first = load_if(n < 0, pointers, values[0])
    return (first,) if len(values) == 1 else (first, load_if(n < 0, pointers, values[1]))


@triton.jit
def load_if(condition, pointers, values):
    """The values or, if the condition holds, the elements at the pointers."""
    mask = tl.full(pointers.shape, condition, tl.int1)
    pointers = pointers.to(tl.pointer_type(values.dtype), bitcast=True)
    return tl.load(pointers, mask=mask, other=values)
