"""Products of 8-bit floats with scales: kernels and launcher. Twin of csrc/ops/scaled_mm.cu."""

import dataclasses
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from diglot.backends.plans import CALL, Plan, Scratch
from diglot.triton_ops.launch.descriptors import Descriptor
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.padded_copy import SMALLEST, readable
from diglot.triton_ops.launch.plan import ACCESS_BYTES, NOTHING, Launch, Operand, Scalar
from diglot.triton_ops.launch.products import MOST_SIDE, Around, Product, product_of, tiles_of
from diglot.triton_ops.lib.products.scaled import (
    multiply_scaled_by_descriptors,
    multiply_scaled_by_pointers,
)
from diglot.triton_ops.lib.products.scales import SCALED_DEPTH
from diglot.triton_ops.matmul import GRID_SIDE, TMA_ARCHITECTURE, plan_copies

DEPTH: int = SCALED_DEPTH.value
FLOAT8_ARCHITECTURE = 89
NARROW = 66  # tiles of 128x256: a product with no more has narrower ones
HALVED = 128  # tiles of more columns are multiplied in halves where there are second sums


@triton.jit
def scaled_mm_descriptors(
    a, b, scale_a, scale_b, bias, c, m, n, k, row_stride, a_side, a_depth, b_side, b_depth,
    rows, columns, count,
    MODE: tl.constexpr, WIDTHS: tl.constexpr, HAS_DESCRIPTOR: tl.constexpr, GROUP: tl.constexpr,
    IS_HALVED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    multiply_scaled_by_descriptors(
        a, b, (scale_a, scale_b), bias, c, (m, n, k), row_stride,
        ((a_side, a_depth), (b_side, b_depth)), (rows, columns, count),
        MODE, WIDTHS, HAS_DESCRIPTOR, GROUP, IS_HALVED, BLOCK,
    )  # fmt: skip


@triton.jit
def scaled_mm_pointers(
    a, b, scale_a, scale_b, bias, c, m, n, k, a_row, a_column, b_row, b_column, c_row, c_column,
    bias_stride, a_side, a_depth, b_side, b_depth, rows, columns, count,
    ARE_E5M2: tl.constexpr, IS_NATIVE: tl.constexpr, MODE: tl.constexpr, WIDTHS: tl.constexpr,
    GROUP: tl.constexpr, VECTORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    multiply_scaled_by_pointers(
        (a, b, bias, c), (scale_a, scale_b), (m, n, k),
        ((a_row, a_column), (b_row, b_column), (c_row, c_column)), bias_stride,
        ((a_side, a_depth), (b_side, b_depth)), (rows, columns, count),
        ARE_E5M2, IS_NATIVE, MODE, WIDTHS, GROUP, VECTORS, BLOCK,
    )  # fmt: skip


class Scales(NamedTuple):
    """The scales of an operand. Twin of `Scales` in csrc/include/diglot/products/scales.cuh.

    Attributes:
        operand: the tensor.
        side: its step from a row's scale, or that of a block of rows, to the next.
        depth: its step from a block along K to the next. Steps are 0 where one scale serves all.
        width: rows that share a scale; 0 if all rows do.
        has_blocks: whether they are of blocks along K.
    """

    operand: Operand
    side: int
    depth: int
    width: int
    has_blocks: bool


def _scales_of(operand: Operand, rows: int, side: int) -> Scales:
    """Scales of a matrix with `rows` rows, or columns. `side` is their dimension, not K's."""
    if operand.numel() == 1:
        return Scales(operand, 0, 0, 0, False)
    count, steps = operand.shape[side], operand.shape[1 - side]
    strides = operand.strides[side], operand.strides[1 - side]
    width = 1 if count == rows else DEPTH
    has_blocks = steps != 1 or width != 1
    return Scales(operand, strides[0], strides[1] if steps != 1 else 0, width, has_blocks)


@launcher
def scaled_mm_forward(
    mat_a: Operand,
    mat_b: Operand,
    scale_a: Operand,
    scale_b: Operand,
    bias: Operand | None,
    use_fast_accum: bool,
    batch_invariant: bool,
    out: Operand,
) -> Plan:
    """out = (mat_a · scale_a) @ (mat_b · scale_b) + bias."""
    product = product_of(mat_a, mat_b, out, Around(bias), batch_invariant)
    if product.is_empty:
        return NOTHING
    scales = (
        _scales_of(scale_a, product.sizes[0], 0),
        _scales_of(scale_b, product.sizes[1], 1),
    )
    has_blocks = any(each.has_blocks for each in scales)
    mode = "blocks" if has_blocks else "fast" if use_fast_accum else "exact"
    return _plan_by_descriptors(product, scales, mode) or _plan_by_pointers(product, scales, mode)


def _scale_arguments(scales: tuple[Scales, Scales]) -> tuple[list[Scalar], tuple[int, int]]:
    """Their steps, which are known when it is compiled where they are 0 or 1; and their widths."""
    steps = [step for each in scales for step in (each.side, each.depth)]
    return [tl.constexpr(s) if s in (0, 1) else s for s in steps], (
        scales[0].width,
        scales[1].width,
    )


def _along_k(operand: Operand, rows: int, depth: int, strides: tuple[int, int]) -> Operand:
    """An operand as a matrix of rows along K. A single row's step is of no account, but a
    descriptor's must be a multiple of 16 bytes.
    """
    unused = -(-depth // ACCESS_BYTES) * ACCESS_BYTES
    steps = (unused if rows == 1 else strides[0], 1 if depth == 1 else strides[1])
    return dataclasses.replace(operand, shape=(rows, depth), strides=steps)


def _plan_by_descriptors(product: Product, scales: tuple[Scales, Scales], mode: str) -> Plan | None:
    """A plan with tensor descriptors; None where these do not take the operands."""
    m, n, k = product.sizes
    device = product.c.device
    if not device.is_interpreted and device.architecture < TMA_ARCHITECTURE:
        return None
    if k == 0 or max(m, n, k) > MOST_SIDE or product.strides[2][1] != 1:
        return None
    if product.around.bias is not None and n > 1 and product.bias_stride != 1:
        return None
    a = _along_k(product.a, m, k, product.strides[0])
    b = _along_k(product.b, n, k, product.strides[1][::-1])
    if None in (a.address, b.address):  # while a graph is compiled
        return None
    matrices = readable(product, a, b)
    if matrices is None:
        return None
    product.choose_numbers(mode)
    has_descriptor = Descriptor.fits(product.c, SMALLEST)
    # Addresses, scales at each step, or a wide C take the room that a wide tile would.
    is_narrow = mode == "blocks" or not has_descriptor or product.c.element_size() > 2
    wide = tiles_of(product.planned_sizes, (128, 256, DEPTH), 1)[-1]
    name = "products.triton.scaled" if mode == "fast" else "products.triton.scaled_exact"
    tile = device.tuned(name, min(wide, NARROW) if is_narrow else wide)
    block = tile["rows"], tile["columns"]
    tiles = tiles_of(product.sizes, (*block, DEPTH), 1)
    is_halved = mode != "fast" and block[1] > HALVED
    steps, widths = _scale_arguments(scales)
    group = device.tuned("products.both.group")
    launch = Launch(
        scaled_mm_descriptors,
        (device.programs(tiles[-1], 1),),
        (
            matrices[0].descriptor((block[0], DEPTH)),
            matrices[1].descriptor((block[1] // 2 if is_halved else block[1], DEPTH)),
            scales[0].operand,
            scales[1].operand,
            product.around.bias,
            Descriptor(product.c, (block[0], block[1] // 2)) if has_descriptor else product.c,
        ),
        (*product.sizes, product.strides[2][0], *steps, *tiles),
        (mode, widths, has_descriptor, group, is_halved, block),
        tile["warps"],
        num_stages=tile["stages"],
    )
    copies, of_copies = plan_copies(*matrices)
    name = f"descriptors, {mode}, tiles of {block[0]}x{block[1]}{of_copies}"
    ends = [matrix.part.end for matrix in matrices if matrix.part is not None]
    return Plan(name, (*copies, launch), Scratch(max(ends), 0, CALL) if ends else None)


def _plan_by_pointers(product: Product, scales: tuple[Scales, Scales], mode: str) -> Plan:
    a, b, c = product.a, product.b, product.c
    device = c.device
    product.choose_numbers("strided")
    mode = "blocks" if mode == "blocks" else "exact"  # float16 needs no other
    tile = device.tuned("products.triton.scaled_pointers")
    block = tile["rows"], tile["columns"]
    tiles = tiles_of(product.sizes, (*block, DEPTH), 1)
    across = min(tiles[-1], GRID_SIDE)
    strides: list[Scalar] = []
    for pair in product.strides[:3]:  # steps between neighbours are known when it is compiled
        strides += [tl.constexpr(1) if stride == 1 else stride for stride in pair]
    steps, widths = _scale_arguments(scales)
    vectors = (
        *product.vector(a, product.strides[0], 1),
        *product.vector(b, product.strides[1], 2),
    )
    is_native = device.is_interpreted or device.architecture >= FLOAT8_ARCHITECTURE
    # Compilers for older GPUs do not take pointers to e4m3.
    bits = [dataclasses.replace(operand, dtype=torch.uint8) for operand in (a, b)]
    launch = Launch(
        scaled_mm_pointers,
        (across, triton.cdiv(tiles[-1], across)),
        (*bits, scales[0].operand, scales[1].operand, product.around.bias, c),
        (*product.sizes, *strides, product.bias_stride, *steps, *tiles),
        (
            tuple(operand.dtype == torch.float8_e5m2 for operand in (a, b)),
            is_native, mode, widths, device.tuned("products.both.group"), vectors, block,
        ),
        tile["warps"],
        num_stages=tile["stages"],
    )  # fmt: skip
    return Plan(f"pointers, {mode}, tiles of {block[0]}x{block[1]}", (launch,), None)
