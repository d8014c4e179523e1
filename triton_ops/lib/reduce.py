"""States of reductions, and how two of them are combined. Twin of csrc/include/diglot/reduce.cuh.

A program's own elements are reduced by `tl.max` and `tl.sum`, which Triton orders as a kernel's
layout has it, the same way in every program.
"""

import triton
import triton.language as tl

from .math import exp2_approximate, exp_nonpositive, fma, maximum

LOG2_E = tl.constexpr(1.44269502)


@triton.jit
def exp_nonpositive_for(x, T: tl.constexpr):
    """e^x for x <= 0, as exactly as an element of type T can tell."""
    if T.primitive_bitwidth == 16:
        result = exp2_approximate(x * LOG2_E)
    else:
        result = exp_nonpositive(x)
    return result


@triton.jit
def shift_of(max):
    """What is subtracted before the exponential: while nothing is greater than -inf, nothing."""
    return tl.where(max == -float("inf"), 0.0, max)


@triton.jit
def max_sum_of(x, T: tl.constexpr):
    """The maximum of a block of elements of type T, and the sum of e^(x - max).

    Elements that are not there are -inf.
    """
    max = tl.max(x)
    return max, tl.sum(exp_nonpositive_for(x - shift_of(max), T))


@triton.jit
def combine_max_sum(max_a, sum_a, max_b, sum_b, T: tl.constexpr):
    max = maximum(max_a, max_b)
    shift = shift_of(max)
    scaled_a = sum_a * exp_nonpositive_for(max_a - shift, T)
    return max, scaled_a + sum_b * exp_nonpositive_for(max_b - shift, T)


@triton.jit
def combine_all_max_sums(maxima, sums, T: tl.constexpr):
    """Of a block of states, in one step. Those that are not there are -inf and 0."""
    max = tl.max(maxima)
    return max, tl.sum(sums * exp_nonpositive_for(maxima - shift_of(max), T))


@triton.jit
def share_of(part, whole):
    """part / whole; of nothing, nothing."""
    return tl.where(whole == 0, 0.0, part / tl.where(whole == 0, 1.0, whole))


@triton.jit
def moments_of(x, mask, count):
    """The mean of `count` elements, those in `mask`, and the sum of their squared distances."""
    mean = share_of(tl.sum(tl.where(mask, x, 0.0)), count)
    distance = tl.where(mask, x - mean, 0.0)
    return mean, tl.sum(distance * distance)


@triton.jit
def combine_moments(count_a, mean_a, squares_a, count_b, mean_b, squares_b):
    count = count_a + count_b
    share = share_of(count_b, count)
    distance = mean_b - mean_a
    # In this order a part that is empty adds nothing, however great the distance's square is.
    between = distance * (count_a * share) * distance
    return count, fma(distance, share, mean_a), squares_a + squares_b + between


@triton.jit
def combine_all_moments(counts, means, squares):
    """Of a block of states, in one step. Those that are not there are zeros."""
    count = tl.sum(counts)
    mean = tl.sum(share_of(counts, count) * means)
    distance = tl.where(counts == 0, 0.0, means - mean)
    return count, mean, tl.sum(squares) + tl.sum(distance * counts * distance)
