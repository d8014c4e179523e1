"""The smallest complete product on tensor cores in Triton: tensor descriptors and `dot`.

A descriptor tells the copy engine (TMA) where a matrix lies and how large a tile is. Elements
beyond the edge load as zeros, and are not stored. So the kernel has no mask.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.types import convert


@triton.jit
def product_kernel(
    a, b, c, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """One tile of c = a @ b. All three are descriptors."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        sums = dot(a.load([row, k]), b.load([k, column]), sums, PRECISION)
    c.store([row, column], convert(sums, c.dtype))


def tile_of(dtype: torch.dtype, precision: str) -> tuple[int, int, int]:
    """Rows, columns and depth of a program's tiles. The depth has 128 bytes.

    IEEE products run without tensor cores. Registers then hold the operands, so tiles are smaller.
    """
    size = 64 if dtype == torch.float32 and precision == "ieee" else 128
    return size, size, 128 // dtype.itemsize


def describe(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, tile: tuple[int, int, int]
) -> list[TensorDescriptor]:
    """Descriptors of the three matrices.

    Their rows must be contiguous. Their addresses and row strides must be multiples of 16 bytes.
    """
    m, n, k = tile
    blocks = ((a, [m, k]), (b, [k, n]), (c, [m, n]))
    return [TensorDescriptor.from_tensor(matrix, block) for matrix, block in blocks]


def product(a: torch.Tensor, b: torch.Tensor, precision: str = "tf32") -> torch.Tensor:
    """a [M, K] @ b [K, N], in their dtype. `precision` is that of float32: "tf32" or "ieee"."""
    c = a.new_empty(a.shape[0], b.shape[1])
    tile = tile_of(a.dtype, precision)
    grid = triton.cdiv(c.shape[0], tile[0]), triton.cdiv(c.shape[1], tile[1])
    product_kernel[grid](*describe(a, b, c, tile), precision, *tile, num_warps=8)
    return c
