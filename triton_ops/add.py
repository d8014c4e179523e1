"""input + alpha * other, and its gradients: kernels and launchers. Twin of csrc/ops/add.cu."""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.elementwise_launch import plan_elementwise
from diglot.triton_ops.launch import launcher, numbers_of
from diglot.triton_ops.lib.elementwise import (
    flat_start,
    shifted,
    strided_index,
    strided_load,
    strided_offset,
    strided_store,
)
from diglot.triton_ops.lib.math import fma
from diglot.triton_ops.lib.types import compute_type, convert, number
from diglot.triton_ops.plan import Operand, Unseen
from diglot.triton_ops.sum_launch import plan_sum

HEAD = tl.constexpr(16)  # more elements than any array is away from a 16-byte boundary


@triton.jit
def add(input, other, alpha_high, alpha_low, OUT: tl.constexpr):
    """input + alpha * other with one rounding, computed in the type that OUT is computed in.

    Without a second array, `other` is one. On bool, `or` and `and`.
    """
    COMPUTE: tl.constexpr = compute_type(OUT)
    factor = tl.full(input.shape, number(alpha_high, alpha_low, COMPUTE), COMPUTE)
    a = convert(input, OUT).to(COMPUTE)
    if other is None:
        b = tl.full(input.shape, 1, COMPUTE)
    else:
        b = convert(other, OUT).to(COMPUTE)
    if OUT == tl.int1:
        result = a | (b & (factor != 0))
    elif COMPUTE.is_floating():
        result = fma(factor, b, a)
    else:
        result = a + factor * b
    return convert(result, OUT)


@triton.jit
def load_given(pointer, offsets):
    """The elements, or None for an array that is not given."""
    values = None
    if pointer is not None:
        values = tl.load(pointer + offsets)
    return values


@triton.jit
def load_masked(pointer, offsets, mask):
    """The elements under the mask, or None for an array that is not given."""
    values = None
    if pointer is not None:
        values = tl.load(pointer + offsets, mask=mask)
    return values


