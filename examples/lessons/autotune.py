"""What Triton's own autotuner does: three ways to launch a kernel, timed when a key is new.

    python examples/lessons/autotune.py

The kernel adds two vectors. Its autotuner has the key n: it times every configuration when it meets
a value of n for the first time, and takes the fastest from then on. Without a GPU the kernels are
compiled, and no time is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from lesson import ON_GPU, Row, Table, compiled, show

# isort: split
import torch
import triton
import triton.language as tl

import diglot
from diglot.tools.resources import KernelResources, compile_triton

CONFIGS = [
    triton.Config({"BLOCK": 128}, num_warps=4),
    triton.Config({"BLOCK": 256}, num_warps=8),
    triton.Config({"BLOCK": 512}, num_warps=8, num_stages=3),
]
SIZES = (1 << 12, 1 << 20, 1 << 20, 1 << 26)


def add_vectors(x, y, out, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


def make_tuned() -> triton.runtime.Autotuner:
    """The kernel, with an autotuner of its own."""
    return triton.autotune(CONFIGS, key=["n"])(triton.jit(add_vectors))


def compile_configs() -> list[KernelResources]:
    """What the kernel is on an H200, for each configuration."""
    from diglot.triton_ops.launch.plan import Specialization

    kernel = triton.jit(add_vectors)
    types = (torch.float32,) * 3
    return compile_triton(
        [
            Specialization(kernel, types, ("i64",), (c.kwargs["BLOCK"],), c.num_warps)
            for c in CONFIGS
        ]
    )


def first_and_second_call_ms(tuned: triton.runtime.Autotuner, n: int) -> tuple[float, float]:
    """Host and device together, of two calls with as many elements; the sum is checked."""
    x, y = torch.randn(2, n, device="cuda")
    out = torch.empty_like(x)
    times = []
    for _ in range(2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    torch.testing.assert_close(out, x + y, rtol=0, atol=0)
    return times[0], times[1]


def resources() -> list[tuple[int, int | None]]:
    """Registers and the width of a load, for each configuration."""
    return [(kernel.registers, kernel.load_bytes) for kernel in compile_configs()]


def main() -> Iterator[Table]:
    """What the compiler makes; and on a GPU what each size cost and got, beside diglot's choice."""
    rows = list[Row]()
    for config, (registers, width) in zip(CONFIGS, compiled(resources), strict=True):
        row: Row = {"BLOCK": config.kwargs["BLOCK"], "warps": config.num_warps}
        rows.append({**row, "registers": registers, "bytes a load": width})
    yield Table("Compiled for sm_90", rows)
    if not ON_GPU:
        return
    tuned, rows = make_tuned(), list[Row]()
    for n in SIZES:
        known = len(tuned.cache)
        first, second = first_and_second_call_ms(tuned, n)
        row = {"n": n, "the tuner": "timed all" if len(tuned.cache) > known else "knew it"}
        row |= {"first call ms": first, "second ms": second}
        rows.append({**row, "best": str(tuned.best_config)})
    yield Table(f"Triton's cache, in this process: {len(tuned.cache)} keys", rows)
    x, y = torch.randn(2, SIZES[-1], device="cuda")
    print(diglot.explain(diglot.add, x, y))


if __name__ == "__main__":
    show(main)
