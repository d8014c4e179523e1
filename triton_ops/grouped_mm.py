"""Products of groups of matrices: kernels and launcher. Twin of csrc/ops/grouped_mm.cu."""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.descriptors import Descriptor
from diglot.triton_ops.launch.grouped_products import (
    RUN,
    GroupedProduct,
    grouped_product_of,
    ragged,
    transposed,
    with_step,
)
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.padded_copy import SMALLEST
from diglot.triton_ops.launch.plan import NOTHING, Launch, Operand, Scalar
from diglot.triton_ops.launch.products import MOST_SIDE, product_of
from diglot.triton_ops.lib.products.grouped_descriptors import multiply_groups_by_descriptors
from diglot.triton_ops.lib.products.grouped_pointers import multiply_groups_by_pointers
from diglot.triton_ops.matmul import GRID_SIDE, HALVES, TMA_ARCHITECTURE, plan_product

MOST_GROUPS = 1024  # a program holds a table of them, and of one more


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
    a, b, offsets, c, m, n, k, groups, rows, columns, c_step, c_row, HEIGHT: tl.constexpr,
    DIVIDES_K: tl.constexpr, ALONG_N: tl.constexpr, IS_EXCHANGED: tl.constexpr,
    HAS_DESCRIPTOR: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    multiply_groups_by_descriptors(
        a, b, offsets, c, (m, n, k), groups, (rows, columns), (c_step, c_row), HEIGHT,
        DIVIDES_K, ALONG_N, IS_EXCHANGED, HAS_DESCRIPTOR, COUNT, BLOCK,
    )  # fmt: skip


@launcher
def grouped_mm_forward(input: Operand, other: Operand, offs: Operand | None, out: Operand) -> Plan:
    """out = input @ other, group by group; without offsets a batch of products."""
    if offs is None:
        return plan_product(product_of(input, other, out))
    product = grouped_product_of(input, other, offs, out)
    if out.numel() == 0:
        return NOTHING
    return _plan_by_descriptors(product) or _plan_by_pointers(product)


def _matrices(product: GroupedProduct, along_n: bool) -> tuple[Operand, Operand, Operand]:
    """A, B and C as descriptors see them, of rows that are contiguous if these take them."""
    a, b, c = product.a, product.b, product.c
    if product.divides_k:
        return ragged(with_step(transposed(a))), ragged(with_step(b)), c
    return with_step(a), b if along_n else transposed(b), ragged(with_step(c))


def _plan_by_descriptors(product: GroupedProduct) -> Plan | None:
    """A plan with tensor descriptors; None where these do not take the operands."""
    c, divides_k = product.c, product.divides_k
    device, sizes, groups = c.device, product.sizes, product.groups
    if c.dtype not in HALVES or 0 in (sizes[2], groups) or groups >= MOST_GROUPS:
        return None
    if not device.is_interpreted and device.architecture < TMA_ARCHITECTURE:
        return None
    if c.strides[-1] != 1 or max(sizes) > MOST_SIDE or product.divided > RUN:
        return None
    along_n = divides_k or product.b.strides[2] == 1
    a, b, of_c = _matrices(product, along_n)
    if not all(Descriptor.fits(x, (*(1,) * (x.dim() - 2), *SMALLEST)) for x in (a, b)):
        return None
    has_descriptor = Descriptor.fits(of_c, (*(1,) * (of_c.dim() - 2), *SMALLEST))
    layout = "K" if divides_k else "NN" if along_n else "NT"
    device.choose(layout, (*sizes, groups), product.a)
    name = "products.triton.grouped_k" if divides_k else "products.triton.grouped"
    tile = device.tuned(name, product.mean if has_descriptor else 0)
    block = tile["rows"], tile["columns"], tile["depth"]
    # Tensor cores take 64 rows or more.
    few = product.mean <= device.tuned("products.triton.swap") or block[0] < 64
    is_exchanged = few and not divides_k
    rows, columns, most = product.tiles(block)
    if most > MOST_SIDE:
        return None
    block_a = (1, 1, block[2], block[0]) if divides_k else (block[0], block[2])
    block_b = (block[2], block[1]) if along_n else (block[1], block[2])
    block_c = (*(1,) * (of_c.dim() - 2), block[0], block[1] // 2)
    launch = Launch(
        grouped_mm_descriptors,
        (device.programs(most, tile["programs"]),),
        (
            Descriptor(a, block_a),
            Descriptor(b, (*(1,) * (b.dim() - 2), *block_b)),
            product.offsets,
            Descriptor(of_c, block_c) if has_descriptor else c,
        ),
        (*sizes, groups, rows, columns, product.step(c), c.strides[-2]),
        (
            device.tuned("products.both.group"),
            divides_k,
            along_n,
            is_exchanged,
            has_descriptor,
            triton.next_power_of_2(groups + 1),
            block,
        ),
        tile["warps"],
        num_stages=tile["stages"],
    )
    exchanged = ", exchanged" if is_exchanged else ""
    return Plan(f"descriptors, tiles of {block[0]}x{block[1]}{exchanged}", (launch,), None)


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
    steps = [product.step(operand) for operand in (b, c)]
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
