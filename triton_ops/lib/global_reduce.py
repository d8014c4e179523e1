"""How the tiles of whole arrays are walked in a kernel that reduces them and then maps them.

Twin of csrc/include/diglot/global_reduce.cuh, which explains chunks and tiles.
"""

import triton
import triton.language as tl

from .elementwise import shifted

THREADS = tl.constexpr(256)  # of a program
MAX_FIELDS = tl.constexpr(3)  # the numbers of a state, at most


@triton.jit
def own_tiles(chunks, chunk_tiles):
    """How many tiles this program has."""
    programs = tl.num_programs(0)
    return (chunks - tl.program_id(0) + programs - 1) // programs * chunk_tiles


@triton.jit
def tile_start(i, chunk_tiles, BLOCK: tl.constexpr):
    """Where in an array this program's i-th tile begins."""
    chunk = tl.program_id(0).to(tl.int64) + i // chunk_tiles * tl.num_programs(0)
    return (chunk * chunk_tiles + i % chunk_tiles) * BLOCK


@triton.jit
def load_tile(input, start, n, OTHER: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """The tile that begins at `start`, of an array of n elements; OTHER beyond its end."""
    pointer = shifted(input, start, ALIGNED)
    index = tl.arange(0, BLOCK)
    # Whole tiles go without a mask: one would split their 16-byte accesses.
    if start + BLOCK <= n:
        x = tl.load(pointer + index)
    else:
        x = tl.load(pointer + index, mask=index < n - start, other=OTHER)
    return x


@triton.jit
def by_thread(tile, T: tl.constexpr, BLOCK: tl.constexpr):
    """A tile as (accesses, threads, elements of type T of an access): a reduction over all but
    the threads is one in registers.
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
    """One field of all chunks' states, a block of FOLD; OTHER beyond the last."""
    index = tl.arange(0, FOLD)
    return tl.load(workspace + index * MAX_FIELDS + FIELD, mask=index < chunks, other=OTHER)
