"""States of reductions, and how two of them are combined. Twin of csrc/include/diglot/reduce.cuh.

The states of threads are blocks of one element for each thread, and combined element by element.
`combine_all_...` combine those of a whole block in one step, in the order that Triton gives
`tl.max` and `tl.sum`: as the kernel's layout has it, the same in every program.
"""

import triton
import triton.language as tl

from .math import exp2_approximate, exp_nonpositive, fma, maximum
from .types import compute_type, opaque

LOG2_E = tl.constexpr(1.44269502)
BY_THREAD = tl.constexpr(-1)  # the axes of a tile but for its second, that of the threads
ALL = tl.constexpr(-2)  # all axes, of which none stays


@triton.jit
def sum_along(x, AXIS: tl.constexpr):
    """The sums along an axis, or by thread; the axes stay."""
    if AXIS == BY_THREAD:
        result = tl.sum(tl.sum(x, 2, keep_dims=True), 0, keep_dims=True)
    elif AXIS == ALL:
        result = tl.sum(x)
    else:
        result = tl.sum(x, AXIS, keep_dims=True)
    return result


@triton.jit
def max_along(x, AXIS: tl.constexpr):
    """The maxima along an axis, or by thread; the axes stay. What a NaN does is not specified."""
    if AXIS == BY_THREAD:
        result = tl.max(tl.max(x, 2, keep_dims=True), 0, keep_dims=True)
    elif AXIS == ALL:
        result = tl.max(x)
    else:
        result = tl.max(x, AXIS, keep_dims=True)
    return result


@triton.jit
def sums_none(zeros, T: tl.constexpr):
    """A state of one sum, for row_reduce.py, as are the next ones."""
    return (zeros,)


@triton.jit
def sums_combine(a, b, T: tl.constexpr):
    return (a[0] + b[0],)


@triton.jit
def sums_fold(states, AXIS: tl.constexpr, T: tl.constexpr):
    return (sum_along(states[0], AXIS),)


@triton.jit
def max_sum_along(x, AXIS: tl.constexpr, T: tl.constexpr):
    """The maxima of elements of type T, and the sums of e^(x - max). What is not there is -inf."""
    COMPUTE: tl.constexpr = compute_type(T)
    max = max_along(x.to(COMPUTE), AXIS)
    # Converted anew, so that narrow elements take up no more registers than they need.
    return max, sum_along(exp_nonpositive_for(opaque(x).to(COMPUTE) - shift_of(max), T), AXIS)


@triton.jit
def max_sum_none(zeros, T: tl.constexpr):
    return zeros - float("inf"), zeros


@triton.jit
def max_sum_combine(a, b, T: tl.constexpr):
    return combine_max_sum(a[0], a[1], b[0], b[1], T)


@triton.jit
def max_sum_fold(states, AXIS: tl.constexpr, T: tl.constexpr):
    max = max_along(states[0], AXIS)
    scaled = states[1] * exp_nonpositive_for(states[0] - shift_of(max), T)
    return max, sum_along(scaled, AXIS)


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
def thread_sums(x):
    """Of a tile of elements (accesses, threads, elements of an access), each thread's sum."""
    return tl.sum(tl.sum(x, 2), 0)


@triton.jit
def max_sum_of(x, T: tl.constexpr):
    """The maximum of each thread's elements, of type T, and the sum of e^(x - max).

    Elements that are not there are -inf.
    """
    max = tl.max(tl.max(x, 2), 0)
    return max, thread_sums(exp_nonpositive_for(x - shift_of(max)[None, :, None], T))


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
def moments_of(x, left):
    """How many elements each thread has, their mean, and the sum of their squared distances.

    The first `left` elements of the tile are there.
    """
    ACCESSES: tl.constexpr = x.shape[0]
    THREADS: tl.constexpr = x.shape[1]
    ACCESS: tl.constexpr = x.shape[2]
    EACH: tl.constexpr = ACCESSES * ACCESS
    if left >= EACH * THREADS:
        count = tl.full((THREADS,), EACH, x.dtype)
        mean = thread_sums(x) * (1 / EACH)  # of a power of two
        distance = x - mean[None, :, None]
    else:
        row, thread = tl.arange(0, ACCESSES)[:, None], tl.arange(0, THREADS)[None, :]
        there = left - (row * THREADS + thread) * ACCESS
        count = tl.sum(tl.minimum(tl.maximum(there, 0), ACCESS).to(x.dtype), 0)
        mask = tl.arange(0, ACCESS)[None, None, :] < there[:, :, None]
        mean = share_of(thread_sums(tl.where(mask, x, 0.0)), count)
        distance = tl.where(mask, x - mean[None, :, None], 0.0)
    return count, mean, thread_sums(distance * distance)


@triton.jit
def combine_moments(count_a, mean_a, squares_a, count_b, mean_b, squares_b):
    count = count_a + count_b
    share = share_of(count_b, count)
    distance = mean_b - mean_a
    # In this order a part that is empty adds nothing, however great the distance's square is.
    between = distance * (count_a * share) * distance
    # A long row's parts come to `a` one by one. What is between is mostly far below its mean: added
    # to so large a sum by itself, it would be rounded down more than up, always to the same side.
    return count, fma(distance, share, mean_a), squares_a + (squares_b + between)


@triton.jit
def combine_all_moments(counts, means, squares, count):
    """The mean and squares of a block of states, in one step; `count` is the sum of their counts.

    Those that are not there are zeros.
    """
    mean = tl.sum(share_of(counts, count) * means)
    distance = tl.where(counts == 0, 0.0, means - mean)
    return mean, tl.sum(squares + distance * counts * distance)
