"""States of reductions, and how two of them are combined. Twin of
csrc/include/diglot/reduce/states.cuh.

The states of a program's threads are a block with one element for each thread; two blocks are
combined element by element. `combine_all_...` combines all states of a block in one step, in the
order of Triton's `tl.max` and `tl.sum`: the kernel's layout sets it, alike in every program.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.math import exp2_approximate, exp_nonpositive, fma, maximum
from diglot.triton_ops.lib.types import compute_type, opaque, widen

LOG2_E = tl.constexpr(1.44269502)
BY_THREAD = tl.constexpr(-1)  # all axes of a tile except the second, which counts threads
ALL = tl.constexpr(-2)  # all axes; none is kept


@triton.jit
def sum_along(x, AXIS: tl.constexpr):
    """The sums along an axis, or of each thread; the axes are kept, with size 1."""
    if AXIS == BY_THREAD:
        result = tl.sum(tl.sum(x, 2, keep_dims=True), 0, keep_dims=True)
    elif AXIS == ALL:
        result = tl.sum(x)
    else:
        result = tl.sum(x, AXIS, keep_dims=True)
    return result


@triton.jit
def max_along(x, AXIS: tl.constexpr):
    """The maxima along an axis, or of each thread, as in `sum_along`. NaN: not specified."""
    if AXIS == BY_THREAD:
        result = tl.max(tl.max(x, 2, keep_dims=True), 0, keep_dims=True)
    elif AXIS == ALL:
        result = tl.max(x)
    else:
        result = tl.max(x, AXIS, keep_dims=True)
    return result


@triton.jit
def sums_none(zeros, T: tl.constexpr):
    """The state of an empty row: one sum. These functions serve operations on rows."""
    return (zeros,)


@triton.jit
def sums_combine(a, b, T: tl.constexpr):
    return (a[0] + b[0],)


@triton.jit
def sums_fold(states, count, AXIS: tl.constexpr, T: tl.constexpr):
    return (sum_along(states[0], AXIS),)


@triton.jit
def total_of(pieces, T: tl.constexpr):
    """The sum of the first tile of each piece (rows/operation.py), element by element."""
    total = widen(pieces[0][0], compute_type(T))
    for p in tl.static_range(1, len(pieces)):
        total += widen(pieces[p][0], compute_type(T))
    return total


@triton.jit
def max_sum_along(pieces, AXIS: tl.constexpr, T: tl.constexpr):
    """The maxima of the pieces' first tiles, of elements of type T, and the sums of e^(x - max).
    Masked elements are -inf.
    """
    COMPUTE: tl.constexpr = compute_type(T)
    largest = pieces[0][0].to(COMPUTE)
    for p in tl.static_range(1, len(pieces)):
        largest = tl.maximum(largest, pieces[p][0].to(COMPUTE))
    max = max_along(largest, AXIS)
    shift = shift_of(max)
    # A second conversion, so that narrow elements stay narrow in registers until here.
    total = exp_nonpositive_for(opaque(pieces[0][0]).to(COMPUTE) - shift, T)
    for p in tl.static_range(1, len(pieces)):
        total += exp_nonpositive_for(opaque(pieces[p][0]).to(COMPUTE) - shift, T)
    return max, sum_along(total, AXIS)


@triton.jit
def max_sum_none(zeros, T: tl.constexpr):
    return zeros - float("inf"), zeros


@triton.jit
def max_sum_combine(a, b, T: tl.constexpr):
    return combine_max_sum(a[0], a[1], b[0], b[1], T)


@triton.jit
def max_sum_fold(states, count, AXIS: tl.constexpr, T: tl.constexpr):
    max = max_along(states[0], AXIS)
    scaled = states[1] * exp_nonpositive_for(states[0] - shift_of(max), T)
    return max, sum_along(scaled, AXIS)


@triton.jit
def exp_nonpositive_for(x, T: tl.constexpr):
    """e^x for x <= 0, as accurate as a result of type T can show."""
    if T.primitive_bitwidth == 16:
        result = exp2_approximate(x * LOG2_E)
    else:
        result = exp_nonpositive(x)
    return result


@triton.jit
def shift_of(max):
    """What to subtract before the exponential: the maximum, or 0 while it is -inf."""
    return tl.where(max == -float("inf"), 0.0, max)


@triton.jit
def thread_sums(x):
    """Each thread's sum, of a tile (accesses, threads, elements of an access)."""
    return tl.sum(tl.sum(x, 2), 0)


@triton.jit
def max_sum_of(x, T: tl.constexpr):
    """The maximum of each thread's elements, of type T, and the sum of e^(x - max).

    Masked elements are -inf.
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
    """Combines a block of states in one step. Masked ones are -inf and 0."""
    max = tl.max(maxima)
    return max, tl.sum(sums * exp_nonpositive_for(maxima - shift_of(max), T))


@triton.jit
def share_of(part, whole):
    """part / whole; 0 if the whole is 0."""
    return tl.where(whole == 0, 0.0, part / tl.where(whole == 0, 1.0, whole))


@triton.jit
def moments_of(x, length):
    """Each thread's count of elements, their mean, and the sum of their squared distances from it.

    Only the first `length` elements of the tile exist.
    """
    ACCESSES: tl.constexpr = x.shape[0]
    THREADS: tl.constexpr = x.shape[1]
    ACCESS: tl.constexpr = x.shape[2]
    EACH: tl.constexpr = ACCESSES * ACCESS
    if length >= EACH * THREADS:
        count = tl.full((THREADS,), EACH, x.dtype)
        mean = thread_sums(x) * (1 / EACH)  # a power of two
        distance = x - mean[None, :, None]
    else:
        row, thread = tl.arange(0, ACCESSES)[:, None], tl.arange(0, THREADS)[None, :]
        rest = length - (row * THREADS + thread) * ACCESS
        count = tl.sum(tl.minimum(tl.maximum(rest, 0), ACCESS).to(x.dtype), 0)
        mask = tl.arange(0, ACCESS)[None, None, :] < rest[:, :, None]
        mean = share_of(thread_sums(tl.where(mask, x, 0.0)), count)
        distance = tl.where(mask, x - mean[None, :, None], 0.0)
    return count, mean, thread_sums(distance * distance)


@triton.jit
def combine_moments(count_a, mean_a, squares_a, count_b, mean_b, squares_b):
    count = count_a + count_b
    share = share_of(count_b, count)
    distance = mean_b - mean_a
    # Multiplied in this order, an empty part adds nothing, however great the distance's square is.
    between = distance * (count_a * share) * distance
    # `a` collects a long row's parts one by one. `between` is small beside its sum: added alone, it
    # would mostly be rounded to the same side.
    return count, fma(distance, share, mean_a), squares_a + (squares_b + between)


@triton.jit
def combine_all_moments(counts, means, squares, count):
    """Combines a block of states in one step, to a mean and squares. `count` is the sum of counts.

    Masked states are zeros.
    """
    mean = tl.sum(share_of(counts, count) * means)
    distance = tl.where(counts == 0, 0.0, means - mean)
    return mean, tl.sum(squares + distance * counts * distance)
