"""The mean of a normal density at points around x, and its derivative, one element at a time.

p(x) = 1/terms sum over i < terms of phi(x + (i - terms / 2) / 100)
phi(y) = exp(-((y - mean) / std)^2 / 2) / (std sqrt(2 pi))

In the far tail the textbook formula multiplies the rounding error of y - mean by the square of its
distance in standard deviations. At 13 of them fp32 loses six bits. Here the greatest term is
computed from an argument of two floats, and the others by their ratio to it:

u = 100 (x - mean) + k, for the k that makes it least: the greatest term's argument
phi(..) = peak B^(-(step (u + j))^2) = peak B^(-(step u)^2) B^(-step^2 j (2 u + j))

with B = 2 in fp32, B = e in fp64. The last exponent is never positive, so its relative error costs
half an ulp at most: the ratios need no compensation, and none overflows for any std and terms. The
ratios of two neighbours are added plainly, and these pairs with their rounding errors. An SM does
eight operations in the time of an exponential, and a term should take no more.

Greatest errors found on an H200, of normal results of 1 to 1000 terms: 4.3 ulp in fp32. In p',
where terms on both sides of the mean cancel, 3.5 epsilon of the sum of their magnitudes. Where p'
is zero, in the middle of a single term, the rounding error of the mean remains. In fp64 the tests
find less than 4 epsilon.

Infinite x are far out: p = p' = 0. NaN gives NaN. The twin of this file is
csrc/include/diglot/gaussian_pdf.cuh, operation for operation.
"""

import functools
import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import triton
import triton.language as tl

from .math import (
    ROUNDING_SHIFT,
    constant,
    exp2_approximate,
    fma,
    maximum,
    minimum,
    negate,
    ordered_two_sum,
    power_of_two,
    round_down,
    two_sum,
)

# Floats number the terms: k must be one exactly.
MOST_GAUSSIAN_TERMS = 1 << 22

_BIAS = tl.constexpr(ROUNDING_SHIFT.value + 127.0)
_GROUP = tl.constexpr(2)


class GaussianPdf(NamedTuple):
    """Numbers that follow from mean, std and terms, computed once for all elements.

    For fp32 they are rounded to it. Kernels take them in this order, as tensors of the type of the
    computation; `terms` is an integer. A tail is the rounding error of the number before it.

    Attributes:
        mean, mean_tail: the mean.
        step, step_tail: from one term to the next, in the unit in which B^(-v^2) is the density.
        curvature: -step^2.
        bound: of |u|, beyond which p and p' are zero, also times the greatest gradient.
        factor, factor_tail: of the sum of the ratios; in fp32, its logarithm to base 2.
        first: the least k, minus the number of terms before the middle one.
        terms: how many.
    """

    mean: float
    mean_tail: float
    step: float
    step_tail: float
    curvature: float
    bound: float
    factor: float
    factor_tail: float
    first: float
    terms: int


_PEAK = 0.3989422804014327  # 1 / sqrt(2 pi)


