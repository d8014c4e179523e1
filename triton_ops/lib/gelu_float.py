"""GELU and its derivative in fp32. gelu.py says what the functions compute."""

import triton
import triton.language as tl

from .math import (
    ROUNDING_SHIFT,
    fma,
    horner,
    minimum,
    negate,
    power_of_two,
    reciprocal_approximate,
    relu,
)

# Exponents of the tail reach -135, where 2^n is subnormal while its product with x is normal: most
# functions below therefore take 2^(n + 8) and scale another factor by 2^-8.
_BIAS = tl.constexpr(ROUNDING_SHIFT.value + 127.0)
_BIAS_SCALED = tl.constexpr(ROUNDING_SHIFT.value + 135.0)
# In the tanh form's derivative z' adds eight more bits between exp(-z) and the result.
_BIAS_TWICE_SCALED = tl.constexpr(ROUNDING_SHIFT.value + 143.0)

_LOG2 = tl.constexpr(0.693147182)

# fmt: off
_W = tl.constexpr((
    0.240226477, 0.0555035882, 0.00961848162, 0.00133914745, 0.000153406814,
))
_H_FLOAT = tl.constexpr((
    0.122753359, -0.0330858268, -0.0925081149, 0.0523286983, -0.0114390757, -3.38006539e-5,
    0.000416611903, -3.52658617e-6, -1.82161511e-5, -3.29360489e-7, 6.46043475e-7,
))
_G_FLOAT = tl.constexpr((
    -0.0153814778, 0.557963371, 0.682849467, 0.61810571, 0.367702395, 0.0837095976, -0.061809022,
    -0.0455233976, 0.0115241716, 0.0183944497,
))
_Q_FLOAT = tl.constexpr((
    0.0506959446, -0.71423918, -0.210017204, 0.233760282, 0.0233319253, -0.0474585071,
    -0.000450011867, 0.00694869133, -0.000200621711, -0.000700996257,
))
_C_FLOAT = tl.constexpr((
    0.0397207774, -3.17297236e-5, 7.26184723e-10, -1.47487799e-14, 2.75258669e-19, -4.32689773e-24,
    3.85576953e-29,
))
# fmt: on


@triton.jit
def _normal_exponent(t, correction, bias: tl.constexpr):
    """2^(-t^2 half_log2_e + correction) as fraction and shifted, 2^(n + fraction).

    |fraction| <= 1/2, and the integer n is left in the low bits of shifted, biased for
    power_of_two(). The rounding error of t^2 would be scaled up by the exponent, to more than
    10 ulp of the result; the fused remainder keeps it. That of the constant is left to the
    polynomials H and G.
    """
    half_log2_e: tl.constexpr = 0.721347511
    square = t * t
    square_tail = fma(t, t, negate(square))
    shifted = fma(square, -half_log2_e, bias)
    head = fma(square, -half_log2_e, bias - shifted)
    return head + fma(square_tail, -half_log2_e, correction), shifted


@triton.jit
def _tanh_slope(t):
    """t^2, and linear + cubic t^2 as head and tail: z(t) log2(e) / t, without the constants' tails.

    linear is short enough for its difference from the head to be exact.
    """
    linear: tl.constexpr = 2.30218506
    cubic: tl.constexpr = 0.102943242
    square = t * t
    square_tail = fma(t, t, negate(square))
    head = fma(square, cubic, linear)
    tail = fma(square_tail, cubic, fma(square, cubic, linear - head))
    return square, head, tail


@triton.jit
def _tanh_exponent(t, square, slope, slope_tail, bias: tl.constexpr):
    """exp(-z(t)) of the tanh form as fraction and shifted, from _tanh_slope(t)."""
    linear_tail: tl.constexpr = 2.31395497e-5
    cubic_tail: tl.constexpr = -2.01619854e-9
    tail = fma(square, cubic_tail, linear_tail) + slope_tail
    shifted = fma(negate(t), slope, bias)
    head = fma(negate(t), slope, bias - shifted)
    return fma(negate(t), tail, head), shifted


@triton.jit
def _exp2_curve(fraction):
    """2^fraction - 1 - fraction log(2)."""
    return fraction * (fraction * horner(fraction, _W))


@triton.jit
def _exp2_fraction(fraction):
    """2^fraction."""
    return fma(fraction, _LOG2, _exp2_curve(fraction)) + 1.0


@triton.jit
def _exp2_product(fraction, g):
    """(1 + g) 2^fraction - 1.

    The largest term comes in last, so that for a small g only the result is rounded at its size.
    """
    return fma(fraction, _LOG2, fma(g, _exp2_fraction(fraction), _exp2_curve(fraction)))


@triton.jit
def erf_forward_float(x):
    """As erf_forward_half in gelu_half.py, with s = 1/(2 + 2.3 t), which keeps H within 8 % of 1.

    The tail is t s 2^n times 1 + correction. The rounding error of t s is added. The errors of s
    and of its denominator join the exponent. H is a polynomial in t/(1 + 0.3 t) - 1, on which
    errors of this other reciprocal have little effect.
    """
    clamped = minimum(x, 13.26)
    t = minimum(tl.abs(clamped), 13.26)
    denominator = fma(t, 2.3, 2.0)
    denominator_tail = fma(t, 2.3, 2.0 - denominator)
    s = reciprocal_approximate(denominator)
    s_error = fma(negate(s), denominator_tail, fma(negate(s), denominator, 1.0))
    fraction, shifted = _normal_exponent(t, s_error * 1.44269504, _BIAS)
    v = fma(t, reciprocal_approximate(fma(t, 0.3, 1.0)), -1.0)
    correction = _exp2_product(fraction, horner(v, _H_FLOAT))
    scaled = tl.abs(clamped) * power_of_two(shifted)
    leading = scaled * s
    leading_tail = fma(scaled, s, negate(leading))
    return relu(x) - (leading + fma(leading, correction, leading_tail))


