"""Norms of rows, forward, as operations on rows (rows/operation.py).

Twin of csrc/include/diglot/norm/forward.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.math import divide, fma, reciprocal_root
from diglot.triton_ops.lib.reduce.states import (
    ALL,
    BY_THREAD,
    combine_all_moments,
    combine_moments,
    share_of,
    sum_along,
    total_of,
)
from diglot.triton_ops.lib.types import compute_type, convert, number, opaque, widen


@triton.jit
def add(values, T: tl.constexpr):
    """input + residual, rounded to the type of both."""
    COMPUTE: tl.constexpr = compute_type(T)
    return convert(values[0].to(COMPUTE) + values[1].to(COMPUTE), T)


@triton.jit
def scale(y, weight, bias):
    """y * weight + bias, without a factor or summand that is None."""
    if weight is not None:
        if bias is not None:
            y = fma(y, weight.to(y.dtype), bias.to(y.dtype))
        else:
            y = y * weight.to(y.dtype)
    elif bias is not None:
        y = y + bias.to(y.dtype)
    return y


@triton.jit
def moments_along(pieces, masks, length, AXIS: tl.constexpr, T: tl.constexpr):
    """The count of elements, their mean, and the sum of their squared distances from it."""
    total = total_of(pieces, T)
    sums = sum_along(total, AXIS)
    if AXIS == BY_THREAD:
        # A mask of whole accesses has one element for each.
        mask = masks[0]
        counts = sum_along(mask.to(total.dtype), AXIS) * (total.shape[2] // mask.shape[2])
        means = share_of(sums, counts)
    else:
        counts = length.to(total.dtype)
        if AXIS != ALL:
            counts = tl.broadcast_to(counts, sums.shape)
        means = divide(sums, tl.maximum(counts, 1.0))  # a part of a row may be empty
    distances = distances_from(means, pieces[0][0], masks[0], total.dtype)
    squares = distances * distances
    for p in tl.static_range(1, len(pieces)):
        distances = distances_from(means, pieces[p][0], masks[p], total.dtype)
        squares = fma(distances, distances, squares)
    return counts, means, sum_along(squares, AXIS)


@triton.jit
def distances_from(means, tile, mask, COMPUTE: tl.constexpr):
    """Zeros where the mask is false."""
    return tl.where(mask, widen(opaque(tile), COMPUTE) - means, 0.0)


@triton.jit
def moments_none(zeros, T: tl.constexpr):
    return zeros, zeros, zeros


@triton.jit
def moments_combine(a, b, T: tl.constexpr):
    return combine_moments(a[0], a[1], a[2], b[0], b[1], b[2])


@triton.jit
def moments_fold(states, count, AXIS: tl.constexpr, T: tl.constexpr):
    """Along all axes, whatever AXIS is: a norm has no columns."""
    count = count.to(states[0].dtype)
    mean, squares = combine_all_moments(states[0], states[1], states[2], count)
    return count, mean, squares


@triton.jit
def moments_finish(states, n, numbers, T: tl.constexpr):
    """The mean, and 1 / sqrt(variance + eps)."""
    COMPUTE: tl.constexpr = compute_type(T)
    count = tl.full((), n, COMPUTE)
    return states[1], rstd_of(states[2], count, number(numbers[0], numbers[1], COMPUTE))


@triton.jit
def layer_map(states, values, weight, bias, T: tl.constexpr):
    y = (widen(values[0], compute_type(T)) - states[0]) * states[1]
    return scale(y, weight, bias)


@triton.jit
def squares_along(pieces, masks, length, AXIS: tl.constexpr, T: tl.constexpr):
    x = widen(pieces[0][0], compute_type(T))
    squares = x * x
    for p in tl.static_range(1, len(pieces)):
        x = widen(pieces[p][0], compute_type(T))
        squares = fma(x, x, squares)
    return (sum_along(squares, AXIS),)


@triton.jit
def squares_finish(states, n, numbers, T: tl.constexpr):
    """1 / sqrt(mean square + eps)."""
    COMPUTE: tl.constexpr = compute_type(T)
    count = tl.full((), n, COMPUTE)
    return (rstd_of(states[0], count, number(numbers[0], numbers[1], COMPUTE)),)


@triton.jit
def rms_map(states, values, weight, bias, T: tl.constexpr):
    return scale(widen(values[0], compute_type(T)) * states[0], weight, bias)


@triton.jit
def rstd_of(squares, count, eps):
    return reciprocal_root(divide(squares, tl.broadcast_to(count, squares.shape)) + eps)
