"""Split columns: a program could hold only a narrow strip of tall columns, so these take two
launches.

Both stream strips of 512 bytes. The first launch reduces chunks of the columns. The second one
combines the chunks' states and maps, in reverse order, because the chunks read last are in the L2
cache. The first launch does not read an input that the operation does not reduce: Triton's compiler
removes the load. Twin of csrc/include/diglot/rows/split_columns.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.types import compute_type

from .operation import map_tile
from .tile import STAGES, all_by_depth, by_depth, load_tiles, side_by_side, tile_mask

CHUNK_STAGES = tl.constexpr(5)  # of the first launch's loop
CHUNK_STATES = tl.constexpr(1024)  # states that a program of the second launch loads at once


@triton.jit
def load_states(scratch, offset, step, mask, none):
    """The states that the first launch has written."""
    first = _load_field(scratch, offset, mask, none[0])
    return (first,) if len(none) == 1 else (
        first, _load_field(scratch + step, offset, mask, none[1])
    )  # fmt: skip


@triton.jit
def _load_field(scratch, offset, mask, none):
    bits = tl.load(scratch + offset, mask=mask, other=0)
    return tl.where(mask, bits.to(none.dtype, bitcast=True), none)


@triton.jit
def reduce_or_map_column_chunk(
    inputs, scratch, output, n, count, sizes, starts, strides, steps,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr,
    MAP: tl.constexpr, OTHER: tl.constexpr, T: tl.constexpr, MAPS: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """A program's chunk of its strip. The first launch reduces it, and the second (MAPS) maps it.

    Programs of neighbouring strips run side by side. Scratch has the states' first field for each
    chunk and column, then the next field.
    """
    COMPUTE: tl.constexpr = compute_type(T)
    WIDTH: tl.constexpr = SIDE * VECTOR
    program = tl.program_id(0).to(tl.int64)
    if MAPS:
        program = tl.num_programs(0) - 1 - program
    strips = (count + SIDE - 1) // SIDE
    strip, chunk = program % strips, program // strips
    chunks = tl.num_programs(0) // strips
    chunk_length = ((n + chunks - 1) // chunks + BLOCK - 1) // BLOCK * BLOCK
    begin = chunk * chunk_length
    end = tl.minimum(begin + chunk_length, n)
    row = side_by_side(strip, SIDE, VECTOR, True)
    row_mask = row < count
    index = tl.arange(0, BLOCK).to(tl.int64)
    out_offset = strided_offset(row, sizes, starts[0], strides[0], RANK, True)
    in_offset = strided_offset(row, sizes, starts[1], strides[1], RANK, True)
    firsts = (out_offset, in_offset) if len(inputs) == 1 else (
        out_offset, in_offset, strided_offset(row, sizes, starts[2], strides[2], RANK, True)
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
            loaded = load_states(scratch, every * columns + column, step, mask, nothing)
            states = COMBINE(states, loaded, T)
        states = FOLD(states, n, 0, T)
    else:
        DEPTH: tl.constexpr = max(1, THREADS // SIDE)
        states = NONE(tl.full((1, DEPTH, WIDTH), 0.0, COMPUTE), T)
    last = begin + (end - begin - 1) // BLOCK * BLOCK
    for position in tl.range(begin, end, BLOCK, num_stages=STAGES if MAPS else CHUNK_STAGES):
        first = begin + last - position if MAPS else position
        mask = tile_mask(first + index, n, row_mask, True)
        values = load_tiles(
            inputs, firsts, steps, first + index, mask, OTHER,
            "evict_first" if MAPS else "evict_last", True, STEPS, VECTOR, ALIGNED,
        )  # fmt: skip
        if MAPS:
            map_tile(
                output, None, None, None, values, states, out_offset, steps[0], first + index,
                mask, MAP, None, T, True, STEPS, VECTOR, ALIGNED,
            )  # fmt: skip
        else:
            parts = all_by_depth(values, DEPTH)
            length = tl.minimum(n - first, BLOCK)
            states = COMBINE(states, REDUCE((parts,), (by_depth(mask, DEPTH),), length, 0, T), T)
    if not MAPS:
        whole = FOLD(states, end - begin, 1, T)
        for field in tl.static_range(len(whole)):
            bits = tl.reshape(whole[field], (1, WIDTH)).to(scratch.dtype.element_ty, bitcast=True)
            mask = column < columns
            tl.store(scratch + field * step + chunk * columns + column, bits, mask=mask)
