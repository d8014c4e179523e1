"""Host side of a kernel that reduces whole arrays and then maps them: how they are cut, and the
launch. Twin of csrc/include/diglot/launch/global.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from diglot.backends.plans import BARRIER_BYTES, Plan, Scratch

# Relative, because mypy finds this folder under its name in the tree.
from diglot.triton_ops.lib.reduce.global_ import MAX_FIELDS, THREADS

from .plan import ACCESS_BYTES, NOTHING, Device, Launch, Operand, Part

GLOBAL_WARPS = THREADS.value // 32

BARRIER = Part(torch.int32, 1)  # the word of a grid barrier


def behind_barrier(dtype: torch.dtype, count: int) -> Part:
    """A part of scratch, behind the grid barrier's."""
    return Part(dtype, count, BARRIER_BYTES)


def barrier_scratch(part: Part | None = None) -> Scratch:
    """Scratch of a grid barrier and one more part."""
    return Scratch(BARRIER_BYTES if part is None else part.end, BARRIER_BYTES, "stream")


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that arithmetic on `dtype` is done in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def cut_into_chunks(
    device: Device, n: int, element_size: int, most_accesses: int, room: int
) -> tuple[int, int, int]:
    """Elements of a tile, chunks (at most `room`), and tiles of a chunk, for n elements."""
    most_held = device.tuned("global.triton.most_held", element_size)
    most_accesses = min(most_accesses, max(most_held * element_size // ACCESS_BYTES, 1))
    few_tiles = device.tuned("global.triton.few_tiles")
    accesses = 1
    while True:
        tile = THREADS.value * accesses * ACCESS_BYTES // element_size
        tiles = -(-n // tile)
        if tiles <= few_tiles or accesses == most_accesses:
            break
        accesses *= 2
    chunk_tiles = -(-tiles // room)
    return tile, -(-tiles // chunk_tiles), chunk_tiles


def plan_chunks(
    kernel: Any,
    inputs: tuple[Operand, ...],
    most_accesses: int,
    blocks: int,
    out: Operand,
    statistics: tuple[Operand, ...] = (),
    numbers: Callable[..., tuple[int, ...]] | None = None,
) -> Plan:
    """Plans a launch with a program for each chunk, or with as many as run at once.

    Args:
        kernel: of (pointers: the inputs, statistics, the barrier's word, states, the output; n,
            chunks, tiles of a chunk, numbers, ALIGNED, BLOCK, FOLD, PHASE).
        inputs: arrays that are cut, as the output is; all lie in one dense order.
        most_accesses: the most accesses of a thread to each input in a tile.
        blocks: the number of programs; 0: as many as run at once.
        out: the output.
        statistics: arrays of a few numbers.
        numbers: makes 64-bit arguments from the launcher's unseen ones.
    """
    n, size = out.numel(), out.element_size()
    if n == 0:
        return NOTHING
    device = out.device
    room = device.tuned("global.triton.most_folded", size)
    tile, chunks, chunk_tiles = cut_into_chunks(device, n, size, most_accesses, room)
    is_aligned = all(array.is_aligned for array in (*inputs, out))
    few_folded = device.tuned("global.triton.few_folded")
    fold = few_folded if chunks <= few_folded else triton.next_power_of_2(room)
    programs = device.tuned("global.triton.programs")
    most = min(blocks, chunks) if blocks > 0 else chunks
    states = behind_barrier(compute_dtype(out.dtype), MAX_FIELDS.value * chunks)
    launch = Launch(
        kernel,
        (device.programs(most, programs),),
        (*inputs, *statistics, BARRIER, states, out),
        (n, chunks, chunk_tiles),
        (is_aligned, tile, fold),
        GLOBAL_WARPS,
        numbers,
        phases=2,
        per_multiprocessor=programs,
        max_registers=device.tuned("global.triton.registers"),
    )
    name = f"tiles of {tile}{', 16-byte accesses' * is_aligned}"
    return Plan(name, (launch,), barrier_scratch(states))
