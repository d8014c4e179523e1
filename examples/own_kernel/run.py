"""Compiles, loads and calls a CUDA C++ kernel and its Triton twin, and compares them with PyTorch.

    python examples/own_kernel/run.py

With a GPU it needs nvcc, ninja, a C++ compiler and Python's C headers. Without one, or with
DIGLOT_INTERPRET=1, both kernels are interpreted, and nvcc is not needed. The kernels are geglu.cu
and geglu_triton.py.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    # Before diglot is imported or a Triton kernel defined: both look once.
    os.environ["DIGLOT_INTERPRET"] = "1"
if os.environ.get("DIGLOT_INTERPRET") == "1":
    os.environ["TRITON_INTERPRET"] = "1"

import diglot
import diglot.interpreter

HERE = Path(__file__).parent
SOURCES = [HERE / "geglu.cu", HERE / "binding.cpp"]
INTERPRETED = os.environ.get("DIGLOT_INTERPRET") == "1"


@functools.cache
def load_cuda() -> ModuleType:
    """The extension, compiled on the first call (about a minute) and kept for later ones."""
    print("compiling geglu.cu: about a minute, the first time", file=sys.stderr, flush=True)
    if INTERPRETED:
        return diglot.interpreter.load("diglot_example_geglu", SOURCES)
    from torch.utils import cpp_extension

    return cpp_extension.load(
        name="diglot_example_geglu",
        sources=[str(source) for source in SOURCES],
        extra_include_paths=[diglot.get_include()],
        # The library says `fma` where it wants one: nothing else may be contracted into one.
        extra_cuda_cflags=["-O3", "-fmad=false"],
    )


def geglu_cuda(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return load_cuda().geglu(x, y)


def geglu_triton(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    from geglu_triton import geglu

    return geglu(x, y)


def geglu_torch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh") * y


KERNELS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cuda": geglu_cuda,
    "triton": geglu_triton,
    "torch": geglu_torch,
}


def error_in_ulp(result: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> float:
    """The greatest error of an element, in units of the last place of the exact result."""
    u = 0.7978845608028654 * (x.double() + 0.044715 * x.double() ** 3)
    exact = x.double() * torch.sigmoid(2 * u) * y.double()
    info = torch.finfo(result.dtype)
    _, exponent = torch.frexp(exact.abs().clamp(min=info.tiny))
    ulp = torch.ldexp(torch.full_like(exact, info.eps), exponent - 1)
    return ((result.double() - exact).abs() / ulp).max().item()


def main() -> None:
    from triton import knobs
    from triton.testing import do_bench

    if knobs.runtime.interpret and not INTERPRETED:
        sys.exit("TRITON_INTERPRET is set: nothing interpreted is timed; see DIGLOT_INTERPRET")
    device, size = ("cpu", 256) if INTERPRETED else ("cuda", 8192)
    print(f"gelu(x) * y on {size} x {size} elements: error against float64, time")
    for dtype in (torch.float32, torch.bfloat16):
        x, y = torch.randn(2, size, size, device=device, dtype=dtype)
        for name, function in KERNELS.items():
            result = function(x, y)
            error = max(
                error_in_ulp(*rows)
                for rows in zip(result.chunk(16), x.chunk(16), y.chunk(16), strict=True)
            )
            time = "interpreted"  # which says nothing of a GPU's time
            if not INTERPRETED:
                milliseconds = do_bench(functools.partial(function, x, y), return_mode="median")
                time = f"{milliseconds:.3f} ms"
            elif name == "torch":
                time = "-"
            kind = str(dtype).removeprefix("torch.")
            print(f"{kind:9} {name:7} {error:10.2f} ulp {time:>12}")


if __name__ == "__main__":
    main()
