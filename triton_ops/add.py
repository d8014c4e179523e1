"""input + alpha * other, and its gradients: kernels and launchers. Twin of csrc/ops/add.cu."""

import math

import torch
import triton
import triton.language as tl

from diglot.triton_ops.elementwise_launch import ACCESS_BYTES, elementwise_launch
from diglot.triton_ops.launch import launch, number_halves
from diglot.triton_ops.layout import (
    compute_layout,
    split_layout,
    strided_arguments,
)
from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.elementwise_kernels import elementwise_kernels
from diglot.triton_ops.lib.math import fma
from diglot.triton_ops.lib.types import compute_type, convert, number


@triton.jit
def add(input, other, alpha, OUT: tl.constexpr):
    """input + alpha * other with one rounding, computed in the type that OUT is computed in.

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
    """alpha * gradient, computed in the type that the gradient is computed in."""
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


def add_forward(input, other, alpha, out):
    """out = input + alpha * other; without a second tensor, `other` is one."""
    halves = number_halves(alpha, out.dtype)
    if other is None:
        return elementwise_launch(add_number_flat, add_number_strided, (input, out), halves, ())
    return elementwise_launch(
        add_forward_flat, add_forward_strided, (input, other, out), halves, ()
    )


def add_backward(grad_output, alpha, workspace, out):
    """out = alpha * grad_output, summed over the dimensions that `out` lacks or has of size one."""
    if out.numel() == 0:
        return "nothing to do"
    halves = number_halves(alpha, grad_output.dtype)
    if grad_output.numel() == out.numel():
        return elementwise_launch(
            add_backward_flat, add_backward_strided, (grad_output, out), halves, ()
        )
    kept, reduced = split_layout(grad_output, out)
    if workspace is None:
        launch_sum(grad_output, out, kept, reduced, 1, 0, halves)
        return "sum"
    # The partial sums lie in the order of the kept elements: one row of them per split.
    splits = workspace.shape[0]
    steps = [math.prod(kept.sizes[:d]) for d in range(len(kept.sizes))]
    to_workspace = kept.with_strides([(s[0], t) for s, t in zip(kept.strides, steps, strict=True)])
    from_workspace = kept.with_strides(
        [(t, s[1]) for s, t in zip(kept.strides, steps, strict=True)]
    )
    rows = compute_layout(((splits,),), ((kept.numel,),))
    one = number_halves(1, grad_output.dtype)
    launch_sum(grad_output, workspace, to_workspace, reduced, splits, kept.numel, one)
    launch_sum(workspace, out, from_workspace, rows, 1, 0, halves)
    return "sum, split"


SUM_BYTES = 8192  # of a tile: four 16-byte loads per thread, or at most 16 of one element
SUM_WARPS = 4
MOST_PROGRAMS = 2**31 - 1


def power_of_two(n, most):
    """The least power of two that is at least n, and at most `most`."""
    result = 1
    while result < n and result < most:
        result *= 2
    return result


def launch_sum(source, target, kept, reduced, splits, split_stride, halves):
    """One pass of add_backward_sum."""
    size = source.element_size()
    vector = ACCESS_BYTES // size
    reduced_is_fastest = bool(reduced.strides) and (
        not kept.strides or reduced.strides[0][0] < kept.strides[0][0]
    )
    kept_vector = reduced_vector = 1
    # Addresses of traced tensors are unknown.
    if type(source) is torch.Tensor and source.data_ptr() % ACCESS_BYTES == 0:
        if reduced_is_fastest:
            if reduced.has_vectors(0, vector) and kept.has_multiples(0, vector, 0):
                reduced_vector = vector
        elif kept.has_vectors(0, vector) and reduced.has_multiples(0, vector, 0):
            kept_vector = vector
    elements = SUM_BYTES // (size if kept_vector * reduced_vector > 1 else max(size, 4))
    # The tile extends along the fastest dimension until a warp reads neighbouring elements, or all.
    if reduced_is_fastest:
        reduced_block = max(power_of_two(reduced.numel // splits, elements), reduced_vector)
        kept_block = power_of_two(kept.numel, elements // reduced_block)
    else:
        kept_block = power_of_two(kept.numel, 32 * vector)
        reduced_block = elements // kept_block
    while -(-kept.numel // kept_block) * splits > MOST_PROGRAMS:
        kept_block *= 2
    wide = not (kept.is_narrow and reduced.is_narrow)
    for slice, start in kept.slices():
        launch(
            add_backward_sum,
            -(-slice.numel // kept_block) * splits,
            (source, target),
            (
                slice.numel,
                reduced.numel,
                splits,
                split_stride,
                *strided_arguments(slice, start, arrays=2),
                *strided_arguments(reduced, (0,), arrays=1),
                *halves,
            ),
            (
                len(slice.sizes),
                len(reduced.sizes),
                wide,
                kept_block,
                reduced_block,
                kept_vector,
                reduced_vector,
            ),
            SUM_WARPS,
        )
