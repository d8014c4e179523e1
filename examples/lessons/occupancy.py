"""Occupancy: how many warps an SM holds at once, in theory and as achieved.

    python examples/lessons/occupancy.py

Registers, shared memory, warps and blocks each limit how many blocks an SM holds; the scarcest
decides. `diglot.tools.occupancy` computes it by the rules of NVIDIA's `cuda_occupancy.h`. The
kernel itself measures the rest: each warp notes its SM (`%smid`) and when it begins and ends
(`%globaltimer`). Achieved occupancy is the time of all warps, as a share of what all warp slots
offer. Without a GPU one sees the theory alone: the interpreters know no SM and no such clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from lesson import DEVICE, ON_GPU, Row, Table, call, check_equal, compiled, cuda_kernels, show

# isort: split
import torch
import triton
import triton.language as tl

from diglot.tools.occupancy import occupancy

SHARED_KIB = (1, 16, 32, 64, 100, 200)  # of a CUDA block
WARPS = (1, 4, 8, 16)  # of a Triton program
THREADS, ELEMENTS = 256, 4096  # of a CUDA block, of a Triton program
WAVES, ROUNDS = 8, 1 << 16 if ON_GPU else 40


@triton.jit
def busy_kernel(notes, out, rounds, NOTES: tl.constexpr, WARPS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    NOW: tl.constexpr = "mov.u64 $0, %globaltimer;"
    thread = tl.arange(0, 32 * WARPS)  # one for each thread of the program
    if NOTES:  # the interpreter has no assembler
        begin = tl.inline_asm_elementwise(NOW, "=l,r", [thread], tl.int64, False, 1)
    value = tl.arange(0, BLOCK).to(tl.float32)
    for _ in range(rounds):
        value = value * 0.5 + 1.0
    tl.store(out + tl.program_id(0), tl.sum(value, 0) / BLOCK)
    if NOTES:
        end = tl.inline_asm_elementwise(NOW, "=l,r", [thread], tl.int64, False, 1)
        mine = notes + 3 * (tl.program_id(0) * WARPS + thread // 32)
        tl.store(mine, tl.extra.cuda.smid().to(tl.int64), thread % 32 == 0)
        tl.store(mine + 1, begin, thread % 32 == 0)
        tl.store(mine + 2, end, thread % 32 == 0)


def triton_resources() -> list[tuple[int, int]]:
    """Registers and shared memory of the Triton kernel, for each of WARPS."""
    from diglot.tools.resources import compile_triton
    from diglot.triton_ops.launch.plan import Specialization

    types = (torch.int64, torch.float32)
    kernels = compile_triton(
        [Specialization(busy_kernel, types, ("i32",), (True, w, ELEMENTS), w) for w in WARPS]
    )
    return [(kernel.registers, kernel.shared_bytes) for kernel in kernels]


def run(language: str, choice: int, blocks: int) -> torch.Tensor:
    """What the warps of a launch note: [warp, (SM, begin, end)].

    `choice` is a block's shared memory in CUDA C++, and a program's number of warps in Triton.
    """
    warps, each = (THREADS // 32, THREADS) if language == "cuda" else (choice, 1)
    notes = torch.zeros(blocks * warps, 3, dtype=torch.int64, device=DEVICE)
    out = torch.empty(blocks * each, device=DEVICE)
    for _ in range(2):  # the first loads the kernel
        if language == "cuda":
            call("occupancy", "busy", blocks, THREADS, choice, ROUNDS, notes, out)
        else:
            busy_kernel[(blocks,)](notes, out, ROUNDS, ON_GPU, warps, ELEMENTS, num_warps=warps)
    check_equal(out, torch.full_like(out, 2), 1e-6)
    return notes.cpu()


def achieved(notes: torch.Tensor, slots: int) -> float:
    """The share of all SMs' warp slots in use, on average from the first note to the last."""
    begin, end = notes[:, 1], notes[:, 2]
    return (end - begin).sum().item() / ((end.max() - begin.min()).item() * slots)


def most_at_once(notes: torch.Tensor) -> int:
    """The most warps that one SM held at a time."""
    spans = notes.tolist()
    steps = [(sm, begin, 1) for sm, begin, _ in spans] + [(sm, end, -1) for sm, _, end in spans]
    return max(accumulate(step for *_, step in sorted(steps)))  # at one time, ends come first


def figures(language: str, choice: int, registers: int, shared_bytes: int) -> Row:
    """The theory; and on a GPU what WAVES times as many blocks achieve as it holds at once."""
    threads = THREADS if language == "cuda" else 32 * choice
    told = occupancy("sm_90", threads, registers, shared_bytes)
    row: Row = {"blocks": told.blocks, "limited by": ", ".join(told.limited_by)}
    row |= {"theory": told.share, "achieved": None, "warps": told.warps, "most at once": None}
    if not ON_GPU:
        run(language, choice, 2)  # checks the results
        return row
    gpu = torch.cuda.get_device_properties()
    notes = run(language, choice, told.blocks * gpu.multi_processor_count * WAVES)
    slots = gpu.multi_processor_count * gpu.max_threads_per_multi_processor // 32
    return {**row, "achieved": achieved(notes, slots), "most at once": most_at_once(notes)}


def main() -> Iterator[Table]:
    """A row for each size of shared memory in CUDA C++, and for each number of warps in Triton."""
    kernel = cuda_kernels("occupancy").get("busy_kernel")
    registers = kernel.registers if kernel else 16  # without nvcc, about what it would be
    sizes = [kib << 10 for kib in SHARED_KIB]
    rows = [{"shared KiB": b >> 10, **figures("cuda", b, registers, b)} for b in sizes]
    yield Table(f"CUDA C++: blocks of {THREADS} threads, {registers} registers a thread", rows)
    found = zip(WARPS, compiled(triton_resources), strict=True)
    rows = [{"num_warps": w, "registers": r, **figures("triton", w, r, b)} for w, (r, b) in found]
    yield Table(f"Triton: {ELEMENTS} float32 numbers a program", rows)


if __name__ == "__main__":
    show(main)
