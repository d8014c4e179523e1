"""Layer norm of rows and its derivative, and of a sum of two arrays: kernels and launchers. Twin of
csrc/ops/layer_norm.cu.
"""

import triton
import triton.language as tl

from diglot.triton_ops.launch import number_halves
from diglot.triton_ops.lib.norm import (
    add,
    layer_map,
    moments_along,
    moments_combine,
    moments_finish,
    moments_fold,
    moments_none,
)
from diglot.triton_ops.lib.row_reduce import reduce_then_map_rows
from diglot.triton_ops.norm_launch import launch_norm_backward, row_share
from diglot.triton_ops.row_launch import launch_rows


@triton.jit
def layer_norm_forward_rows(
    input, residual, weight, bias, mean, rstd, sum, words, output, n, count, size0, size1, size2,
    out_start, out0, out1, out2, out_step,
    in_start, in0, in1, in2, in_step,
    residual_start, residual0, residual1, residual2, residual_step,
    mean_start, mean0, mean1, mean2, eps_high, eps_low,
    KIND: tl.constexpr, RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
    SHARES: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    ADDS: tl.constexpr = residual is not None
    reduce_then_map_rows(
        (input, residual) if ADDS else (input,), words, output, n, count, (size0, size1, size2),
        (out_start, in_start, residual_start, mean_start),
        ((out0, out1, out2), (in0, in1, in2), (residual0, residual1, residual2),
         (mean0, mean1, mean2)),
        (out_step, in_step, residual_step),
        moments_along, moments_combine, moments_none, moments_fold, layer_map, 0.0,
        output.dtype.element_ty, KIND, RANK, STEPS, VECTOR, ALIGNED, SIDE, BLOCK, THREADS,
        SHARES, PHASE, sum, weight, bias, (mean, rstd), (eps_high, eps_low),
        add if ADDS else None, moments_finish,
    )  # fmt: skip


def layer_norm_forward(input, weight, bias, eps, words, mean, rstd, out):
    """out = (input - mean) * rstd * weight + bias of rows, the last dimension, and the two."""
    return add_layer_norm_forward(input, None, weight, bias, eps, words, mean, rstd, None, out)


def add_layer_norm_forward(input, residual, weight, bias, eps, words, mean, rstd, sum, out):
    """The same of sum = input + residual, rounded to their dtype, and that sum."""
    return launch_rows(
        layer_norm_forward_rows,
        (input, residual, out),
        out.dim() - 1,
        words,
        (weight, bias),
        (mean, rstd),
        (sum,),
        number_halves(eps, mean.dtype),
        row_share(out.element_size(), residual is not None, has_mean=True),
    )


def layer_norm_backward(
    grad_output,
    grad_sum,
    input,
    mean,
    rstd,
    weight,
    workspace,
    words,
    grad_weight,
    grad_bias,
    grad_input,
):
    """grad_input = the gradient of the input, plus grad_sum; and those of weight and bias."""
    return launch_norm_backward(
        grad_output,
        grad_sum,
        input,
        mean,
        rstd,
        weight,
        workspace,
        words,
        grad_weight,
        grad_bias,
        grad_input,
    )
