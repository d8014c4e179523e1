"""Multiplies matrices by the product in CUDA C++, and checks it.

    python examples/tensor_cores/run_cuda.py

With a GPU of compute capability 9.0 it needs nvcc, ninja and a C++ compiler. Without one the kernel
is interpreted. With DIGLOT_INTERPRET_RACES=1 the interpreter looks for races.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from types import ModuleType

import torch

if not torch.cuda.is_available():
    os.environ["DIGLOT_INTERPRET"] = "1"  # before diglot is imported
INTERPRETED = os.environ.get("DIGLOT_INTERPRET") == "1"

import diglot  # noqa: E402
import diglot.interpreter  # noqa: E402

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / "product.cu", HERE / "binding.cpp"]


@functools.cache
def load_cuda() -> ModuleType:
    """The extension, compiled on the first call and kept for later ones."""
    if INTERPRETED:
        return diglot.interpreter.load("diglot_example_product", SOURCES)
    from torch.utils import cpp_extension

    return cpp_extension.load(
        name="diglot_example_product",
        sources=[str(source) for source in SOURCES],
        extra_include_paths=[diglot.get_include()],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
    )


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b, of contiguous bfloat16 matrices with rows of a multiple of 16 bytes."""
    result: torch.Tensor = load_cuda().product(a, b)
    return result


def main() -> None:
    load_cuda()
    device = "cpu" if INTERPRETED else "cuda"
    m, n, k = (200, 264, 136) if INTERPRETED else (4000, 4072, 4096)
    # Small integers, whose products and sums are exact in any order.
    a = torch.randint(-4, 5, (m, k), device=device).bfloat16()
    b = torch.randint(-4, 5, (k, n), device=device).bfloat16()
    begin = time.perf_counter()
    c = product(a, b)
    if not INTERPRETED:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    verdict = "exact" if torch.equal(c, (a.double() @ b.double()).bfloat16()) else "WRONG"
    print(f"bf16, {m} x {k} by {k} x {n}: {verdict}, {seconds:.2f} s")


if __name__ == "__main__":
    main()
