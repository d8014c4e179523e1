"""Kernels of conversions and products of tiles, for tests; and what compiles them."""

from __future__ import annotations

import triton
import triton.language as tl

from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.types import convert


@triton.jit
def convert_all(x, out, N: tl.constexpr):
    place = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + place, convert(tl.load(x + place), out.dtype.element_ty))


@triton.jit
def load_tile(pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return tl.load(pointer + place)


@triton.jit
def multiply(
    a, b, out, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """out += a @ b, by `dot`."""
    place = out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(place, dot(load_tile(a, M, K), load_tile(b, K, N), tl.load(place), PRECISION))


@triton.jit
def multiply_plain(
    a, b, out, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """The same by Triton's own `tl.dot`."""
    place = out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tile_a, tile_b, sums = load_tile(a, M, K), load_tile(b, K, N), tl.load(place)
    product = tl.dot(
        tile_a, tile_b, sums, input_precision=PRECISION, out_dtype=out.dtype.element_ty
    )
    tl.store(place, product)
