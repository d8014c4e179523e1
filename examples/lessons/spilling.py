"""Register spilling: one kernel, compiled with ever fewer registers for a thread.

    python examples/lessons/spilling.py

out = a · Σ(a·b) + b in rows: a and b are needed again after the sum, so that a thread holds all its
elements of both. With fewer registers than that takes, the compiler stores them to local memory,
which is memory of the GPU's like any other, and loads them again. Triton's limit is `maxnreg`. In
CUDA C++ it follows from the blocks that an SM must hold, the second number of `__launch_bounds__`.
No GPU is needed to see what spills; with one, times are shown too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from lesson import (
    DEVICE,
    INTERPRETED,
    Row,
    Table,
    add_times,
    call,
    check_equal,
    compiled,
    cuda_kernels,
    show,
)

# isort: split
import torch
import triton
import triton.language as tl

from diglot.tools.occupancy import occupancy

BLOCK, WARPS = 8192, 4  # 64 elements of each array for a thread
CAPS = (None, 128, 64, 32)
BLOCKS_AN_SM = (1, 4, 8, 16)  # of 128 threads: 512, 128, 64 and 32 registers for each
ROWS = 2 if INTERPRETED else 1 << 14


@triton.jit
def rows_kernel(a, b, out, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + at)
    y = tl.load(b + at)
    tl.store(out + at, x * tl.sum(x * y, 0) + y)


def compile_with(caps: Sequence[int | None]) -> list[Any]:
    """What the Triton kernel is on an H200, with each limit on a thread's registers."""
    from diglot.tools.resources import compile_triton
    from diglot.triton_ops.launch.plan import Specialization

    types = (torch.float32,) * 3
    return compile_triton(
        [Specialization(rows_kernel, types, (), (BLOCK,), WARPS, False, cap) for cap in caps]
    )


def triton_figures() -> list[tuple[int, int]]:
    """Registers and spilled bytes with each of CAPS."""
    return [(kernel.registers, kernel.spill_bytes) for kernel in compile_with(CAPS)]


def cuda_kernel_figures() -> list[tuple[int, int] | None]:
    """Those of the CUDA kernel with each of BLOCKS_AN_SM; None without nvcc."""
    kernels = cuda_kernels("spilling")
    found = [kernels.get(f"rows_kernel<{blocks}>") for blocks in BLOCKS_AN_SM]
    return [kernel and (kernel.registers, kernel.spill_bytes) for kernel in found]


def run(language: str, limit: int | None, a: Any, b: Any, out: Any) -> None:
    """One launch."""
    if language == "cuda":
        assert limit is not None
        call("spilling", "rows", limit, a.shape[0], a, b, out)
    else:
        rows_kernel[(a.shape[0],)](a, b, out, BLOCK, num_warps=WARPS, maxnreg=limit)


def main() -> Iterator[Table]:
    """A row for each limit, in both languages; the results are checked."""
    a, b = torch.randn(2, ROWS, BLOCK, device=DEVICE)
    out, expected = torch.empty_like(a), a * (a * b).sum(1, keepdim=True) + b
    limits = [("cuda", blocks) for blocks in BLOCKS_AN_SM]
    ways: list[tuple[str, int | None]] = [*limits, *(("triton", cap) for cap in CAPS)]
    rows, calls = list[Row](), []
    for way, kernel in zip(ways, [*cuda_kernel_figures(), *compiled(triton_figures)], strict=True):
        out.zero_()
        calls.append(partial(run, *way, a, b, out))
        calls[-1]()
        check_equal(out, expected, 1e-2)
        registers, spilled = kernel or (None, None)
        held = registers and occupancy("sm_90", 32 * WARPS, registers, 0).blocks
        row: Row = {"language": way[0], "limit": way[1] or "none", "registers": registers}
        rows.append({**row, "spilled bytes": spilled, "blocks an SM": held})
    add_times(rows, calls, 3 * a.nbytes)
    yield Table("Limits: blocks an SM in CUDA C++, registers in Triton", rows)


if __name__ == "__main__":
    show(main)
