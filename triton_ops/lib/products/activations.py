"""Activations that may follow a product, and their derivatives. Twin of
csrc/include/diglot/products/activations.cuh.

ACTIVATION is "relu", "silu", "gelu" or "gelu_tanh". `dtype` is the type that the result is rounded
to.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.gelu import gelu, gelu_gradient, precision_of
from diglot.triton_ops.lib.math import (
    constant,
    exp_nonpositive,
    fma,
    maximum,
    negate,
    reciprocal_approximate,
)


@triton.constexpr_function
def approximate_of(activation):
    """The form of GELU."""
    return "tanh" if activation == "gelu_tanh" else "none"


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x). The exponential of -|x| cannot overflow."""
    power = exp_nonpositive(negate(tl.abs(x)))
    numerator = tl.where(x < 0, power, constant(1.0, x))
    if x.dtype == tl.float64:
        result = numerator / (power + 1.0)
    else:
        result = numerator * reciprocal_approximate(power + 1.0)
    return result


@triton.jit
def activate(x, ACTIVATION: tl.constexpr, dtype: tl.constexpr):
    """The activation of x."""
    if ACTIVATION == "relu":
        result = maximum(x, constant(0.0, x))
    elif ACTIVATION == "silu":
        result = x * sigmoid(x)
    else:
        result = gelu(x, approximate_of(ACTIVATION), precision_of(dtype))
    return result


@triton.jit
def activation_gradient(grad, x, ACTIVATION: tl.constexpr, dtype: tl.constexpr):
    """grad times the activation's derivative at x."""
    if ACTIVATION == "relu":
        result = tl.where(x <= 0, constant(0.0, x), grad)
    elif ACTIVATION == "silu":
        result = grad * (sigmoid(x) * fma(x, sigmoid(negate(x)), constant(1.0, x)))
    else:
        result = gelu_gradient(grad, x, approximate_of(ACTIVATION), precision_of(dtype))
    return result