@triton.jit
def add_forward_flat(
    input, other, output, n, head, alpha_high, alpha_low, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    OUT: tl.constexpr = output.dtype.element_ty
    start = flat_start(head, BLOCK)
    index = tl.arange(0, BLOCK)
    a_pointer = shifted(input, start, ALIGNED)
    b_pointer = shifted(other, start, ALIGNED)
    out_pointer = shifted(output, start, ALIGNED)
    if start + BLOCK <= n:
        a = tl.load(a_pointer + index)
        tl.store(
            out_pointer + index, add(a, load_given(b_pointer, index), alpha_high, alpha_low, OUT)
        )
    else:
        mask = index < n - start
        a = tl.load(a_pointer + index, mask=mask)
        masked_sum = add(a, load_masked(b_pointer, index, mask), alpha_high, alpha_low, OUT)
        tl.store(out_pointer + index, masked_sum, mask=mask)
    if (tl.program_id(0) == 0) & (head > 0):
        at = tl.arange(0, HEAD)
        head_a = tl.load(input + at, mask=at < head)
        head_sum = add(head_a, load_masked(other, at, at < head), alpha_high, alpha_low, OUT)
        tl.store(output + at, head_sum, mask=at < head)


@triton.jit
def add_forward_strided(
    input, other, output, n,
    size0, size1, size2, size3, size4, size5, size6, size7,
    out_start, out0, out1, out2, out3, out4, out5, out6, out7,
    in_start, in0, in1, in2, in3, in4, in5, in6, in7,
    other_start, other0, other1, other2, other3, other4, other5, other6, other7,
    alpha_high, alpha_low,
    RANK: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr, BROADCAST: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = output.dtype.element_ty
    sizes = (size0, size1, size2, size3, size4, size5, size6, size7)
    index, mask = strided_index(n, BLOCK // VECTOR, WIDE)
    out_strides = (out0, out1, out2, out3, out4, out5, out6, out7)
    out_at = strided_offset(index, sizes, out_start, out_strides, RANK, WIDE)
    in_strides = (in0, in1, in2, in3, in4, in5, in6, in7)
    in_at = strided_offset(index, sizes, in_start, in_strides, RANK, WIDE)
    other_strides = (other0, other1, other2, other3, other4, other5, other6, other7)
    other_at = strided_offset(index, sizes, other_start, other_strides, RANK, WIDE)
    a = strided_load(input, in_at, mask, VECTOR, BROADCAST & 1, ALIGNED)
    b = strided_load(other, other_at, mask, VECTOR, BROADCAST & 2, ALIGNED)
    total = add(a, b, alpha_high, alpha_low, OUT)
    strided_store(output, out_at, total, mask, VECTOR, ALIGNED)


@triton.jit
def add_backward_flat(
    grad_output,
    grad_input,
    n,
    head,
    alpha_high,
    alpha_low,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    OUT: tl.constexpr = grad_input.dtype.element_ty
    start = flat_start(head, BLOCK)
    index = tl.arange(0, BLOCK)
    in_pointer = shifted(grad_output, start, ALIGNED)
    out_pointer = shifted(grad_input, start, ALIGNED)
    if start + BLOCK <= n:
        tl.store(
            out_pointer + index, scale(tl.load(in_pointer + index), alpha_high, alpha_low, OUT)
        )
    else:
        mask = index < n - start
        gradient = tl.load(in_pointer + index, mask=mask)
        tl.store(out_pointer + index, scale(gradient, alpha_high, alpha_low, OUT), mask=mask)
    if (tl.program_id(0) == 0) & (head > 0):
        at = tl.arange(0, HEAD)
        head_gradient = tl.load(grad_output + at, mask=at < head)
        tl.store(grad_input + at, scale(head_gradient, alpha_high, alpha_low, OUT), mask=at < head)


@triton.jit
def scale(gradient, alpha_high, alpha_low, OUT: tl.constexpr):
    """alpha * gradient, computed in the type that the gradient is computed in."""
    COMPUTE: tl.constexpr = compute_type(gradient.dtype)
    return convert(number(alpha_high, alpha_low, COMPUTE) * gradient.to(COMPUTE), OUT)


@triton.jit
def add_backward_strided(
    grad_output, grad_input, n,
    size0, size1, size2, size3, size4, size5, size6, size7,
    out_start, out0, out1, out2, out3, out4, out5, out6, out7,
    in_start, in0, in1, in2, in3, in4, in5, in6, in7,
    alpha_high, alpha_low,
    RANK: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr, BROADCAST: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = grad_input.dtype.element_ty
    sizes = (size0, size1, size2, size3, size4, size5, size6, size7)
    index, mask = strided_index(n, BLOCK // VECTOR, WIDE)
    out_strides = (out0, out1, out2, out3, out4, out5, out6, out7)
    out_at = strided_offset(index, sizes, out_start, out_strides, RANK, WIDE)
    in_strides = (in0, in1, in2, in3, in4, in5, in6, in7)
    in_at = strided_offset(index, sizes, in_start, in_strides, RANK, WIDE)
    gradient = strided_load(grad_output, in_at, mask, VECTOR, BROADCAST & 1, ALIGNED)
    result = scale(gradient, alpha_high, alpha_low, OUT)
    strided_store(grad_input, out_at, result, mask, VECTOR, ALIGNED)


@triton.jit
def add_backward_sum(
    grad_output, output, kept, reduced, splits, output_split_stride,
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
    tiles = tl.cdiv(kept, KEPT_BLOCK)
    program = tl.program_id(0).to(tl.int64)
    split = program // tiles
    element = (program % tiles * KEPT_BLOCK + tl.arange(0, KEPT_BLOCK)).to(INDEX)
    rows_per_split = tl.cdiv(reduced // REDUCED_VECTOR, splits) * REDUCED_VECTOR
    begin = split * rows_per_split
    end = tl.minimum(begin + rows_per_split, reduced)

    sizes = (size0, size1, size2, size3, size4, size5, size6, size7)
    in_strides = (in0, in1, in2, in3, in4, in5, in6, in7)
    out_strides = (out0, out1, out2, out3, out4, out5, out6, out7)
    reduced_sizes = (rsize0, rsize1, rsize2, rsize3, rsize4, rsize5, rsize6, rsize7)
    reduced_strides = (r0, r1, r2, r3, r4, r5, r6, r7)
    in_at = strided_offset(element, sizes, in_start, in_strides, RANK, WIDE)
    out_at = strided_offset(element, sizes, out_start, out_strides, RANK, WIDE)
    is_kept = element < kept
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
    sums and the hints on them are made here: a hint on a parameter is lost in inlining.
    """
    # In 64 bits: two offsets that fit 31 bits may not when added.
    at = row_at.to(tl.int64)[:, None] + column_at[None, :]
    mask = is_row[:, None] & is_column[None, :]
    address = pointer + at
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
    return plan_elementwise(
        add_forward_flat,
        add_forward_strided,
        (input, other, out),
        numbers=numbers_of(out.dtype),
    )


@launcher
def add_backward(grad_output: Operand, alpha: Unseen, out: Operand) -> Plan:
    """out = alpha * grad_output, summed over the dimensions that `out` lacks or has of size one."""
    numbers = numbers_of(grad_output.dtype)
    if grad_output.numel() != out.numel():
        return plan_sum(add_backward_sum, grad_output, out, numbers)
    operands = (grad_output, out)
    return plan_elementwise(add_backward_flat, add_backward_strided, operands, numbers=numbers)
