"""Host side of a kernel that reduces whole arrays and then maps them: how they are cut, and the
launch. Twin of csrc/include/diglot/global_launch.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton

# Relative, because mypy finds this folder under its name in the tree.
from .launch import launch_cooperatively
from .lib.global_reduce import THREADS

if TYPE_CHECKING:
    from .launch import Tensors

ACCESS_BYTES = 16
GLOBAL_WARPS = THREADS.value // 32
GLOBAL_PROGRAMS = 2  # on a multiprocessor
GLOBAL_REGISTERS = 128  # of a thread, with which so many fit
FEW_TILES, MAX_FIELDS = 256, 3
# By the bytes of an element: with more, threads would spill.
MOST_HELD = {2: 32, 4: 32, 8: 8}  # elements of a tile, by each thread
MOST_FOLDED = {2: 4096, 4: 4096, 8: 2048}  # states that a program combines at once
FEW_FOLDED = 256  # states that are combined at once, where there are no more


def cut_into_chunks(
    n: int, element_size: int, most_accesses: int, room: int
) -> tuple[int, int, int]:
    """Elements of a tile, chunks (at most `room`), and tiles of a chunk, for n elements."""
    most_accesses = min(most_accesses, MOST_HELD[element_size] * element_size // ACCESS_BYTES)
    accesses = 1
    while True:
        tile = THREADS.value * accesses * ACCESS_BYTES // element_size
        tiles = -(-n // tile)
        if tiles <= FEW_TILES or accesses == most_accesses:
            break
        accesses *= 2
    chunk_tiles = -(-tiles // room)
    return tile, -(-tiles // chunk_tiles), chunk_tiles


def launch_on_chunks(
    kernel: Any,
    arrays: int,
    most_accesses: int,
    blocks: int,
    workspace: torch.Tensor,
    tensors: Tensors,
    numbers: tuple[int, ...] = (),
) -> str:
    """Launches a program for each chunk, or fewer that run at once, and says how.

    Args:
        kernel: of (pointers, n, chunks, tiles of a chunk, numbers, ALIGNED, BLOCK, FOLD, PHASE).
        arrays: how many of the first tensors are inputs that are cut; the last one is the output.
        most_accesses: that a thread makes to each of them in a tile.
        blocks: how many programs; 0: as many as run at once.
        workspace: room for the states of chunks, MAX_FIELDS numbers each, which is one of them.
        tensors: its pointers.
        numbers: 64-bit arguments.
    """
    out = tensors[-1]
    n = out.numel()
    if n == 0:
        return "nothing to do"
    room = min(workspace.numel() // MAX_FIELDS, MOST_FOLDED[out.element_size()])
    tile, chunks, chunk_tiles = cut_into_chunks(n, out.element_size(), most_accesses, room)
    is_aligned = all(
        tensor is not None and tensor.data_ptr() % ACCESS_BYTES == 0
        for tensor in (*tensors[:arrays], out)
    )
    fold = FEW_FOLDED if chunks <= FEW_FOLDED else triton.next_power_of_2(room)
    launch_cooperatively(
        kernel,
        min(blocks, chunks) if blocks > 0 else chunks,
        GLOBAL_PROGRAMS,
        tensors,
        (n, chunks, chunk_tiles, *numbers),
        (is_aligned, tile, fold),
        GLOBAL_WARPS,
        phases=2,
        max_registers=GLOBAL_REGISTERS,
    )
    return f"tiles of {tile}{', 16-byte accesses' if is_aligned else ''}"
