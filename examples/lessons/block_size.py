"""How much work for a block: a sweep of an elementwise kernel over block sizes and warps.

    python examples/lessons/block_size.py

Blocks too small do little for what their start costs, and leave a thread less than the 16 bytes
that it could access at once; blocks too large leave multiprocessors without one, or at the end with
the last few. No GPU is needed for what the compiler makes of each; with one, times are shown.
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
from diglot.triton_ops.lib.gelu import gelu

ELEMENTS = 1 << 26  # a multiple of every block, so that none needs a mask
MULTIPROCESSORS = 132  # of an H200
SWEEP = [(64, 4), (256, 4), (1024, 4), (4096, 4), (4096, 16), (16384, 4), (16384, 16)]


@triton.jit
def gelu_kernel(x, out, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    # The compiler is told what it cannot know: that the arrays begin at a multiple of 16 bytes.
    values = tl.load(tl.multiple_of(x + start, 16) + at)
    tl.store(tl.multiple_of(out + start, 16) + at, gelu(values, "tanh", "float"))


def compile_with(sweep: Sequence[tuple[int, int]]) -> list[KernelResources]:
    """What the kernel is on an H200, for each block size and number of warps."""
    from diglot.triton_ops.launch.plan import Specialization

    types = (torch.float32,) * 2
    return compile_triton(
        [Specialization(gelu_kernel, types, (), (block,), warps) for block, warps in sweep]
    )


def times_us(sweep: Sequence[tuple[int, int]], elements: int = ELEMENTS) -> list[float]:
    """How long each takes on this GPU; the results are checked."""
    from diglot.tools import measure

    x = torch.randn(elements, device="cuda")
    out = torch.empty_like(x)

    def run(block: int, warps: int) -> None:
        grid = (elements // block,)
        gelu_kernel[grid](x, out, block, num_warps=warps, enable_fp_fusion=False)

    expected = torch.nn.functional.gelu(x.double(), approximate="tanh").float()
    for how in sweep:
        out.zero_()
        run(*how)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    times = measure.interleaved({str(how): partial(run, *how) for how in sweep})
    return [times[str(how)].median_us for how in sweep]


def main() -> None:
    """Prints a line for each block size and number of warps."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.exit("TRITON_INTERPRET is set, and what is interpreted is not compiled")
    on_gpu = torch.cuda.is_available()
    times = times_us(SWEEP) if on_gpu else [None] * len(SWEEP)
    print(f"GELU of {ELEMENTS:,} float32 numbers, on {MULTIPROCESSORS} multiprocessors")
    print("block  warps  for a thread  registers  bytes an access  blocks for each")
    for (block, warps), kernel, time in zip(SWEEP, compile_with(SWEEP), times, strict=True):
        line = (
            f"{block:5}  {warps:5}  {block / (32 * warps):12g}  {kernel.registers:9}"
            f"  {kernel.load_bytes:15}  {ELEMENTS / block / MULTIPROCESSORS:15.1f}"
        )
        if time is not None:
            line += f"  {time:6.0f} µs, {8e-3 * ELEMENTS / time:.0f} GB/s"
        print(line)
    if not on_gpu:
        print("There is no GPU: how long each takes is not shown.")


if __name__ == "__main__":
    main()
