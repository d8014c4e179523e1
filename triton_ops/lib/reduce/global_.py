"""Tiles of a whole array, for kernels that reduce it and then map it.

Twin of csrc/include/diglot/reduce/global.cuh, which explains chunks and tiles.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import shifted

THREADS = tl.constexpr(256)  # of a program
MAX_FIELDS = tl.constexpr(3)  # of a state


@triton.jit
def count_tiles(chunks, chunk_tiles):
    """How many tiles this program takes."""
    programs = tl.num_programs(0)
    return (chunks - tl.program_id(0) + programs - 1) // programs * chunk_tiles


@triton.jit
def tile_start(i, chunk_tiles, BLOCK: tl.constexpr):
    """The index of the first element of this program's i-th tile."""
    chunk = tl.program_id(0).to(tl.int64) + i // chunk_tiles * tl.num_programs(0)
    return (chunk * chunk_tiles + i % chunk_tiles) * BLOCK


@triton.jit
def load_tile(input, start, n, OTHER: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """The tile of an array of n elements that begins at `start`; OTHER beyond the array's end."""
    pointer = shifted(input, start, ALIGNED)
    index = tl.arange(0, BLOCK)
    # Whole tiles take no mask: it would split their 16-byte accesses.
    if start + BLOCK <= n:
        x = tl.load(pointer + index)
    else:
        x = tl.load(pointer + index, mask=index < n - start, other=OTHER)
    return x


@triton.jit
def by_thread(tile, T: tl.constexpr, BLOCK: tl.constexpr):
    """A tile as (accesses, threads, elements of an access), so that a reduction over all axes
    except the threads stays in registers.
    """
    access: tl.constexpr = 128 // T.primitive_bitwidth
    return tl.reshape(tile, (BLOCK // (THREADS * access), THREADS, access))


@triton.jit
def store_tile(output, start, n, values, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    pointer = shifted(output, start, ALIGNED)
    index = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        tl.store(pointer + index, values)
    else:
        tl.store(pointer + index, values, mask=index < n - start)


@triton.jit
def store_state(workspace, chunk, FIELD: tl.constexpr, value):
    tl.store(workspace + chunk * MAX_FIELDS + FIELD, value)


@triton.jit
def load_states(workspace, chunks, FIELD: tl.constexpr, OTHER: tl.constexpr, FOLD: tl.constexpr):
    """One field of all chunks' states, as a block of FOLD; OTHER beyond the last chunk."""
    index = tl.arange(0, FOLD)
    return tl.load(workspace + index * MAX_FIELDS + FIELD, mask=index < chunks, other=OTHER)
