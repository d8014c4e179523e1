"""The backward pass of a norm: kernels, and how they are launched. Twin of
csrc/include/diglot/norm_launch.h.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from diglot.triton_ops.launch import launch
from diglot.triton_ops.lib.norm_backward import norm_backward_in_groups, sum_groups
from diglot.triton_ops.row_launch import ACCESS_BYTES, ROW_RANK, _power_of_2, rows_of

GROUPS = 264  # without a workspace, which says how many there are
SUMMED_GROUPS, SUMMED_COLUMNS, SUMMING_WARPS = 64, 32, 8


@triton.jit
def norm_backward_rows(
    grad_output, grad_sum, input, mean, rstd, weight, workspace, grad_input,
    n, count, size0, size1, size2,
    out_start, out0, out1, out2,
    grad_start, grad0, grad1, grad2,
    sum_start, sum0, sum1, sum2,
    in_start, in0, in1, in2,
    rstd_start, rstd0, rstd1, rstd2,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    norm_backward_in_groups(
        grad_output, grad_sum, input, mean, rstd, weight, workspace, grad_input,
        n, count, (size0, size1, size2),
        (out_start, grad_start, sum_start, in_start, rstd_start),
        ((out0, out1, out2), (grad0, grad1, grad2), (sum0, sum1, sum2), (in0, in1, in2),
         (rstd0, rstd1, rstd2)),
        WEIGHT, BIAS, LATER, RANK, VECTOR, ALIGNED, SIDE, BLOCK, STAGES,
    )  # fmt: skip


@triton.jit
def norm_backward_sums(
    workspace, grad_weight, grad_bias, n, groups, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.program_id(0).to(tl.int64) * BLOCK
    if grad_weight is not None:
        sum_groups(workspace, grad_weight, 0, n, groups, column, ROWS, BLOCK)
    if grad_bias is not None:
        field: tl.constexpr = 0 if grad_weight is None else 1
        sum_groups(workspace, grad_bias, field, n, groups, column, ROWS, BLOCK)


def launch_norm_backward(
    grad_output: torch.Tensor,
    grad_sum: torch.Tensor | None,
    input: torch.Tensor,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    workspace: torch.Tensor | None,
    grad_weight: torch.Tensor | None,
    grad_bias: torch.Tensor | None,
    grad_input: torch.Tensor,
) -> str:
    """Launches the backward pass of a norm of rows, and says how.

    Args:
        grad_output, grad_sum, input: of the shape (*outer, n); the last dimension has no gaps.
        mean, rstd: of the shape (*outer); without a mean, the RMS norm.
        weight: of the shape (n,), without gaps.
        workspace: (gradients of weight and bias asked for, groups, n), of the type computed in.
        grad_weight, grad_bias: of the shape (n,), or None.
        grad_input: like input, without gaps.
    """
    dim = grad_input.dim() - 1
    given = (grad_output, grad_sum, input)
    arrays = (grad_input, *(t for t in given if t is not None))
    n, steps, outer = rows_of(arrays, dim, rstd)
    count = outer.numel
    if n == 0:
        return "nothing to do"
    size = grad_input.element_size()
    vector = ACCESS_BYTES // size
    is_aligned = (
        type(grad_input) is torch.Tensor
        and n % vector == 0
        and all(outer.has_multiples(a, vector, 0) for a in range(len(arrays)))
        and all(
            t.data_ptr() % ACCESS_BYTES == 0 for t in (*arrays, weight, workspace) if t is not None
        )
    )
    vector = vector if is_aligned else 1
    side, block, warps, stages = share_out(n, size, mean is not None)
    groups = min(GROUPS, count) if workspace is None else workspace.shape[1]
    places = [0, 1, 1 + (grad_sum is not None), len(arrays) - 1, len(arrays)]
    later = False
    for slice, start in outer.slices(ROW_RANK):
        missing = (0,) * (ROW_RANK - len(slice.sizes))
        integers = [n // vector, slice.numel, *slice.sizes, *((1,) * len(missing))]
        for a in places:
            integers += [start[a] if start else 0, *(of[a] for of in slice.strides), *missing]
        launch(
            norm_backward_rows,
            groups,
            (grad_output, grad_sum, input, mean, rstd, weight, workspace, grad_input),
            tuple(integers),
            (
                grad_weight is not None,
                grad_bias is not None,
                later,
                len(slice.sizes),
                vector,
                is_aligned,
                side,
                block,
                stages,
            ),
            warps,
        )
        later = True
    if workspace is not None:
        sums: Any = (workspace, grad_weight, grad_bias)
        launch(
            norm_backward_sums,
            -(-n // SUMMED_COLUMNS),
            sums if grad_bias is not None else (workspace, grad_bias, grad_weight),
            (n, groups),
            (SUMMED_GROUPS, SUMMED_COLUMNS),
            SUMMING_WARPS,
        )
    return f"{groups} groups, {side} rows of {block}"


def share_out(n: int, size: int, is_centered: bool) -> tuple[int, int, int, int]:
    """Rows at a time, elements that a row has at most, warps, and stages."""
    block = _power_of_2(n)
    side = max(1, 4096 // block)
    warps = max(1, min(32, side * block // 512))
    return side, block, warps, 2
