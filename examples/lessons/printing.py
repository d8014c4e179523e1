"""Printing from inside a kernel: `printf` in CUDA C++, `tl.device_print` in Triton.

    python examples/lessons/printing.py

Both kernels look for elements of an array that are negative or NaN. In CUDA C++ a thread prints if
it has found one. In Triton a program holds many elements: `device_print` prints them all, with
their indices in the block, so that the kernel prints under a condition of the whole block. On a GPU
the lines go to a buffer of 1 MiB, and from there to the process's output when the host waits. Older
lines are lost when it is full. Both kernels print without a GPU, too, as they are
interpreted.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial

from lesson import DEVICE, INTERPRETED, Table, call, show

# isort: split
import torch
import triton
import triton.language as tl

X = (0.5, 1.0, 2.0, 3.0, 4.0, -5.0, 6.0, float("nan"), 8.0)


@triton.jit
def look_kernel(n, x, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i, i < n, 0.0)
    wrong = ~(values >= 0)  # a NaN compares as false
    if tl.sum(wrong.to(tl.int32), 0) > 0:
        tl.device_print("x =", values)


def printed(function: Callable[[], None]) -> list[str]:
    """The lines that a call prints: by Python, or straight to the process's output."""
    flush = ctypes.CDLL(None).fflush
    flush(None)
    standard, by_python = os.dup(1), io.StringIO()
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            with contextlib.redirect_stdout(by_python):
                function()
                if not INTERPRETED:
                    torch.cuda.synchronize()
            flush(None)
        finally:
            os.dup2(standard, 1)
            os.close(standard)
        file.seek(0)
        return (by_python.getvalue() + file.read().decode()).splitlines()


def look(language: str) -> None:
    """Looks through X."""
    x = torch.tensor(X, device=DEVICE)
    if language == "cuda":
        call("printing", "look", len(X), x)
    else:
        look_kernel[(triton.cdiv(len(X), 4),)](len(X), x, 4, num_warps=1)


def main() -> Iterator[Table]:
    """The lines of both languages."""
    for language, what in (("cuda", "CUDA C++: printf"), ("triton", "Triton: tl.device_print")):
        lines = printed(partial(look, language))
        yield Table(f"{what}, {len(lines)} lines", [{"printed": line} for line in lines])


if __name__ == "__main__":
    show(main)
