"""input + alpha * other, and its gradients: kernels and launchers. Twin of csrc/ops/add.cu."""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.elementwise import plan_elementwise
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.numbers import numbers_of
from diglot.triton_ops.launch.plan import Operand, Unseen
from diglot.triton_ops.launch.sum import plan_sum
from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.elementwise_kernels import elementwise_kernels
from diglot.triton_ops.lib.math import fma
from diglot.triton_ops.lib.types import compute_type, convert, number


@triton.jit
def add(input, other, alpha, OUT: tl.constexpr):
    """input + alpha * other with one rounding, in OUT's type of computation.

    On bool, `or` and `and`.
    """
    COMPUTE: tl.constexpr = compute_type(OUT)
    factor = tl.full(input.shape, number(alpha[0], alpha[1], COMPUTE), COMPUTE)
    a = convert(input, OUT).to(COMPUTE)
    b = convert(other, OUT).to(COMPUTE)
    if OUT == tl.int1:
        result = a | (b & (factor != 0))
    elif COMPUTE.is_floating():
        result = fma(factor, b, a)
    else:
        result = a + factor * b
    return convert(result, OUT)


@triton.jit
def add_number(input, alpha, OUT: tl.constexpr):
    """Without a second tensor, `other` is one."""
    return add(input, tl.full(input.shape, 1, compute_type(OUT)), alpha, OUT)


@triton.jit
def scale(gradient, alpha, OUT: tl.constexpr):
    """alpha * gradient, in the gradient's type of computation."""
    COMPUTE: tl.constexpr = compute_type(gradient.dtype)
    return convert(number(alpha[0], alpha[1], COMPUTE) * gradient.to(COMPUTE), OUT)


add_forward_flat, add_forward_strided = elementwise_kernels(
    "add_forward", add, ("input", "other"), numbers=2
)
add_number_flat, add_number_strided = elementwise_kernels(
    "add_number", add_number, ("input",), numbers=2
)
add_backward_flat, add_backward_strided = elementwise_kernels(
    "add_backward", scale, ("grad_output",), numbers=2
)


@triton.jit
def add_backward_sum(
    grad_output, output, kept_count, reduced_count, splits, output_split_stride,
    size0, size1, size2, size3, size4, size5, size6, size7,
    in_start, in0, in1, in2, in3, in4, in5, in6, in7,
    out_start, out0, out1, out2, out3, out4, out5, out6, out7,
    rsize0, rsize1, rsize2, rsize3, rsize4, rsize5, rsize6, rsize7,
    r_start, r0, r1, r2, r3, r4, r5, r6, r7,
    alpha_high, alpha_low,
    RANK: tl.constexpr, REDUCED_RANK: tl.constexpr, WIDE: tl.constexpr,
    KEPT_BLOCK: tl.constexpr, REDUCED_BLOCK: tl.constexpr,
    KEPT_VECTOR: tl.constexpr, REDUCED_VECTOR: tl.constexpr,
):  # fmt: skip
    """Sums grad_output over the dimensions along which an operand was broadcast.

    A program takes KEPT_BLOCK kept elements and one split of the reduced ones, REDUCED_BLOCK at a
    time, in aligned accesses of KEPT_VECTOR or REDUCED_VECTOR elements. With several splits,
    `output` is a workspace of one row per split, and a second launch sums the rows. The order of
    the sum depends on shapes, strides and alignment alone.
    """
    OUT: tl.constexpr = output.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(grad_output.dtype.element_ty)
    INDEX: tl.constexpr = tl.int64 if WIDE else tl.int32
    tiles = tl.cdiv(kept_count, KEPT_BLOCK)
    program = tl.program_id(0).to(tl.int64)
    split = program // tiles
    element = (program % tiles * KEPT_BLOCK + tl.arange(0, KEPT_BLOCK)).to(INDEX)
    rows_per_split = tl.cdiv(reduced_count // REDUCED_VECTOR, splits) * REDUCED_VECTOR
    begin = split * rows_per_split
    end = tl.minimum(begin + rows_per_split, reduced_count)

    sizes = (size0, size1, size2, size3, size4, size5, size6, size7)
    in_strides = (in0, in1, in2, in3, in4, in5, in6, in7)
    out_strides = (out0, out1, out2, out3, out4, out5, out6, out7)
    reduced_sizes = (rsize0, rsize1, rsize2, rsize3, rsize4, rsize5, rsize6, rsize7)
    reduced_strides = (r0, r1, r2, r3, r4, r5, r6, r7)
    in_at = strided_offset(element, sizes, in_start, in_strides, RANK, WIDE)
    out_at = strided_offset(element, sizes, out_start, out_strides, RANK, WIDE)
    is_kept = element < kept_count
    partial = tl.zeros((REDUCED_BLOCK, KEPT_BLOCK), COMPUTE)
    for first in range(begin, end, REDUCED_BLOCK):
        row = first + tl.arange(0, REDUCED_BLOCK).to(tl.int64)
        row_at = strided_offset(
            row.to(INDEX), reduced_sizes, r_start, reduced_strides, REDUCED_RANK, WIDE
        )
        loaded = load_tile(
            grad_output, row_at, row < end, in_at, is_kept, REDUCED_VECTOR, KEPT_VECTOR
        )
        partial += loaded.to(COMPUTE)
    total = number(alpha_high, alpha_low, COMPUTE) * tl.sum(partial, axis=0)
    tl.store(output + split * output_split_stride + out_at, convert(total, OUT), mask=is_kept)


@triton.jit
def load_tile(
    pointer, row_at, is_row, column_at, is_column, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Elements at the sums of two offsets, zero outside.

    Along one direction ROWS or COLUMNS of them are neighbours, from a multiple of 16 bytes on. The
    sums get their hints here, because inlining loses a hint on a parameter.
    """
    # In 64 bits: two offsets that fit 31 bits may not when added.
    offset = row_at.to(tl.int64)[:, None] + column_at[None, :]
    mask = is_row[:, None] & is_column[None, :]
    address = pointer + offset
    if ROWS > 1:
        mask = tl.max_constancy(mask, (ROWS, 1))
        address = tl.max_contiguous(tl.multiple_of(address, (16, 1)), (ROWS, 1))
    if COLUMNS > 1:
        mask = tl.max_constancy(mask, (1, COLUMNS))
        address = tl.max_contiguous(tl.multiple_of(address, (1, 16)), (1, COLUMNS))
    return tl.load(address, mask=mask, other=0)


@launcher
def add_forward(input: Operand, other: Operand | None, alpha: Unseen, out: Operand) -> Plan:
    """out = input + alpha * other; without a second tensor, `other` is one."""
    numbers = numbers_of(out.dtype)
    if other is None:
        return plan_elementwise(add_number_flat, add_number_strided, (input, out), numbers=numbers)
    return plan_elementwise(
        add_forward_flat, add_forward_strided, (input, other, out), numbers=numbers
    )


@launcher
def add_backward(grad_output: Operand, alpha: Unseen, out: Operand) -> Plan:
    """out = alpha * grad_output, summed over the dimensions that `out` lacks or has of size one."""
    numbers = numbers_of(grad_output.dtype)
    if grad_output.numel() != out.numel():
        return plan_sum(add_backward_sum, grad_output, out, numbers)
    operands = (grad_output, out)
    return plan_elementwise(add_backward_flat, add_backward_strided, operands, numbers=numbers)