@triton.jit
def tanh_forward_float(x):
    """max(x, 0) - t E / (1 + E), E = exp(-z(t)).

    E is scaled by 2^8 and the reciprocal by 2^-8.
    """
    clamped = minimum(x, 10.27)
    t = minimum(tl.abs(clamped), 10.27)
    square, slope, slope_tail = _tanh_slope(t)
    fraction, shifted = _tanh_exponent(t, square, slope, slope_tail, _BIAS_SCALED)
    power = power_of_two(shifted)
    tail = _exp2_fraction(fraction) * power
    denominator = tail + 256.0
    denominator_tail = (256.0 - denominator) + tail
    r = reciprocal_approximate(denominator)
    r_error = fma(negate(r), denominator_tail, fma(negate(r), denominator, 1.0))
    scaled = fma(r, _exp2_product(fraction, r_error), r)
    return fma(negate(tl.abs(clamped) * power), scaled, relu(x))


@triton.jit
def gradient_float(grad, x, head, tail, correction, power):
    """grad gelu'(x), rounded about once, with gelu'(-|x|) = (head + tail) (1 + correction) power.

    The factors are not multiplied out, so that the gradient can be multiplied in before anything
    rounds or underflows. The tail is NaN where x is infinite, as PyTorch's derivative is.
    gelu'(x) = 1 - gelu'(-x).
    """
    product = grad * head
    rest = fma(grad, tail, fma(grad, head, negate(product)))
    rest = fma(product, correction, fma(rest, correction, rest))
    below = (product + rest) * power
    return tl.where(x < 0.0, below, grad - below)


@triton.jit
def erf_derivative_float(x):
    """gelu'(-t) = exp(-t^2/2) r G(s), s = 1/(1 + 0.25 t), r = 0.5 (root - t) 2^-8.

    G is near 1: only G - 1 is computed. The error of s, compensated in the exponent, is weighed
    by the slope of log2(G) over log(s). r carries its rounding error.
    """
    t = minimum(tl.abs(x), 13.68)
    denominator = fma(t, 0.25, 1.0)
    denominator_tail = fma(t, 0.25, 1.0 - denominator)
    s = reciprocal_approximate(denominator)
    s_error = fma(negate(s), denominator_tail, fma(negate(s), denominator, 1.0))
    g_error = s_error * fma(s, 1.86514688, -0.494155347)
    fraction, shifted = _normal_exponent(t, g_error, _BIAS_SCALED)
    correction = _exp2_product(fraction, horner(s - 0.625, _G_FLOAT))
    scale: tl.constexpr = 0.001953125
    root_head: tl.constexpr = 0.751791537 * 0.001953125
    root_tail: tl.constexpr = -1.21144499e-8 * 0.001953125
    root = fma(t, -scale, root_head)
    back = root - root_head
    rounding = (root_head - (root - back)) - fma(t, scale, back)
    return root, fma(x, 0.0, rounding + root_tail), correction, power_of_two(shifted)


@triton.jit
def tanh_derivative_float(x):
    """gelu'(-t) = E (1 + E - t z'(t)) / (1 + E)^2, E = exp(-z(t)).

    Near the root, for t < 1.2, this is (root - t) Q(t). Beyond, the numerator is a sum of two
    floats, and the rest is E C(E).

    The numerator is taken times log2(e)/3, where z'(t) becomes slope - 2/3 linear, which is exact.
    Its head is rounded to a multiple of 2^-17 for its tail to be exact too. What the constants'
    tails would add is left to one_tail, factor and C.
    """
    t = minimum(tl.abs(x), 10.491)
    root = 0.752461433 - t
    root_tail: tl.constexpr = -1.13396279e-8
    near_correction = horner(t - 0.5, _Q_FLOAT)

    square, slope, slope_tail = _tanh_slope(t)
    fraction, exponent = _tanh_exponent(t, square, slope, slope_tail, _BIAS_TWICE_SCALED)
    power = power_of_two(exponent)
    tail = _exp2_fraction(fraction) * power
    correction = _exp2_product(fraction, horner(tail, _C_FLOAT))
    two_thirds: tl.constexpr = 1.53478241
    one: tl.constexpr = 192.480895996  # 192 more, for the shift
    one_tail: tl.constexpr = 2.20671473e-6 * 3.0517578125e-5
    factor: tl.constexpr = 0.480898649 * 1.52587890625e-5
    scale: tl.constexpr = 3.0517578125e-5
    z_slope = slope - two_thirds
    shifted = fma(negate(t), z_slope, one)
    numerator = fma(shifted, scale, -192.0 * 3.0517578125e-5)
    rest = fma(negate(t), z_slope, one - shifted)
    rest = fma(tail, factor, fma(negate(t), slope_tail, rest))
    numerator_tail = fma(rest, scale, one_tail)

    is_near = t < 1.2
    factor_tail = fma(x, 0.0, tl.where(is_near, root_tail, numerator_tail))
    return (
        tl.where(is_near, root, numerator),
        factor_tail,
        tl.where(is_near, near_correction, correction),
        tl.where(is_near, 0.5, power),
    )
