"""Register spilling: one kernel, compiled with ever fewer registers for a thread.

    python examples/lessons/spilling.py

out = a · Σ(a·b) + b in rows: a and b are needed again after the sum, so that a thread holds all its
elements of both. With fewer registers than that takes, the compiler stores them to local memory,
which is memory of the GPU's like any other, and loads them again. No GPU is needed to see it; with
one, times are shown too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial

import torch
import triton
import triton.language as tl

from diglot.tools.resources import KernelResources, compile_triton

BLOCK, WARPS = 8192, 4  # 64 elements of each array for a thread
CAPS = (None, 128, 64, 32)
REGISTERS = 65536  # of a multiprocessor (CUDA C++ Programming Guide, "Compute Capabilities")


@triton.jit
def rows_kernel(a, b, out, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + at)
    y = tl.load(b + at)
    tl.store(out + at, x * tl.sum(x * y, 0) + y)


def compile_with(caps: Sequence[int | None]) -> list[KernelResources]:
    """What the kernel is on an H200, with each limit on a thread's registers."""
    from diglot.triton_ops.launch.plan import Specialization

    types = (torch.float32,) * 3
    return compile_triton(
        [Specialization(rows_kernel, types, (), (BLOCK,), WARPS, False, cap) for cap in caps]
    )


def times_us(caps: Sequence[int | None]) -> list[float]:
    """How long it takes on this GPU, for a gigabyte, with each limit; the result is checked."""
    from diglot.tools import measure

    a, b = torch.randn(2, 1 << 14, BLOCK, device="cuda")
    out = torch.empty_like(a)

    def run(cap: int | None) -> None:
        rows_kernel[(a.shape[0],)](a, b, out, BLOCK, num_warps=WARPS, maxnreg=cap)

    expected = a * (a * b).sum(1, keepdim=True) + b
    for cap in caps:
        out.zero_()
        run(cap)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-2)
    times = measure.interleaved({str(cap): partial(run, cap) for cap in caps})
    return [times[str(cap)].median_us for cap in caps]


def main() -> None:
    """Prints a line for each limit."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.exit("TRITON_INTERPRET is set, and what is interpreted has no registers")
    on_gpu = torch.cuda.is_available()
    times = times_us(CAPS) if on_gpu else [None] * len(CAPS)
    print("limit  registers  spilled bytes  blocks that the registers hold" + "    time" * on_gpu)
    for cap, kernel, time in zip(CAPS, compile_with(CAPS), times, strict=True):
        blocks = REGISTERS // (-(-kernel.registers // 8) * 8 * 32 * WARPS)
        line = f"{cap or 'none':>5}  {kernel.registers:9}  {kernel.spill_bytes:13}  {blocks:30}"
        print(line + (f"  {time:6.0f} µs" if time is not None else ""))
    if not on_gpu:
        print("There is no GPU: what the spills cost is not shown.")


if __name__ == "__main__":
    main()
