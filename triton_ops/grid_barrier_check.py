"""Phases between grid barriers. In each phase every program checks the words of all others: kernel
and launcher. Twin of csrc/ops/grid_barrier_check.cu.
"""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.global_ import BARRIER, barrier_scratch
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import ALL_PHASES, Launch, Operand
from diglot.triton_ops.lib.sync import grid_barrier

CHECK_WARPS = 8
CHECK_WORDS = tl.constexpr(8)  # words that a program writes in a phase
CHECK_BLOCK = tl.constexpr(256)


@triton.jit
def write_words(slots, phase):
    """Writes this program's words of slots[phase % 2]."""
    word_count = tl.num_programs(0) * CHECK_WORDS
    index = tl.program_id(0) * CHECK_WORDS + tl.arange(0, CHECK_WORDS)
    first = (phase * word_count + 1).to(tl.int32)
    tl.store(slots + phase % 2 * word_count + index, first + index)


@triton.jit
def count_mismatches(slots, mismatches, phase):
    """Counts the words of all programs in slots[phase % 2] that this phase has not written."""
    word_count = tl.num_programs(0) * CHECK_WORDS
    first = (phase * word_count + 1).to(tl.int32)
    wrong = tl.zeros((CHECK_BLOCK,), tl.int32)
    for start in range(0, word_count, CHECK_BLOCK):
        i = start + tl.arange(0, CHECK_BLOCK)
        found = tl.load(slots + phase % 2 * word_count + i, mask=i < word_count, other=0)
        wrong += ((i < word_count) & (found != first + i)).to(tl.int32)
    count = tl.sum(wrong)
    if count != 0:
        tl.atomic_add(mismatches + phase, count, sem="relaxed")


@triton.jit
def grid_barrier_phases(
    barrier_state,
    slots,
    mismatches,
    first,
    phases,
    WRITES: tl.constexpr,
    READS: tl.constexpr,
    PHASE: tl.constexpr,
):
    """One barrier per phase is enough: a slot is written again only after the next one."""
    for phase in range(first, first + phases):
        if WRITES and PHASE != 2:
            write_words(slots, phase)
        if PHASE == ALL_PHASES:
            grid_barrier.sync(barrier_state)
        if READS and PHASE != 1:
            count_mismatches(slots, mismatches, phase)


@launcher
def grid_barrier_check(slots: Operand, barrier: str, run: str, mismatches: Operand) -> Plan:
    """Runs mismatches.numel() phases on slots.shape[1] programs.

    `barrier` is "diglot": there is no other. `run` says what programs do in a phase: "check",
    "read" without writing, or "wait" alone.
    """
    if barrier != "diglot":
        raise ValueError(f"grid_barrier_check: Triton has no {barrier}()")
    phases = mismatches.numel()
    # Interpreted, the two halves of a phase are launches of their own.
    step = 1 if slots.device.is_interpreted else max(phases, 1)
    launches = tuple(
        Launch(
            grid_barrier_phases,
            (slots.shape[1],),
            (BARRIER, slots, mismatches),
            (first, step),
            (run == "check", run != "wait"),
            CHECK_WARPS,
            phases=2,
        )
        for first in range(0, phases, step)
    )
    return Plan("grid barrier", launches, barrier_scratch())
