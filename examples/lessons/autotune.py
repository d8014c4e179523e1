"""What Triton's own autotuner does: three ways to launch a kernel, timed when a key is new.

    python examples/lessons/autotune.py

The kernel adds two vectors. Its autotuner has the key n: it times every configuration when it meets
a value of n for the first time, and takes the fastest from then on. Without a GPU the kernels are
compiled, and no time is shown.
"""

from __future__ import annotations

import os
import time

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


def main() -> None:
    """Prints what is compiled; and on a GPU what each size cost and got, beside diglot's."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise SystemExit("TRITON_INTERPRET is set, and what is interpreted is not compiled")
    print("configuration             registers  bytes an access")
    for config, kernel in zip(CONFIGS, compile_configs(), strict=True):
        name = f"BLOCK {config.kwargs['BLOCK']}, {config.num_warps} warps"
        print(f"{name:24}  {kernel.registers:9}  {kernel.load_bytes:15}")
    if not torch.cuda.is_available():
        print("There is no GPU: nothing is timed, so nothing is tuned.")
        return
    tuned = make_tuned()
    for n in SIZES:
        known = len(tuned.cache)
        first, second = first_and_second_call_ms(tuned, n)
        was = "timed all" if len(tuned.cache) > known else "knew it"
        print(
            f"n = {n:9,}: {was:9}  first call {first:8.2f} ms, second {second:.3f} ms;"
            f" {tuned.best_config}"
        )
    print(f"\nTriton's cache, in this process: {len(tuned.cache)} keys")
    x, y = torch.randn(2, SIZES[-1], device="cuda")
    print(diglot.explain(diglot.add, x, y))


if __name__ == "__main__":
    main()