def _float(value: float) -> float:
    """Rounded to fp32."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _parameters_float(mean: float, std: float, terms: int, is_slope: bool) -> GaussianPdf:
    root = 0.008493218002880191  # sqrt(log2(e) / 2) / 100
    slope = 69.31471805599453  # 100 log(2)
    step = root / std
    factor = _PEAK / std / terms
    exponent = math.log2(factor * (slope * step) if is_slope else factor)
    return GaussianPdf(
        mean=_float(mean),
        mean_tail=_float(mean - _float(mean)) if math.isfinite(mean) else 0.0,
        step=_float(step),
        step_tail=_float(step - _float(step)),
        curvature=_float(-min(step * step, 1e30)),
        bound=_float(20.0 / step),
        factor=_float(exponent),
        factor_tail=_float(exponent - _float(exponent)),
        first=float(-(terms // 2)),
        terms=terms,
    )


def _parameters_double(mean: float, std: float, terms: int, is_slope: bool) -> GaussianPdf:
    root = 0.007071067811865475  # sqrt(1/2) / 100
    root_tail = -1.0172550095774809e-19
    slope = 100.0
    step = root / std
    # The remainder is a float64; fma is not Python's before 3.13.
    remainder = float(Fraction(root) - Fraction(step) * Fraction(std))
    factor = _PEAK / std / terms
    if is_slope:
        factor = factor * (slope * step)
    return GaussianPdf(
        mean=mean,
        mean_tail=0.0,
        step=step,
        step_tail=(remainder + root_tail) / std,
        curvature=-(step * step),
        bound=40.0 / step,
        factor=factor,
        factor_tail=0.0,
        first=float(-(terms // 2)),
        terms=terms,
    )


@functools.lru_cache(maxsize=1024)
def gaussian_pdf_parameters(mean: float, std: float, terms: int, is_double: bool) -> GaussianPdf:
    """The parameters of gaussian_pdf. 1 <= terms <= MOST_GAUSSIAN_TERMS, and std from 1e-30 to
    1e30, in fp64 from 1e-150 to 1e150.
    """
    parameters = _parameters_double if is_double else _parameters_float
    return parameters(mean, std, terms, False)


@functools.lru_cache(maxsize=1024)
def gaussian_pdf_slope_parameters(
    mean: float, std: float, terms: int, is_double: bool
) -> GaussianPdf:
    """The parameters of gaussian_pdf_gradient, within the same bounds."""
    parameters = _parameters_double if is_double else _parameters_float
    return parameters(mean, std, terms, True)


@triton.jit
def _power(x):
    """B^x."""
    return tl.exp(x) if x.dtype == tl.float64 else exp2_approximate(x)


@triton.jit
def _scale_float(value, head, tail, p):
    """value 2^(factor - (head + tail)^2); 0 from 2^-227 on.

    No intermediate result overflows, or underflows before it does.
    """
    square = head * head
    square_tail = fma(head + head, tail, fma(head, head, negate(square)))
    exponent, exponent_tail = two_sum(p[6], negate(square))
    bounded = maximum(exponent, -227.0)
    whole = round_down(bounded + 0.5)
    fraction = (bounded - whole) + (exponent_tail + (p[7] - square_tail))
    first = maximum(minimum(whole, 100.0), -100.0)
    second = whole - first
    scaled = (value * exp2_approximate(fraction)) * power_of_two(first + _BIAS)
    return scaled * power_of_two(second + _BIAS)


@triton.jit
def _scale_double(value, head, tail, p):
    """value factor exp(-(head + tail)^2).

    The exponential is the square of a root that does not underflow too early.
    """
    square = head * head
    square_tail = fma(head + head, tail, fma(head, head, negate(square)))
    root = tl.exp(square * -0.5)
    return (((value * p[6]) * (1.0 - square_tail)) * root) * root


@triton.jit
def _nearest_term(x, p):
    """The greatest term of each element: its u, as head and tail, and its k."""
    hundred = constant(100.0, x)
    apart, apart_tail = two_sum(x, negate(p[0]))
    # Where x or the mean is infinite, the tail is NaN. A mean's tail may be worth many terms, but a
    # head that is not zero is no less.
    apart_tail = tl.where(tl.abs(apart) < float("inf"), apart_tail - p[1], 0.0)
    distance, distance_tail = ordered_two_sum(apart, apart_tail)
    position = distance * hundred
    position_tail = fma(distance_tail, hundred, fma(distance, hundred, negate(position)))
    last = p[8] + (p[9] - 1).to(x.dtype)
    k = minimum(maximum(round_down(constant(0.5, x) - position), p[8]), last)
    # Either k is not greater than the position, or so near it that the tail does not matter.
    head, tail = ordered_two_sum(position, k)
    head = maximum(minimum(head, p[5]), negate(p[5]))
    # Where the position is infinite, its tail is NaN; a head that is not zero is greater.
    rest = tl.where(tl.abs(head) < p[5], tail + position_tail, 0.0)
    head, tail = ordered_two_sum(head, rest)
    return head, tail, k


@triton.jit
def _scale(value, u, u_tail, p):
    """value factor B^(-(step u)^2)."""
    head = u * p[2]
    tail = fma(u, p[3], fma(u_tail, p[2], fma(u, p[2], negate(head))))
    if value.dtype == tl.float64:
        result = _scale_double(value, head, tail, p)
    else:
        result = _scale_float(value, head, tail, p)
    return result


@triton.jit
def _ratio_parts(u, u_tail, p):
    """The arguments of _ratio: 2 u, and its tail times the curvature."""
    return u + u, (u_tail + u_tail) * p[4]


@triton.jit
def _ratio(j, twice, tail, p):
    """The ratio of the term j to the greatest one, which is 0."""
    return _power(fma(twice + j, p[4], tail) * j)


@triton.jit
def _slope(j, twice):
    """Twice u + j."""
    return (twice + j) + j


@triton.jit
def _add_without(sum, excess, group):
    """Kahan's summation: a sum's excess is subtracted from the next addend."""
    added = group - excess
    next = sum + added
    return next, (next - sum) - added


@triton.jit
def gaussian_pdf(x, p):
    """p(x). `p` is a GaussianPdf, as a tuple of tensors."""
    u, u_tail, k = _nearest_term(x, p)
    twice, tail = _ratio_parts(u, u_tail, p)
    j = p[8] - k
    # The sum starts at two, which no group exceeds, so two operations find its rounding error.
    # Terms beyond a multiple of the group come first, one by one.
    start: tl.constexpr = _GROUP
    sum = tl.full(x.shape, start, x.dtype)
    rest = tl.zeros(x.shape, x.dtype)
    for _ in range(p[9] % _GROUP):
        sum, tail_of_sum = ordered_two_sum(sum, _ratio(j, twice, tail, p))
        rest = rest + tail_of_sum
        j = j + 1.0
    for _ in range(p[9] // _GROUP):
        group = _ratio(j, twice, tail, p)
        for i in tl.static_range(1, _GROUP):
            group = group + _ratio(j + i, twice, tail, p)
        sum, tail_of_sum = ordered_two_sum(sum, group)
        rest = rest + tail_of_sum
        j = j + _GROUP
    return _scale((sum - start) + rest, u, u_tail, p)


@triton.jit
def gaussian_pdf_gradient(grad, x, p):
    """grad p'(x). The gradient is multiplied in before anything could underflow."""
    u, u_tail, k = _nearest_term(x, p)
    twice, tail = _ratio_parts(u, u_tail, p)
    j = p[8] - k
    sum = tl.zeros(x.shape, x.dtype)
    excess = tl.zeros(x.shape, x.dtype)
    for _ in range(p[9] % _GROUP):
        group = _ratio(j, twice, tail, p) * _slope(j, twice)
        sum, excess = _add_without(sum, excess, group)
        j = j + 1.0
    for _ in range(p[9] // _GROUP):
        group = _ratio(j, twice, tail, p) * _slope(j, twice)
        for i in tl.static_range(1, _GROUP):
            group = fma(_ratio(j + i, twice, tail, p), _slope(j + i, twice), group)
        sum, excess = _add_without(sum, excess, group)
        j = j + _GROUP
    return _scale(negate(grad) * ((sum - excess) * p[2]), u, u_tail, p)
