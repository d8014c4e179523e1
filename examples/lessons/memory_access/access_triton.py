"""Reads near each other and far apart, and a transpose, in Triton. Twin of access.cu.

There is one transpose, and nothing to pad: the compiler gives the reads and the writes the layouts
of threads that suit each, and takes the tile from one to the other through shared memory that it
arranges without bank conflicts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
TILE = 64


@triton.jit
def copy_strided_kernel(source, out, n, stride, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rows = n // stride
    values = tl.load(source + i % rows * stride + i // rows, mask=i < n)
    tl.store(out + i, values, mask=i < n)


@triton.jit
def transpose_kernel(source, out, rows, columns, TILE: tl.constexpr):  # noqa: ANN001, ANN201
    row = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)[None, :]
    inside = (row < rows) & (column < columns)
    tile = tl.load(source + row * columns + column, mask=inside)
    tl.store(out + column * rows + row, tile, mask=inside)


def copy_strided(source: torch.Tensor, stride: int) -> torch.Tensor:
    """The elements of `source`, contiguous float32, read `stride` apart."""
    out = torch.empty_like(source)
    n = source.numel()
    copy_strided_kernel[(triton.cdiv(n, BLOCK),)](source, out, n, stride, BLOCK)
    return out


def transpose(source: torch.Tensor) -> torch.Tensor:
    """`source.T`, row-major, of a contiguous float32 matrix."""
    rows, columns = source.shape
    out = torch.empty(columns, rows, device=source.device)
    grid = (triton.cdiv(columns, TILE), triton.cdiv(rows, TILE))
    transpose_kernel[grid](source, out, rows, columns, TILE)
    return out
