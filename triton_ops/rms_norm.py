"""RMS norm of rows and its derivative, and of a sum of two arrays: kernels and launchers. Twin of
csrc/ops/rms_norm.cu.
"""

import triton
import triton.language as tl

from diglot.triton_ops.launch import number_halves
from diglot.triton_ops.lib.norm import add, rms_map, squares_along, squares_finish
from diglot.triton_ops.lib.reduce import sums_combine, sums_fold, sums_none
from diglot.triton_ops.lib.row_reduce import reduce_then_map_rows
from diglot.triton_ops.norm_launch import launch_norm_backward, row_share
from diglot.triton_ops.row_launch import launch_rows


@triton.jit
def rms_norm_forward_rows(
    input, residual, weight, rstd, sum, words, output, n, count, size0, size1, size2,
    out_start, out0, out1, out2, out_step,
    in_start, in0, in1, in2, in_step,
    residual_start, residual0, residual1, residual2, residual_step,
    rstd_start, rstd0, rstd1, rstd2, eps_high, eps_low,
    KIND: tl.constexpr, RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
    SHARES: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    ADDS: tl.constexpr = residual is not None
    reduce_then_map_rows(
        (input, residual) if ADDS else (input,), words, output, n, count, (size0, size1, size2),
        (out_start, in_start, residual_start, rstd_start),
        ((out0, out1, out2), (in0, in1, in2), (residual0, residual1, residual2),
         (rstd0, rstd1, rstd2)),
        (out_step, in_step, residual_step),
        squares_along, sums_combine, sums_none, sums_fold, rms_map, 0.0,
        output.dtype.element_ty, KIND, RANK, STEPS, VECTOR, ALIGNED, SIDE, BLOCK, THREADS,
        SHARES, PHASE, sum, weight, None, (rstd,), (eps_high, eps_low),
        add if ADDS else None, squares_finish,
    )  # fmt: skip


def rms_norm_forward(input, weight, eps, words, rstd, out):
    """out = input * rstd * weight of rows, the last dimension, and rstd."""
    return add_rms_norm_forward(input, None, weight, eps, words, rstd, None, out)


def add_rms_norm_forward(input, residual, weight, eps, words, rstd, sum, out):
    """The same of sum = input + residual, rounded to their dtype, and that sum."""
    return launch_rows(
        rms_norm_forward_rows,
        (input, residual, out),
        out.dim() - 1,
        words,
        (weight,),
        (rstd,),
        (sum,),
        number_halves(eps, rstd.dtype),
        row_share(out.element_size(), residual is not None, has_mean=False),
    )


def rms_norm_backward(
    grad_output, grad_sum, input, rstd, weight, workspace, words, grad_weight, grad_input
):
    """grad_input = the gradient of the input, plus grad_sum; and that of weight."""
    return launch_norm_backward(
        grad_output,
        grad_sum,
        input,
        None,
        rstd,
        weight,
        workspace,
        words,
        grad_weight,
        None,
        grad_input,
    )
