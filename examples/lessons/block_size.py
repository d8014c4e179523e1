"""How much work for a block: a sweep of an elementwise kernel over block sizes and warps.

    python examples/lessons/block_size.py

Blocks that are too small do little for the cost of their start, and leave a thread less than the 16
bytes that it could access at once. Blocks that are too large leave multiprocessors without one, or
with few at the end. In CUDA C++ the source says how many threads a block has and what each one
does. In Triton it says how many elements a block has, and `num_warps` how many threads share them.
Without a GPU one sees what the compilers make of each; with one, times too.
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

from diglot.triton_ops.lib.gelu import gelu

ELEMENTS = 1 << 14 if INTERPRETED else 1 << 26  # a multiple of every block: none needs a mask
FULL, MULTIPROCESSORS = 1 << 26, 132  # of an H200
SWEEP = [(64, 4), (256, 4), (1024, 4), (4096, 4), (4096, 16), (16384, 4), (16384, 16)]
CUDA_SWEEP = [(128, 1), (512, 4), (2048, 4), (1024, 8), (4096, 8), (4096, 32), (16384, 32)]


@triton.jit
def gelu_kernel(x, out, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    # The compiler is told what it cannot know: that the arrays begin at a multiple of 16 bytes.
    values = tl.load(tl.multiple_of(x + start, 16) + at)
    tl.store(tl.multiple_of(out + start, 16) + at, gelu(values, "tanh", "float"))


def compile_with(sweep: Sequence[tuple[int, int]]) -> list[Any]:
    """What the Triton kernel is on an H200, for each block size and number of warps."""
    from diglot.tools.resources import compile_triton
    from diglot.triton_ops.launch.plan import Specialization

    types = (torch.float32,) * 2
    return compile_triton(
        [Specialization(gelu_kernel, types, (), (block,), warps) for block, warps in sweep]
    )


def triton_figures() -> list[tuple[int, int | None]]:
    """Registers and the width of a load for each of SWEEP."""
    return [(kernel.registers, kernel.load_bytes) for kernel in compile_with(SWEEP)]


def cuda_kernel_figures() -> list[tuple[int, int | None] | None]:
    """Those of the CUDA kernel for each of CUDA_SWEEP; None without nvcc."""
    kernels = cuda_kernels("block_size")
    names = [f"gelu_kernel<{32 * warps}, {block // (128 * warps)}>" for block, warps in CUDA_SWEEP]
    found = [kernels.get(name) for name in names]
    return [kernel and (kernel.registers, kernel.load_bytes) for kernel in found]


def run(language: str, block: int, warps: int, x: torch.Tensor, out: torch.Tensor) -> None:
    """One launch."""
    if language == "cuda":
        call("block_size", "gelu_of", block, 32 * warps, x.numel(), x, out)
    else:
        grid = (x.numel() // block,)
        gelu_kernel[grid](x, out, block, num_warps=warps, enable_fp_fusion=False)


def main() -> Iterator[Table]:
    """A row for each block size and number of warps, in both languages; results are checked."""
    x = torch.randn(ELEMENTS, device=DEVICE)
    out = torch.empty_like(x)
    expected = torch.nn.functional.gelu(x.double(), approximate="tanh").float()
    ways = [("cuda", *how) for how in CUDA_SWEEP] + [("triton", *how) for how in SWEEP]
    rows, calls = list[Row](), []
    for way, kernel in zip(ways, [*cuda_kernel_figures(), *compiled(triton_figures)], strict=True):
        out.zero_()
        calls.append(partial(run, *way, x, out))
        calls[-1]()
        check_equal(out, expected, 1e-5)
        language, block, warps = way
        registers, width = kernel or (None, None)
        row: Row = {"language": language, "block": block, "warps": warps}
        row |= {"for a thread": block / (32 * warps), "registers": registers}
        rows.append({**row, "bytes a load": width, "blocks an SM": FULL / block / MULTIPROCESSORS})
    add_times(rows, calls, 2 * x.nbytes)
    yield Table(f"GELU of {FULL:,} float32 numbers, {MULTIPROCESSORS} SMs", rows)


if __name__ == "__main__":
    show(main)
