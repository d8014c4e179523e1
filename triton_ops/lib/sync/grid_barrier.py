"""A barrier across the programs of a grid. csrc/include/diglot/sync/grid_barrier.cuh, its twin,
explains it.

    @triton.jit
    def kernel(barrier_state, ...):
        tl.store(partial + tl.program_id(0), ...)
        grid_barrier.sync(barrier_state)
        total = tl.sum(tl.load(partial + tl.arange(0, PROGRAMS)))

All programs must run at once, so launch with `launch_cooperative_grid=True`, and no more programs
than fit. A `diglot.triton_ops.launch.plan.Launch` with `phases` does so. `barrier_state` points to
an int32. Polling is an atomic addition of zero, which compiles to a load with an acquire.

Triton's interpreter runs one program after another, so a barrier there is an error.

With DIGLOT_CHECKED=1 in the environment when this is imported, a program that has waited for ten
seconds prints its place, and traps.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from diglot.triton_ops.lib.types import INTERPRETED

FLIP = tl.constexpr(-(2**31))
CHECKED = tl.constexpr(os.environ.get("DIGLOT_CHECKED") == "1")
PATIENCE = tl.constexpr(10_000_000_000)  # nanoseconds


@triton.jit
def arrive(barrier_state):
    """The barrier's state before and after this program's addition, which `wait` takes."""
    tl.debug_barrier()
    others = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2) - 1
    is_first = tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0
    step = tl.where(is_first, FLIP - others, 1)
    before = tl.atomic_add(barrier_state, step, sem="acq_rel", scope="gpu")
    return before, before + step


@triton.jit
def wait(barrier_state, before, now):
    """Waits until all programs have arrived."""
    if CHECKED:
        begin = globaltimer()
    while (before ^ now) >= 0:  # the top bit is as it was
        now = tl.atomic_add(barrier_state, 0, sem="acquire", scope="gpu")
        if CHECKED:
            if globaltimer() - begin > PATIENCE:
                give_up(now)
    tl.debug_barrier()


@triton.jit
def sync(barrier_state):
    """Arrives, and waits."""
    before, now = arrive(barrier_state)
    wait(barrier_state, before, now)


@triton.jit
def give_up(now):
    # Without the first program the low bits count the others; it adds all but those missing.
    programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
    low = now & 0x7FFFFFFF
    arrived = tl.where(low > 0x3FFFFFFF, (low + programs) & 0x7FFFFFFF, low)
    tl.device_print(
        "grid barrier: a program has waited 10 s; programs, and those arrived:", programs
    )
    tl.device_print("arrived:", arrived)
    tl.inline_asm_elementwise(
        "trap; mov.b32 $0, $1;", "=r,r", [now], dtype=tl.int32, is_pure=False, pack=1
    )


if INTERPRETED:

    def arrive(barrier_state):
        raise RuntimeError(
            "a grid barrier: Triton's interpreter runs one program after another, and no program "
            "can wait for a later one; run what is between the barriers as launches of their own"
        )

    def wait(barrier_state, before, now):
        arrive(barrier_state)

    def sync(barrier_state):
        arrive(barrier_state)
