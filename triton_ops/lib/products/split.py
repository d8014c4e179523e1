"""Products whose K is split: several programs each sum a part of the steps along K of one tile.
Twin of csrc/include/diglot/products/split.cuh.

Each leaves its sums in scratch and counts its arrival. The last to arrive adds up all parts in the
order of K, whichever it is itself. So results do not depend on who is last.
"""

import triton
import triton.language as tl


@triton.jit
def leave_part(sums, counters, scratch, number, part, parts):
    """Leaves the sums of a part of a tile; whether this program is the last of the tile's parts.

    Args:
        sums: of the part.
        counters: one for each tile; zero before a launch, and again after it.
        scratch: float32, for the sums of all parts of all tiles.
        number, part, parts: of the tile, of the part, and how many parts a tile has.
    """
    tl.store(_place(scratch, number * parts + part, sums), sums)
    tl.debug_barrier()  # the arrival is that of all threads
    before = tl.atomic_add(counters + number, 1, sem="acq_rel", scope="gpu")
    if before == parts - 1:
        tl.store(counters + number, 0)  # ready for the next launch
    tl.debug_barrier()
    return before == parts - 1


@triton.jit
def add_parts(sums, scratch, number, parts):
    """The sums of a whole tile, for the last program of its parts."""
    total = tl.zeros_like(sums)
    for part in range(parts):
        total += tl.load(_place(scratch, number * parts + part, sums), cache_modifier=".cg")
    return total


@triton.jit
def _place(scratch, number, sums):
    ROWS: tl.constexpr = sums.shape[0]
    COLUMNS: tl.constexpr = sums.shape[1]
    within = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    place = scratch + tl.cast(number, tl.int64) * (ROWS * COLUMNS) + within
    # The compiler makes accesses of 16 bytes: scratch begins at a multiple of them.
    return tl.max_contiguous(tl.multiple_of(place, (1, 16)), (1, COLUMNS))
