"""Softmax of rows and its derivative: kernels and launchers. Twin of csrc/ops/softmax.cu."""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import Operand
from diglot.triton_ops.launch.rows import plan_rows
from diglot.triton_ops.lib.math import fma
from diglot.triton_ops.lib.reduce.states import (
    exp_nonpositive_for,
    max_sum_along,
    max_sum_combine,
    max_sum_fold,
    max_sum_none,
    sum_along,
    sums_combine,
    sums_fold,
    sums_none,
)
from diglot.triton_ops.lib.rows.rows import reduce_then_map_rows
from diglot.triton_ops.lib.types import compute_type


@triton.jit
def reduce(pieces, masks, length, AXIS: tl.constexpr, T: tl.constexpr):
    return max_sum_along(pieces, AXIS, T)


@triton.jit
def map(states, values, T: tl.constexpr):
    """NaN if nothing is greater than -inf, as in PyTorch."""
    max, factor = states[0], 1.0 / states[1]
    return exp_nonpositive_for(values[0].to(compute_type(T)) - max, T) * factor


@triton.jit
def reduce_backward(pieces, masks, length, AXIS: tl.constexpr, T: tl.constexpr):
    COMPUTE: tl.constexpr = compute_type(T)
    total = pieces[0][0].to(COMPUTE) * pieces[0][1].to(COMPUTE)
    for p in tl.static_range(1, len(pieces)):
        total = fma(pieces[p][0].to(COMPUTE), pieces[p][1].to(COMPUTE), total)
    return (sum_along(total, AXIS),)


@triton.jit
def map_backward(states, values, T: tl.constexpr):
    """y (g - sum(g y))."""
    COMPUTE: tl.constexpr = compute_type(T)
    return values[1].to(COMPUTE) * (values[0].to(COMPUTE) - states[0])


@triton.jit
def softmax_forward_rows(
    input, scratch, output, n, count, size0, size1, size2,
    out_start, out0, out1, out2, out_step,
    in_start, in0, in1, in2, in_step,
    KIND: tl.constexpr, RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr, ALIKE: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    PIECES: tl.constexpr, EARLY: tl.constexpr, THREADS: tl.constexpr,
    SPLITS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    reduce_then_map_rows(
        (input,), scratch, output, n, count, (size0, size1, size2), (out_start, in_start),
        ((out0, out1, out2), (in0, in1, in2)), (out_step, in_step),
        reduce, max_sum_combine, max_sum_none, max_sum_fold, map, -float("inf"),
        output.dtype.element_ty, KIND, RANK, STEPS, VECTOR, ALIGNED, ALIKE, SIDE,
        BLOCK, PIECES, EARLY, THREADS, SPLITS, PHASE,
    )  # fmt: skip


@triton.jit
def softmax_backward_rows(
    grad_output, output, scratch, grad_input, n, count, size0, size1, size2,
    out_start, out0, out1, out2, out_step,
    grad_start, grad0, grad1, grad2, grad_step,
    y_start, y0, y1, y2, y_step,
    KIND: tl.constexpr, RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr, ALIKE: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    PIECES: tl.constexpr, EARLY: tl.constexpr, THREADS: tl.constexpr,
    SPLITS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    reduce_then_map_rows(
        (grad_output, output), scratch, grad_input, n, count, (size0, size1, size2),
        (out_start, grad_start, y_start),
        ((out0, out1, out2), (grad0, grad1, grad2), (y0, y1, y2)),
        (out_step, grad_step, y_step),
        reduce_backward, sums_combine, sums_none, sums_fold, map_backward, 0.0,
        output.dtype.element_ty, KIND, RANK, STEPS, VECTOR, ALIGNED, ALIKE, SIDE,
        BLOCK, PIECES, EARLY, THREADS, SPLITS, PHASE,
    )  # fmt: skip


@launcher
def softmax_forward(input: Operand, dim: int, out: Operand) -> Plan:
    """out = softmax(input) along a dimension. Its dtype is input's, or float32 for 16 bits."""
    return plan_rows(softmax_forward_rows, (input, out), dim)


@launcher
def softmax_backward(grad_output: Operand, output: Operand, dim: int, out: Operand) -> Plan:
    """out = output * (grad_output - sum(grad_output * output)) along a dimension."""
    return plan_rows(softmax_backward_rows, (grad_output, output, out), dim)
