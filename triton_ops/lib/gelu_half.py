"""GELU and its derivative for results of 16 bits. gelu.py says what the functions compute."""

import triton
import triton.language as tl

from .math import exp2_approximate, fma, horner, minimum, negate, reciprocal_approximate, relu

# fmt: off
_H_HALF = tl.constexpr((
    0.12021786, 0.112154946, 0.150610238, -0.028978534, 0.22663185, -0.0806351379,
))
_G_HALF = tl.constexpr((
    0.398499101, 0.125839457, 0.0638402477, 0.119551748, -0.0426508412,
))
# fmt: on


@triton.jit
def erf_forward_half(x):
    """x Phi(x) = max(x, 0) - t exp(-t^2/2) h(t), h(t) = s H(s), s = 1/(1 + 0.3 t).

    Clamping x from above alone spares +inf a product with the vanishing tail.
    """
    clamped = minimum(x, 16.0)
    t = tl.abs(clamped)
    s = reciprocal_approximate(fma(t, 0.3, 1.0))
    tail = t * exp2_approximate((clamped * -0.721347511) * clamped)
    return fma(negate(tail), s * horner(s, _H_HALF), relu(x))


@triton.jit
def tanh_forward_half(x):
    """x / (1 + exp(-z)), both sides of the fraction scaled by 2^-4.

    exp(-z) itself overflows at x = -10.06, where the result is still normal.
    """
    slope = fma(x * x, 0.102943242, 2.3022082)
    denominator = exp2_approximate(fma(negate(x), slope, -4.0)) + 0.0625
    return (x * 0.0625) * reciprocal_approximate(denominator)


@triton.jit
def erf_derivative_half(x):
    """gelu'(-t) = exp(-t^2/2) (root - t) G(s), s = 1/(1 + 0.4 t).

    The exponential is scaled by 2^8 against its underflow.
    """
    t = tl.abs(x)
    s = reciprocal_approximate(fma(t, 0.4, 1.0))
    tail = exp2_approximate(fma(x * -0.721347511, x, 8.0))
    root = fma(t, -0.00390625, 0.751791537 * 0.00390625)
    lower = (tail * root) * horner(s, _G_HALF)
    return tl.where(x < 0.0, lower, 1.0 - lower)


@triton.jit
def tanh_derivative_half(x):
    """gelu'(-t) = E r (1 - r t z'(t)), E = exp(-z(t)), r = 1/(1 + E).

    E is scaled by 2^8 and the last factor by 2^-8. z' is held constant where E has vanished, so
    that no product overflows.
    """
    t = tl.abs(x)
    square = x * x
    slope = fma(square, 0.102943242, 2.3022082)
    tail = exp2_approximate(fma(negate(t), slope, 8.0))
    r = reciprocal_approximate(fma(tail, 0.00390625, 1.0))
    z_slope = fma(minimum(square, 256.0), 0.214064449 * 0.00390625, 1.59576912 * 0.00390625)
    lower = (tail * r) * fma(negate(r * t), z_slope, 0.00390625)
    return tl.where(x < 0.0, lower, 1.0 - lower)
