"""A product of matrices in fewer than 25 lines of Triton, beside cuBLAS.

    python examples/lessons/short_product.py

The kernel computes a tile of C for each program, in groups of rows. `tl.dot` uses tensor cores, and
the compiler puts tiles into shared memory, some steps ahead. PyTorch's product is cuBLAS. How close
the short kernel comes depends on the size: a small product has few tiles for many SMs. Without a
GPU it is interpreted, and its lines are counted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial

from lesson import DEVICE, INTERPRETED, Row, Table, add_times, check_equal, show

# isort: split
import torch
import triton
import triton.language as tl

TILE, GROUP = (128, 256, 64), 8
SIZES = (128,) if INTERPRETED else (512, 1024, 2048, 4096, 8192)
LIMIT = 25


@triton.jit
def product_kernel(  # noqa: ANN201
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr  # noqa: ANN001
):  # fmt: skip
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group, place = tl.program_id(0) // (GROUP * columns), tl.program_id(0) % (GROUP * columns)
    height = tl.minimum(rows - group * GROUP, GROUP)
    row = (group * GROUP + place % height) * BM + tl.arange(0, BM)[:, None]
    column = place // height * BN + tl.arange(0, BN)[None, :]
    depth = tl.arange(0, BK)
    left, right = a + row % M * K + depth[None, :], b + depth[:, None] * N + column % N
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        tile_a = tl.load(left, depth[None, :] < K - k, 0.0)
        tile_b = tl.load(right, depth[:, None] < K - k, 0.0)
        total = tl.dot(tile_a, tile_b, total)
        left, right = left + BK, right + BK * N
    tl.store(c + row * N + column, total.to(c.dtype.element_ty), (row < M) & (column < N))


def lines() -> int:
    """How many lines the kernel has."""
    return len(inspect.getsource(product_kernel.fn).splitlines())


def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """out = a b, of contiguous float16 matrices of fewer than 2^31 elements."""
    (m, n), k = out.shape, a.shape[1]
    grid = (triton.cdiv(m, TILE[0]) * triton.cdiv(n, TILE[1]),)
    product_kernel[grid](a, b, out, m, n, k, *TILE, GROUP, num_warps=8, num_stages=3)


def main() -> Iterator[Table]:
    """A row for each size."""
    rows, calls = list[Row](), list[Callable[[], object]]()
    for size in SIZES:
        a, b = torch.randn(2, size, size, device=DEVICE).half()
        out = torch.empty_like(a)
        product(a, b, out)
        check_equal(out.double() / size**0.5, a.double() @ b.double() / size**0.5, 1e-2)
        rows += [{"size": size, "way": f"{lines()} lines"}, {"size": size, "way": "torch.mm"}]
        calls += [partial(product, a, b, out), partial(torch.mm, a, b, out=out)]
    add_times(rows, calls)
    for ours, other in zip(rows[::2], rows[1::2], strict=True):
        for row in (ours, other):
            us = row["µs"]
            row["TFLOP/s"] = us and 2e-6 * row["size"] ** 3 / us
            row["over torch.mm"] = us and other["µs"] / us
    yield Table("Products of square float16 matrices", rows)


if __name__ == "__main__":
    show(main)
