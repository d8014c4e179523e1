"""Kernels of conversions and of products, for tests; launchers of products by descriptors."""

from __future__ import annotations

import triton
import triton.language as tl

from diglot.triton_ops.launch.descriptors import Descriptor
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import Launch, Operand, Plan
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


# --- whole products -------------------------------------------------------------------------------


@triton.jit
def product_by_host(a, b, out, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """One tile a program; the host made the descriptors."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    sums = tl.zeros([BM, BN], tl.float32)
    for k in range(0, a.shape[1], BK):
        sums = dot(a.load([row, k]), b.load([k, column]), sums)
    out.store([row, column], convert(sums, out.dtype))


def tile_of(a: Operand) -> tuple[int, int, int]:
    return 128, 128, 128 // a.element_size()


@launcher
def multiply_by_host(a: Operand, b: Operand, out: Operand) -> Plan:
    m, n, k = tile_of(a)
    pointers = Descriptor(a, (m, k)), Descriptor(b, (k, n)), Descriptor(out, (m, n))
    grid = triton.cdiv(out.shape[0], m), triton.cdiv(out.shape[1], n)
    launch = Launch(product_by_host, grid, pointers, (), (m, n, k), 8, num_stages=3)
    return Plan("by host", (launch,), None)


@triton.jit
def product_persistent(
    a, b, out, M, N, K, stride_a, stride_b, stride_out,
    IS_SPECIALISED: tl.constexpr, IS_FLAT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Programs walk over the tiles, by descriptors that they make."""
    rows, columns, depth = tl.cast(M, tl.int32), tl.cast(N, tl.int32), tl.cast(K, tl.int32)
    tiles_a = tl.make_tensor_descriptor(a, [rows, depth], [stride_a, 1], [BM, BK])
    tiles_b = tl.make_tensor_descriptor(b, [depth, columns], [stride_b, 1], [BK, BN])
    tiles_out = tl.make_tensor_descriptor(out, [rows, columns], [stride_out, 1], [BM, BN])
    across = tl.cdiv(columns, BN)
    for tile in tl.range(
        tl.program_id(0), tl.cdiv(rows, BM) * across, tl.num_programs(0),
        warp_specialize=IS_SPECIALISED, flatten=IS_FLAT,
    ):  # fmt: skip
        row, column = tile // across * BM, tile % across * BN
        sums = tl.zeros([BM, BN], tl.float32)
        for k in range(0, depth, BK):
            sums = dot(tiles_a.load([row, k]), tiles_b.load([k, column]), sums)
        tiles_out.store([row, column], convert(sums, out.dtype.element_ty))


@launcher
def multiply_persistent(
    a: Operand, b: Operand, form: str, num_warps: int, descriptors: int, out: Operand
) -> Plan:
    """`form` is "plain", "specialised" or "specialised flat"."""
    scalars = (*out.shape, a.shape[1], a.strides[0], b.strides[0], out.strides[0])
    launch = Launch(
        product_persistent, (3,), (a, b, out), scalars,
        ("specialised" in form, "flat" in form, *tile_of(a)), num_warps, num_stages=3,
        descriptors=descriptors,
    )  # fmt: skip
    return Plan(form, (launch,), None)
