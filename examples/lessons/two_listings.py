"""Block-wise and SIMT: the same vector add as a Triton kernel and as a CUDA kernel, side by side.

    python examples/lessons/two_listings.py

A CUDA kernel says what one thread does with one element. A Triton kernel says what a block does
with 512 elements at once, and the compiler gives them to threads. The lesson prints both listings,
runs both kernels, and counts the instructions of each. Triton's compiler gave each thread four
neighbouring elements, and so 16 bytes a load. The launch had found that the addresses are multiples
of 16. The CUDA kernel accesses what it says: 4 bytes. docs/lessons.md has the same in Numba.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import partial

from lesson import (
    DEVICE,
    HERE,
    INTERPRETED,
    Row,
    Table,
    add_times,
    call,
    check_equal,
    compiled,
    cuda_kernels,
    show,
)

# isort: split
import torch
import triton
import triton.language as tl

BLOCK = 512
SIZE = 1000 if INTERPRETED else 1 << 26


@triton.jit
def add_kernel(n, x, y, out, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # a block of numbers
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


def listings() -> list[tuple[str, str]]:
    """Line by line, the two kernels."""
    source = (HERE / "two_listings.cu").read_text()
    (cuda,) = re.findall(r"^__global__.*?^}", source, re.MULTILINE | re.DOTALL)
    python = inspect.getsource(add_kernel.fn).replace("  # noqa: ANN001, ANN201", "")
    blank = [""] * 4
    lines = zip((cuda.splitlines() + blank)[:4], (python.splitlines() + blank)[:4], strict=True)
    return list(lines)


def add(language: str, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    """x + y by the kernel of a language."""
    n = x.numel()
    if language == "cuda":
        call("two_listings", "add", n, x, y, out)
    else:
        add_kernel[(triton.cdiv(n, BLOCK),)](n, x, y, out, BLOCK)


def triton_load_bytes() -> int | None:
    """The widest load of the Triton kernel, compiled as a launch would for aligned tensors."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {"n": "i32", "x": "*fp32", "y": "*fp32", "out": "*fp32", "BLOCK": "constexpr"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(4)}
    source = ASTSource(add_kernel, types, {"BLOCK": BLOCK}, aligned)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    return 4 * max(int(width or 1) for width in re.findall(r"ld\.global(?:\.v(\d))?\.b32", ptx))


def main() -> Iterator[Table]:
    """The listings, then what they became."""
    for cuda, triton_line in listings():
        print(f"{cuda:82}| {triton_line}")
    print()
    x, y = torch.randn(2, SIZE, device=DEVICE)
    out, kernel = torch.empty_like(x), cuda_kernels("two_listings").get("add_kernel")
    widths = {"cuda": kernel and kernel.load_bytes, "triton": compiled(triton_load_bytes)}
    rows, calls = list[Row](), []
    for language, width in widths.items():
        out.zero_()
        calls.append(partial(add, language, x, y, out))
        calls[-1]()
        check_equal(out, x + y)
        rows.append({"language": language, "bytes a load": width})
    add_times(rows, calls, 3 * x.nbytes)
    yield Table(f"x + y of {SIZE:,} float32 numbers", rows)


if __name__ == "__main__":
    show(main)
