"""Kernels of conversions and products, for tests; launchers of products and attention."""

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


@triton.jit
def attention(
    q, k, v, out, N,
    IS_CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One head of attention, warp-specialised: one loop over the keys, with a mask if causal."""
    rows = tl.cast(N, tl.int32)
    tiles_q = tl.make_tensor_descriptor(q, [rows, D], [D, 1], [BM, D])
    tiles_k = tl.make_tensor_descriptor(k, [rows, D], [D, 1], [BN, D])
    tiles_v = tl.make_tensor_descriptor(v, [rows, D], [D, 1], [BN, D])
    tiles_out = tl.make_tensor_descriptor(out, [rows, D], [D, 1], [BM, D])
    first = tl.program_id(0) * BM
    query = tiles_q.load([first, 0])
    largest, total = tl.full([BM], -1e30, tl.float32), tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, D], tl.float32)
    last = first + BM if IS_CAUSAL else rows
    for key in tl.range(0, last, BN, warp_specialize=True):
        scores = dot(query, tl.trans(tiles_k.load([key, 0])), tl.zeros([BM, BN], tl.float32))
        if IS_CAUSAL:
            is_past = (first + tl.arange(0, BM))[:, None] >= (key + tl.arange(0, BN))[None, :]
            scores = tl.where(is_past, scores, -1e30)
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        scale = tl.exp2(largest - larger)
        total = total * scale + tl.sum(weights, 1)
        sums = dot(
            convert(weights, v.dtype.element_ty), tiles_v.load([key, 0]), sums * scale[:, None]
        )
        largest = larger
    tiles_out.store([first, 0], convert(sums / total[:, None], out.dtype.element_ty))


@launcher
def attend(q: Operand, k: Operand, v: Operand, is_causal: bool, out: Operand) -> Plan:
    """softmax over base 2 of q @ k.T, times v; the length is a multiple of 128."""
    rows, width = q.shape
    launch = Launch(
        attention, (rows // 128,), (q, k, v, out), (rows,), (is_causal, 128, 128, width), 4,
        num_stages=2, descriptors=5,
    )  # fmt: skip
    return Plan("causal" if is_causal else "full", (launch,), None)
