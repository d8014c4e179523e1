"""RMS norm of rows and its derivative, and of a sum of two arrays: kernels and launchers. Twin of
csrc/ops/rms_norm.cu.
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
from diglot.triton_ops.lib.norm.forward import add, rms_map, squares_along, squares_finish
from diglot.triton_ops.lib.reduce.states import sums_combine, sums_fold, sums_none
from diglot.triton_ops.lib.rows.rows import reduce_then_map_rows


@triton.jit
def rms_norm_forward_rows(
    input, residual, weight, statistics, sum, scratch, output, n, count, size0, size1, size2,
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
        squares_along, sums_combine, sums_none, sums_fold, rms_map, 0.0,
        output.dtype.element_ty, KIND, RANK, STEPS, VECTOR, ALIGNED, ALIKE, SIDE,
        BLOCK, PIECES, EARLY, THREADS, SPLITS, PHASE, sum, weight, None,
        (statistics,) if statistics is not None else None, (eps_high, eps_low),
        add if ADDS else None, squares_finish,
    )  # fmt: skip


@launcher
def rms_norm_forward(
    input: Operand,
    weight: Operand | None,
    eps: Unseen,
    statistics: Operand | None,
    out: Operand,
) -> Plan:
    """out = input * rstd * weight of rows, the last dimension. The statistic, rstd, is written if
    requested.
    """
    return add_rms_norm_forward.planner(input, None, weight, eps, statistics, None, out)


@launcher
def add_rms_norm_forward(
    input: Operand,
    residual: Operand | None,
    weight: Operand | None,
    eps: Unseen,
    statistics: Operand | None,
    sum: Operand | None,
    out: Operand,
) -> Plan:
    """The same for sum = input + residual, rounded to their dtype. The sum is written too."""
    return plan_rows(
        rms_norm_forward_rows,
        (input, residual, out),
        out.dim() - 1,
        (weight,),
        (statistics,),
        (sum,),
        numbers_of(torch.float64),
        norm_rows(out, residual, has_mean=False),
    )


@launcher
def rms_norm_backward(
    grad_output: Operand,
    grad_sum: Operand | None,
    input: Operand,
    statistics: Operand,
    weight: Operand | None,
    grad_weight: Operand | None,
    grad_input: Operand,
) -> Plan:
    """grad_input = the gradient of the input, plus grad_sum; also that of weight."""
    return plan_norm_backward(
        grad_output, grad_sum, input, statistics, weight, grad_weight, None, grad_input
    )
