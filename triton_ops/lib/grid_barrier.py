"""A barrier across the programs of a grid. Twin of grid_barrier.cuh, which explains it.

All programs must run at once: launch with `launch_cooperative_grid=True`, and at most as many as fit.
Triton's interpreter runs one program after another, and has no barrier.
"""

from __future__ import annotations

import triton
import triton.language as tl

FLIP = tl.constexpr(-(2**31))


@triton.jit
def arrive(word):
    """What `wait` needs: the word, an int32, before this program's addition, and after it."""
    tl.debug_barrier()
    others = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2) - 1
    is_first = tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0
    step = tl.where(is_first, FLIP - others, 1)
    before = tl.atomic_add(word, step, sem="acq_rel", scope="gpu")
    return before, before + step


@triton.jit
def wait(word, before, now):
    while (before ^ now) >= 0:  # the top bit is as it was
        now = tl.atomic_add(word, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit
def sync(word):
    before, now = arrive(word)
    wait(word, before, now)
