"""Products of groups of matrices: kernels and launcher. Twin of csrc/ops/grouped_mm.cu."""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.grouped_products import GroupedProduct, grouped_product_of
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import NOTHING, Launch, Operand, Scalar
from diglot.triton_ops.launch.products import product_of
from diglot.triton_ops.lib.products.grouped_pointers import multiply_groups_by_pointers
from diglot.triton_ops.matmul import GRID_SIDE, plan_product


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


@launcher
def grouped_mm_forward(input: Operand, other: Operand, offs: Operand | None, out: Operand) -> Plan:
    """out = input @ other, group by group; without offsets a batch of products."""
    if offs is None:
        return plan_product(product_of(input, other, None, out))
    product = grouped_product_of(input, other, offs, out)
    return NOTHING if out.numel() == 0 else _plan_by_pointers(product)


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
