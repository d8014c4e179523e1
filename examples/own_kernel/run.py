"""Compiles, loads and calls a CUDA C++ kernel and its Triton twin, and compares them with PyTorch.

    python examples/own_kernel/run.py

Needs a GPU, nvcc, ninja and a C++ compiler. The kernels are geglu.cu and geglu_triton.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F

import diglot

HERE = Path(__file__).parent


@functools.cache
def load_cuda() -> ModuleType:
    """geglu.cu, compiled by PyTorch on the first call (about a minute) and kept for later ones."""
    from torch.utils import cpp_extension

    return cpp_extension.load(
        name="diglot_example_geglu",
        sources=[str(HERE / "geglu.cu")],
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
    if not torch.cuda.is_available():
        sys.exit("this example compiles kernels for a GPU, and PyTorch finds none")
    from triton.testing import do_bench

    print("gelu(x) * y on 8192 x 8192 elements: error against float64, time")
    for dtype in (torch.float32, torch.bfloat16):
        x, y = torch.randn(2, 8192, 8192, device="cuda", dtype=dtype)
        for name, function in KERNELS.items():
            result = function(x, y)
            error = max(
                error_in_ulp(*rows)
                for rows in zip(result.chunk(16), x.chunk(16), y.chunk(16), strict=True)
            )
            milliseconds = do_bench(functools.partial(function, x, y), return_mode="median")
            kind = str(dtype).removeprefix("torch.")
            print(f"{kind:9} {name:7} {error:10.2f} ulp {milliseconds:8.3f} ms")


if __name__ == "__main__":
    main()
