"""The backward pass of a norm: how its rows are shared out, and what is summed over them. Twin of
csrc/include/diglot/norm_backward.cuh.

Groups share the rows, one program each, which walks its rows with the next ones on their way, and
sums the gradients of weight and bias over them in registers: a thread has the same columns of all
rows. The sums of the groups are written to a workspace, and summed by another launch.

    y = (x - mean) * rstd, or x * rstd      h = grad * weight
    grad_input = rstd * (h - mean(h) - y * mean(h y)), where mean(h) is left out without a mean
    grad_weight = sum(grad * y), grad_bias = sum(grad), over rows
"""

import triton
import triton.language as tl

from .elementwise import strided_offset
from .math import fma, negate
from .row_reduce import load_shared, tile_mask, tile_pointers
from .types import compute_type, convert


@triton.jit
def normalized(x, mean, rstd):
    """y, of tiles; without a mean, mean is None."""
    return x * rstd if mean is None else (x - mean) * rstd


@triton.jit
def load_statistic(pointer, at, there):
    """A number for each row, as a column; None if it is not given."""
    value = None
    if pointer is not None:
        value = tl.load(pointer + at, mask=there, other=0.0)[:, None]
    return value


@triton.jit
def gradient_of(y, h, rstd, mean_h, mean_hy):
    """rstd * (h - mean_h - y * mean_hy)."""
    centered = h if mean_h is None else h - mean_h
    return rstd * fma(y, negate(mean_hy), centered)


@triton.jit
def load_rows(
    pointer, row, index, mask, sizes, start, strides,
    RANK: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A tile of an array; None if it is not given."""
    tile = None
    if pointer is not None:
        at = strided_offset(row, sizes, start, strides, RANK, True)
        tile = tl.load(
            tile_pointers(pointer, at, 1, index, False, False, VECTOR, ALIGNED),
            mask=mask, other=0.0,
        )  # fmt: skip
    return tile


@triton.jit
def sum_rows(tile, SIDE: tl.constexpr):
    return tile if SIDE == 1 else tl.sum(tile, 0, keep_dims=True)


@triton.jit
def sums_pointers(workspace, FIELD: tl.constexpr, index, n, ALIGNED: tl.constexpr):
    """Where this group's sums of a field are."""
    group = FIELD * tl.num_programs(0) + tl.program_id(0).to(tl.int64)
    at = (workspace + group * n + index)[None, :]
    return tl.multiple_of(at, [16, 16]) if ALIGNED else at


@triton.jit
def sums_before(at, index, n, LATER: tl.constexpr):
    """What this group's sums begin with: nothing, or those of earlier launches."""
    if LATER:
        sums = tl.load(at, mask=(index < n)[None, :], other=0.0)
    else:
        sums = tl.full(at.shape, 0.0, at.dtype.element_ty)
    return sums


@triton.jit
def norm_backward_in_groups(
    grad_output, grad_sum, input, mean, rstd, weight, workspace, grad_input,
    n, count, sizes, starts, strides,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A program's part of the backward pass, in which it holds whole rows.

    Args:
        n: accesses of a row.
        count: rows.
        sizes: of the outer dimensions, the fastest first.
        starts, strides: of grad_input, grad_output, grad_sum, input, and the statistics.
        WEIGHT, BIAS: whether their gradients are asked for.
        LATER: whether the workspace has sums of an earlier launch.
        SIDE: rows at a time.
        BLOCK: elements that a row has at most.
        STAGES: of loads in flight.
    """
    T: tl.constexpr = grad_input.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    n = n * VECTOR
    group = tl.program_id(0).to(tl.int64)
    groups = tl.num_programs(0)
    index = tl.arange(0, BLOCK).to(tl.int64)
    one = tl.full((), 1.0, COMPUTE) / tl.full((), n, COMPUTE)
    scale = load_shared(weight, index, n, ALIGNED)
    if WEIGHT:
        weight_at = sums_pointers(workspace, 0, index, n, ALIGNED)
        by_weight = sums_before(weight_at, index, n, LATER)
    if BIAS:
        bias_at = sums_pointers(workspace, 1 if WEIGHT else 0, index, n, ALIGNED)
        by_bias = sums_before(bias_at, index, n, LATER)
    for first in tl.range(group * SIDE, count, groups * SIDE, num_stages=STAGES):
        row = first + tl.arange(0, SIDE)
        there = row < count
        mask = tile_mask(index, n, there, False)
        x = load_rows(input, row, index, mask, sizes, starts[3], strides[3], RANK, VECTOR, ALIGNED)
        grad = load_rows(
            grad_output, row, index, mask, sizes, starts[1], strides[1], RANK, VECTOR, ALIGNED
        )
        more = load_rows(
            grad_sum, row, index, mask, sizes, starts[2], strides[2], RANK, VECTOR, ALIGNED
        )
        at = strided_offset(row, sizes, starts[4], strides[4], RANK, True)
        center = load_statistic(mean, at, there)
        factor = load_statistic(rstd, at, there)
        y = normalized(x.to(COMPUTE), center, factor)
        grad = grad.to(COMPUTE)
        h = grad if scale is None else grad * scale.to(COMPUTE)
        mean_h = None if mean is None else tl.sum(h, 1, keep_dims=True) * one
        mean_hy = tl.sum(h * y, 1, keep_dims=True) * one
        result = gradient_of(y, h, factor, mean_h, mean_hy)
        if more is not None:
            result += more.to(COMPUTE)
        at = strided_offset(row, sizes, starts[0], strides[0], RANK, True)
        tl.store(
            tile_pointers(grad_input, at, 1, index, False, False, VECTOR, ALIGNED),
            convert(result, T),
            mask=mask,
        )
        if WEIGHT:
            by_weight = (
                fma(grad, y, by_weight) if SIDE == 1 else by_weight + sum_rows(grad * y, SIDE)
            )
        if BIAS:
            by_bias += sum_rows(grad, SIDE)
    if WEIGHT:
        tl.store(weight_at, by_weight, mask=(index < n)[None, :])
    if BIAS:
        tl.store(bias_at, by_bias, mask=(index < n)[None, :])


@triton.jit
def sum_groups(
    workspace, result, field, n, groups, column, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """result = the sums of a field over groups, in order, of BLOCK columns from `column` on."""
    index = column + tl.arange(0, BLOCK)
    inside = index < n
    part = tl.arange(0, ROWS)
    sums = tl.full((ROWS, BLOCK), 0.0, workspace.dtype.element_ty)
    for first in tl.range(0, groups, ROWS):
        group = first + part
        at = workspace + ((field * groups + group) * n)[:, None] + index[None, :]
        sums += tl.load(at, mask=(group < groups)[:, None] & inside[None, :], other=0.0)
    total = convert(tl.sum(sums, 0), result.dtype.element_ty)
    tl.store(result + index, total, mask=inside)
