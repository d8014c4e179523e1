"""Layer norm of rows and its derivative, and of a sum of two arrays: kernels and launchers. Twin of
csrc/ops/layer_norm.cu.
"""

import torch
import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.norm_backward import plan_norm_backward
from diglot.triton_ops.launch.norm_forward import norm_rows
from diglot.triton_ops.launch.numbers import numbers_of
from diglot.triton_ops.launch.plan import Operand, Unseen
from diglot.triton_ops.launch.rows import plan_rows
from diglot.triton_ops.lib.norm.forward import (
    add,
    layer_map,
    moments_along,
    moments_combine,
    moments_finish,
    moments_fold,
    moments_none,
)
from diglot.triton_ops.lib.rows.rows import reduce_then_map_rows


@triton.jit
def layer_norm_forward_rows(
    input, residual, weight, bias, statistics, sum, scratch, output, n, count, size0, size1, size2,
    out_start, out0, out1, out2, out_step,
    in_start, in0, in1, in2, in_step,
    residual_start, residual0, residual1, residual2, residual_step,
    row_start, row0, row1, row2, row_field, eps_high, eps_low,
    KIND: tl.constexpr, RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr, ALIKE: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    PIECES: tl.constexpr, EARLY: tl.constexpr, THREADS: tl.constexpr,
    SPLITS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    ADDS: tl.constexpr = residual is not None
    reduce_then_map_rows(
        (input, residual) if ADDS else (input,), scratch, output, n, count, (size0, size1, size2),
        (out_start, in_start, residual_start, row_start),
        ((out0, out1, out2), (in0, in1, in2), (residual0, residual1, residual2),
         (row0, row1, row2)),
        (out_step, in_step, residual_step),
        moments_along, moments_combine, moments_none, moments_fold, layer_map, 0.0,
        output.dtype.element_ty, KIND, RANK, STEPS, VECTOR, ALIGNED, ALIKE, SIDE,
        BLOCK, PIECES, EARLY, THREADS, SPLITS, PHASE, sum, weight, bias,
        (statistics, statistics + row_field) if statistics is not None else None,
        (eps_high, eps_low),
        add if ADDS else None, moments_finish,
    )  # fmt: skip


@launcher
def layer_norm_forward(
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    eps: Unseen,
    statistics: Operand | None,
    out: Operand,
) -> Plan:
    """out = (input - mean) * rstd * weight + bias of rows, the last dimension. The statistics, mean
    and rstd, are written if requested.
    """
    return add_layer_norm_forward.planner(input, None, weight, bias, eps, statistics, None, out)


@launcher
def add_layer_norm_forward(
    input: Operand,
    residual: Operand | None,
    weight: Operand | None,
    bias: Operand | None,
    eps: Unseen,
    statistics: Operand | None,
    sum: Operand | None,
    out: Operand,
) -> Plan:
    """The same for sum = input + residual, rounded to their dtype. The sum is written too."""
    return plan_rows(
        layer_norm_forward_rows,
        (input, residual, out),
        out.dim() - 1,
        (weight, bias),
        (statistics,),
        (sum,),
        numbers_of(torch.float64),
        norm_rows(out, residual, has_mean=True),
    )


@launcher
def layer_norm_backward(
    grad_output: Operand,
    grad_sum: Operand | None,
    input: Operand,
    statistics: Operand,
    weight: Operand | None,
    grad_weight: Operand | None,
    grad_bias: Operand | None,
    grad_input: Operand,
) -> Plan:
    """grad_input = the gradient of the input, plus grad_sum; also those of weight and bias."""
    return plan_norm_backward(
        grad_output, grad_sum, input, statistics, weight, grad_weight, grad_bias, grad_input
    )
