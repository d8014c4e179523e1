"""What a warp's 32 addresses have to do with speed: coalesced reads.

    python examples/lessons/memory_access.py

A copy reads elements that are 1 to 32 apart: every element once, so that only the distance between
neighbouring threads differs. Memory is moved in sectors of 32 bytes, and how many a warp asks for
follows from its addresses alone; with a GPU, times are shown beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lesson import DEVICE, INTERPRETED, Row, Table, add_times, call, check_equal, show

# isort: split
import torch
import triton
import triton.language as tl

SIZE = 128 if INTERPRETED else 8192
STRIDES = (1, 2, 4, 8, 16, 32)
BLOCK = 1024
# CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
LANES, SECTOR_BYTES, WORD_BYTES = 32, 32, 4


@triton.jit
def copy_strided_kernel(source, out, n, stride, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rows = n // stride
    values = tl.load(source + i % rows * stride + i // rows, mask=i < n)
    tl.store(out + i, values, mask=i < n)


def sectors(stride: int) -> int:
    """How many pieces of 32 bytes a warp moves that reads 4-byte elements `stride` apart."""
    return len({lane * stride * WORD_BYTES // SECTOR_BYTES for lane in range(LANES)})


def copy_strided(language: str, stride: int, x: torch.Tensor, out: torch.Tensor) -> None:
    """The elements of `x`, contiguous float32, read `stride` apart, which divides their number."""
    n = x.numel()
    if language == "cuda":
        call("memory_access", "copy_strided", n, stride, x, out)
    else:
        copy_strided_kernel[(triton.cdiv(n, BLOCK),)](x, out, n, stride, BLOCK)


def main() -> Iterator[Table]:
    """A row for each stride and language."""
    x = torch.randn(SIZE, SIZE, device=DEVICE)
    out, rows, calls = torch.empty_like(x), list[Row](), []
    for stride in STRIDES:
        for language in ("cuda", "triton"):
            run = partial(copy_strided, language, stride, x, out)
            run()
            check_equal(out, x.reshape(-1, stride).T.reshape(x.shape))
            row = {"stride": stride, "language": language}
            rows.append({**row, "sectors for 32 reads": sectors(stride)})
            calls.append(run)
    add_times(rows, calls, 2 * x.nbytes)
    yield Table(f"Copy of {SIZE} x {SIZE} float32 numbers", rows)


if __name__ == "__main__":
    show(main)
