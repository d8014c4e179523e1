"""Occupancy: how many warps an SM holds at once, in theory and as achieved.

    python examples/lessons/occupancy.py

Registers, shared memory, warps and blocks each limit how many blocks an SM holds; the scarcest
decides. `diglot.tools.occupancy` computes it by the rules of NVIDIA's `cuda_occupancy.h`, and the
CUDA runtime answers the same question. What is achieved is measured: each block writes when it
began and ended, and the spans that overlap are counted. It is at most what the theory says, because
blocks start one after the other and the last ones leave SMs empty. A Triton kernel's occupancy
follows from its compiled code in the same way; there only `num_warps` is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

from lesson import DEVICE, INTERPRETED, ON_GPU, Row, Table, call, compiled, cuda_kernels, show

# isort: split
import torch
import triton
import triton.language as tl

from diglot.tools.occupancy import LIMITS, occupancy

SHARED_KIB = (1, 16, 32, 64, 100, 200)
THREADS, ROUNDS, WAVES = 256, 1 << 16, 8


@triton.jit
def square_kernel(x, out, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at)
    tl.store(out + at, values * values)


def triton_occupancy() -> list[Row]:
    """The Triton kernel's, for 8192 elements a program and several numbers of warps."""
    from diglot.tools.resources import compile_triton
    from diglot.triton_ops.launch.plan import Specialization

    rows: list[Row] = []
    for warps in (4, 8, 16):
        types = (torch.float32, torch.float32)
        (kernel,) = compile_triton([Specialization(square_kernel, types, (), (8192,), warps)])
        told = occupancy("sm_90", 32 * warps, kernel.registers, kernel.shared_bytes)
        row = {"num_warps": warps, "registers": kernel.registers, "blocks": told.blocks}
        rows.append({**row, "theory": told.share, "limited by": ", ".join(told.limited_by)})
    return rows


def runtime_blocks(shared_bytes: int) -> int:
    """What the CUDA runtime says that an SM holds."""
    blocks = torch.zeros(1, dtype=torch.int32)
    call("occupancy", "resident", THREADS, shared_bytes, blocks)
    return int(blocks)


def achieved(spans: torch.Tensor, multiprocessors: int) -> float:
    """The share of warp slots in use, on average from the first block's begin to the last's end.

    Args:
        spans: [blocks, 2], begin and end.
        multiprocessors: of the GPU.
    """
    busy = (spans[:, 1] - spans[:, 0]).sum().item() * (THREADS // 32)
    whole = (spans[:, 1].max() - spans[:, 0].min()).item()
    return busy / (whole * multiprocessors * LIMITS["sm_90"].warps)


def measured(shared_bytes: int, blocks: int) -> float:
    """Occupancy as achieved by so many blocks."""
    multiprocessors = torch.cuda.get_device_properties().multi_processor_count
    count = blocks * multiprocessors * WAVES
    spans = torch.zeros(count, 2, dtype=torch.int64, device=DEVICE)
    out = torch.empty(count * THREADS, device=DEVICE)
    for _ in range(2):  # the first loads the kernel
        call("occupancy", "busy", count, THREADS, shared_bytes, ROUNDS, spans, out)
    return achieved(spans.cpu(), multiprocessors)


def main() -> Iterator[Table]:
    """A row for each size of shared memory; then the Triton kernel."""
    kernel = cuda_kernels("occupancy").get("busy_kernel")
    registers = kernel.registers if kernel else 16  # without nvcc, about what it would be
    rows = []
    for kib in SHARED_KIB:
        shared_bytes = kib << 10
        told = occupancy("sm_90", THREADS, registers, shared_bytes)
        row: Row = {"shared KiB": kib, "blocks": told.blocks, "theory": told.share}
        row["runtime's blocks"] = runtime_blocks(shared_bytes) if ON_GPU else None
        row["achieved"] = measured(shared_bytes, told.blocks) if ON_GPU else None
        rows.append({**row, "limited by": ", ".join(told.limited_by)})
    yield Table(f"CUDA C++: blocks of {THREADS} threads, {registers} registers a thread", rows)
    yield Table("Triton: 8192 float32 numbers a program, sm_90", compiled(triton_occupancy))
    if INTERPRETED:
        out, spans = torch.zeros(2 * THREADS), torch.zeros(2, 2, dtype=torch.int64)
        call("occupancy", "busy", 2, THREADS, 4 * THREADS, 40, spans, out)
        torch.testing.assert_close(out, torch.full_like(out, 2))


if __name__ == "__main__":
    show(main)
