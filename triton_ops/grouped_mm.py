"""Products of groups of matrices: kernels and launcher. Twin of csrc/ops/grouped_mm.cu."""

import dataclasses

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.descriptors import Descriptor
from diglot.triton_ops.launch.grouped_products import (
    GroupedProduct,
    grouped_product_of,
    transposed,
)
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import NOTHING, Launch, Operand, Scalar
from diglot.triton_ops.launch.products import MOST_SIDE, product_of
from diglot.triton_ops.lib.products.grouped_descriptors import multiply_groups_by_descriptors
from diglot.triton_ops.lib.products.grouped_pointers import multiply_groups_by_pointers
from diglot.triton_ops.matmul import GRID_SIDE, HALVES, TMA_ARCHITECTURE, plan_product

SMALLEST = 16  # a side of a tile: where such tiles fit, larger ones do


@triton.jit
def grouped_mm_pointers(
    a, b, offsets, c, m, n, k, groups, rows, columns,
    a_row, a_column, b_row, b_column, c_row, c_column, b_step, c_step,
    PRECISION: tl.constexpr, HEIGHT: tl.constexpr, VECTORS: tl.constexpr,
    DIVIDES_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    multiply_groups_by_pointers(
        (a, b, offsets, c), (m, n, k),
        ((a_row, a_column), (b_row, b_column), (c_row, c_column)), (b_step, c_step), groups,
        (rows, columns), PRECISION, HEIGHT, VECTORS, DIVIDES_K, BLOCK,
    )  # fmt: skip


@triton.jit
def grouped_mm_descriptors(
    a, b, offsets, c, m, n, k, groups, columns, row_stride, HEIGHT: tl.constexpr,
    ALONG_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    multiply_groups_by_descriptors(
        a, b, offsets, c, (m, n, k), groups, columns, row_stride, HEIGHT, ALONG_N, BLOCK
    )


@launcher
def grouped_mm_forward(input: Operand, other: Operand, offs: Operand | None, out: Operand) -> Plan:
    """out = input @ other, group by group; without offsets a batch of products."""
    if offs is None:
        return plan_product(product_of(input, other, out))
    product = grouped_product_of(input, other, offs, out)
    if out.numel() == 0:
        return NOTHING
    return _plan_by_descriptors(product) or _plan_by_pointers(product)


def _plan_by_descriptors(product: GroupedProduct) -> Plan | None:
    """A plan with tensor descriptors; None where these do not take the operands."""
    a, b, c = product.a, product.b, product.c
    device, (m, n, k) = c.device, product.sizes
    if c.dtype not in HALVES or product.divides_k or 0 in (k, product.groups):
        return None
    if not device.is_interpreted and device.architecture < TMA_ARCHITECTURE:
        return None
    if c.strides[1] != 1 or max(m, n, k) > MOST_SIDE:
        return None
    along_n = b.strides[2] == 1
    matrices = b if along_n else transposed(b)
    # The step of a single row is of no account, but a descriptor's must be a multiple of 16 bytes.
    rows = dataclasses.replace(a, strides=(-(-k // 8) * 8, a.strides[1])) if m == 1 else a
    fits = Descriptor.fits(rows, (SMALLEST,) * 2), Descriptor.fits(matrices, (1, *(SMALLEST,) * 2))
    if not all(fits):
        return None
    device.choose("NN" if along_n else "NT", (*product.sizes, product.groups), a)
    tile = device.tuned("products.triton.grouped")
    block = tile["rows"], tile["columns"], tile["depth"]
    _, columns, most = product.tiles(block)
    block_b = (1, block[2], block[1]) if along_n else (1, block[1], block[2])
    launch = Launch(
        grouped_mm_descriptors,
        (device.programs(most, 1),),
        (Descriptor(rows, (block[0], block[2])), Descriptor(matrices, block_b), product.offsets, c),
        (*product.sizes, product.groups, columns, c.strides[0]),
        (device.tuned("products.both.group"), along_n, block),
        tile["warps"],
        num_stages=tile["stages"],
    )
    return Plan(f"descriptors, tiles of {block[0]}x{block[1]}", (launch,), None)


def _plan_by_pointers(product: GroupedProduct) -> Plan:
    a, b, c = product.a, product.b, product.c
    device = c.device
    device.choose("strided", (*product.sizes, product.groups), a)
    tile = device.tuned("products.triton.tile", c.element_size())
    block = tile["rows"], tile["columns"], tile["depth"]
    strides: list[Scalar] = []
    for operand in (a, b, c):  # steps between neighbours are known when it is compiled
        strides += [tl.constexpr(1) if step == 1 else step for step in operand.strides[-2:]]
    rows, columns, most = product.tiles(block)
    across = min(most, GRID_SIDE)
    steps = [operand.strides[0] if operand.dim() == 3 else 0 for operand in (b, c)]
    vectors = (*product.vector(a, False), *product.vector(b, True))
    launch = Launch(
        grouped_mm_pointers,
        (across, triton.cdiv(most, across)),
        (a, b, product.offsets, c),
        (*product.sizes, product.groups, rows, columns, *strides, *steps),
        ("ieee", device.tuned("products.both.group"), vectors, product.divides_k, block),
        tile["warps"],
        num_stages=tile["stages"],
    )
    return Plan(f"pointers, tiles of {block[0]}x{block[1]}", (launch,), None)
