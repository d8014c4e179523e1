"""Multiplies matrices in Triton in several forms, checks them, and names the compiled form.

    python examples/tensor_cores/run_triton.py

Without a GPU the kernels are interpreted, and compiled for sm_90 in a second process.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch

IS_COMPILING = "--compile" in sys.argv  # nothing runs, and no GPU is needed
HAS_GPU = torch.cuda.is_available()
if not HAS_GPU and not IS_COMPILING:
    # Before Triton meets a kernel: it looks once.
    os.environ["DIGLOT_INTERPRET"] = os.environ["TRITON_INTERPRET"] = "1"

import triton  # noqa: E402
from forms_triton import FORMS  # noqa: E402

from diglot.tools.resources import read_compiled  # noqa: E402

DEVICE = "cuda" if HAS_GPU and not IS_COMPILING else "cpu"
# Not multiples of a tile, so that edges are met. Row strides are multiples of 16 bytes.
SIZES = (4000, 4072, 4096) if DEVICE == "cuda" else (200, 264, 136)
COMPILED_SIZES = 4096, 4096, 4096  # multiples of 16 let Triton load 16 bytes at once
PRECISIONS = "tf32", "ieee"


def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Memory for the descriptors that programs make."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def integers(rows: int, columns: int) -> torch.Tensor:
    """Small integers: their products and sums are exact, in any order."""
    return torch.randint(-4, 5, (rows, columns), device=DEVICE).bfloat16()


def compiled_form(compiled: object) -> str:
    return read_compiled(compiled).resources.form


def run_forms() -> None:
    m, n, k = SIZES
    a, b = integers(m, k), integers(k, n)
    expected = (a.double() @ b.double()).bfloat16()
    for name, form in FORMS.items():
        c = torch.full_like(expected, float("nan"))
        compiled = form(a, b, c).run()
        verdict = "exact" if torch.equal(c, expected) else "WRONG"
        print(f"bf16, {name}: {verdict}")
        if compiled is not None:
            print(f"    {compiled_form(compiled)}")


def run_precisions() -> None:
    m, n, k = SIZES
    a, b = torch.randn(m, k, device=DEVICE), torch.randn(k, n, device=DEVICE)
    expected = a.double() @ b.double()
    for precision in PRECISIONS:
        c = torch.empty(m, n, device=DEVICE)
        compiled = FORMS["descriptors"](a, b, c, precision).run()
        error = ((c - expected).norm() / expected.norm()).item()
        print(f"fp32, descriptors, {precision}: relative error {error:.1e}")
        if compiled is not None:
            print(f"    {compiled_form(compiled)}")


def compile_forms() -> None:
    """What each kernel is on an H100 or H200."""
    m, n, k = COMPILED_SIZES
    bf16 = torch.empty(m, k).bfloat16(), torch.empty(k, n).bfloat16(), torch.empty(m, n).bfloat16()
    for name, form in FORMS.items():
        print(f"bf16, {name}:\n    {compiled_form(form(*bf16).compile())}", flush=True)
    fp32 = [matrix.float() for matrix in bf16]
    for precision in PRECISIONS:
        call = FORMS["descriptors"](*fp32, precision)
        print(f"fp32, descriptors, {precision}:\n    {compiled_form(call.compile())}", flush=True)


def main() -> None:
    if IS_COMPILING:
        compile_forms()
        return
    m, n, k = SIZES
    where = torch.cuda.get_device_name() if HAS_GPU else "interpreted"
    print(f"{m} x {k} times {k} x {n}, {where}, Triton {triton.__version__}")
    if HAS_GPU:
        triton.set_allocator(allocate)
    run_forms()
    run_precisions()
    if not HAS_GPU:
        print("\ncompiled for sm_90:", flush=True)
        environment = {k: v for k, v in os.environ.items() if not k.endswith("_INTERPRET")}
        subprocess.run([sys.executable, __file__, "--compile"], env=environment, check=True)


if __name__ == "__main__":
    main()
