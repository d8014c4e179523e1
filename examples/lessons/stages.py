"""Stages: how many tiles a pipelined loop has under way, until shared memory does not suffice.

    python examples/lessons/stages.py

`num_stages` of a matrix product says how many iterations' tiles are loaded ahead. Each stage takes
a tile of both operands in shared memory, here 32 KiB, and a block has at most 227 KiB on sm_90.
More stages hide more of the time that memory takes; too many do not fit, and the launch raises
`OutOfResources`. Whoever sweeps must handle that, as Triton's autotuner does: it counts such a
configuration as infinitely slow. Without a GPU the kernel is compiled ahead of time, and its shared
memory is compared with the limit. A CUDA kernel says itself what each stage holds, and the runtime
refuses too much when the launch asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lesson import DEVICE, INTERPRETED, Row, Table, add_times, check_equal, compiled, show

# isort: split
import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

STAGES = (1, 2, 3, 4, 6, 7, 8)
BLOCK, STEP, WARPS = 128, 64, 8
SHARED_LIMIT = 227 << 10  # of a block on sm_90 (CUDA C++ Programming Guide, "Compute Capabilities")
SIZE = 4096


@triton.jit
def product_kernel(a, b, out, size, BLOCK: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr):  # noqa: ANN001, ANN201
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    k = tl.arange(0, STEP)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in tl.range(0, size, STEP, num_stages=STAGES):
        left = tl.load(a + row * size + (first + k)[None, :])
        right = tl.load(b + (first + k)[:, None] * size + column)
        total = tl.dot(left, right, total)
    tl.store(out + row * size + column, total.to(tl.float16))


def shared_bytes() -> list[int]:
    """Shared memory of a block with each of STAGES, on sm_90."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {**dict.fromkeys(("a", "b", "out"), "*fp16"), "size": "i32"}
    names = ("BLOCK", "STEP", "STAGES")
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(4)}
    found = []
    for stages in STAGES:
        constants = dict(zip(names, (BLOCK, STEP, stages), strict=True))
        signature = {**types, **dict.fromkeys(names, "constexpr")}
        source = ASTSource(product_kernel, signature, constants, aligned)
        target, options = GPUTarget("cuda", 90, 32), {"num_warps": WARPS}
        found.append(triton.compile(source, target=target, options=options).metadata.shared)
    return found


def product(stages: int, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """out = a b, of square float16 matrices whose size is a multiple of BLOCK."""
    size = a.shape[0]
    grid = (size // BLOCK, size // BLOCK)
    product_kernel[grid](a, b, out, size, BLOCK, STEP, stages, num_warps=WARPS)


def try_stages(stages: int, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> str | None:
    """Runs the product and checks it; why it did not run, if it was refused."""
    try:
        product(stages, a, b, out)
    except OutOfResources as error:
        return f"OutOfResources: {error.name}, {error.required} of {error.limit}"
    check_equal(out, (a.double() @ b.double()).half(), 1e-2)
    return None


def main() -> Iterator[Table]:
    """A row for each number of stages; then the times of those that ran."""
    size = BLOCK if INTERPRETED else SIZE
    a, b = (torch.randn(2, size, size, device=DEVICE) / 8).half()
    out, rows, ran, calls = torch.empty_like(a), list[Row](), list[Row](), []
    for stages, needed in zip(STAGES, compiled(shared_bytes), strict=True):
        # Under the interpreter stages mean nothing: one product is enough.
        refused = try_stages(stages, a, b, out) if stages == 1 or not INTERPRETED else None
        row: Row = {"stages": stages, "shared KiB": needed / 1024}
        row |= {"fits 227 KiB": "yes" if needed <= SHARED_LIMIT else "no", "refused": refused}
        rows.append(row)
        if refused is None and not INTERPRETED:
            ran.append({"stages": stages})
            calls.append(partial(product, stages, a, b, out))
    yield Table(f"Products of float16 matrices by blocks of {BLOCK} x {BLOCK} x {STEP}", rows)
    if ran:
        add_times(ran, calls)
        for row in ran:
            row["TFLOP/s"] = 2e-6 * SIZE**3 / row["µs"]
        yield Table(f"Of {SIZE} x {SIZE} matrices", ran)


if __name__ == "__main__":
    show(main)
