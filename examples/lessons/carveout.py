"""The carve-out: L1 cache and shared memory are one memory of an SM, divided for each kernel.

    python examples/lessons/carveout.py

On compute capability 9.0 they have 256 KiB together, and shared memory can be one of ten sizes
(CUDA C++ Programming Guide, "Compute Capability 9.0"). A kernel asks for a share by
`cudaFuncAttributePreferredSharedMemoryCarveout`, a hint that the driver rounds up to such a size.
Here blocks read their own window of memory again and again: what shared memory takes, L1 lacks, and
a window that no longer fits is read from L2. Without a GPU one sees which windows fit. Triton has
no such setting: the driver decides by how much shared memory a kernel uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from lesson import DEVICE, INTERPRETED, Row, Table, add_times, call, check_equal, show

TOGETHER_KIB = 256
SHARED_KIB = (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)
PERCENT = (0, 25, 50, 75, 100)
WINDOWS_KIB = (24, 96, 160)
BLOCKS, ROUNDS = (2, 2) if INTERPRETED else (132, 64)  # a block for each SM of an H200


def shared_kib(percent: int) -> int:
    """The size of shared memory that a carve-out leads to, if the driver follows the hint."""
    wanted = SHARED_KIB[-1] * percent / 100
    return next(size for size in SHARED_KIB if size >= wanted)


def reread(percent: int, values: torch.Tensor, out: torch.Tensor) -> None:
    """One launch with a block for each row of `values`."""
    blocks, window = values.shape
    call("carveout", "reread", percent, blocks, window, ROUNDS, values, out)


def main() -> Iterator[Table]:
    """A row for each window and carve-out."""
    rows, calls = list[Row](), []
    out = torch.empty(BLOCKS, 1024, device=DEVICE)
    for kib in WINDOWS_KIB:
        values = torch.rand(BLOCKS, kib << 8, device=DEVICE)
        for percent in PERCENT:
            calls.append(partial(reread, percent, values, out))
            if percent == 50:
                calls[-1]()
                sums = out.double().sum(1) / values.double().sum(1)
                check_equal(sums / ROUNDS, torch.ones_like(sums), 1e-4)
            left = TOGETHER_KIB - shared_kib(percent)
            row: Row = {"window KiB": kib, "carve-out %": percent, "L1 KiB": left}
            rows.append({**row, "the window": "fits" if kib <= left else "does not fit"})
    add_times(rows, calls, [row["window KiB"] * BLOCKS * ROUNDS << 10 for row in rows])
    yield Table(f"CUDA C++: {BLOCKS} blocks read their windows {ROUNDS} times", rows)


if __name__ == "__main__":
    show(main)
