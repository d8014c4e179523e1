"""Activations of experts, and their derivatives. Twin of csrc/include/diglot/moe/activation.cuh."""

import triton
import triton.language as tl

from diglot.triton_ops.gelu import precision_of
from diglot.triton_ops.lib.gelu import gelu, gelu_gradient
from diglot.triton_ops.lib.math import divide, exp_nonpositive, fma
from diglot.triton_ops.lib.types import compute_type, convert


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), for both signs of x without cancellation."""
    tail = exp_nonpositive(-tl.abs(x))
    return divide(tl.where(x < 0, tail, 1.0), 1.0 + tail)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr, T: tl.constexpr):
    """The activation, in the type of the computation, precise enough for a result of type T."""
    return x * sigmoid(x) if ACTIVATION == "silu" else gelu(x, "none", precision_of(T))


@triton.jit
def activation_gradient(grad, x, ACTIVATION: tl.constexpr, T: tl.constexpr):
    """The gradient by x, from that of the activation. silu' = s (1 + x (1 - s)), where
    1 - s = s(-x).
    """
    if ACTIVATION == "silu":
        result = grad * (sigmoid(x) * fma(x, sigmoid(-x), 1.0 + 0.0 * x))
    else:
        result = gelu_gradient(grad, x, "none", precision_of(T))
    return result


@triton.jit
def map_activation(input, out, rows, columns, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """out = activation(input), or activation(first half of a row) * second half."""
    T: tl.constexpr = out.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    row, column, inside, pitch = _find_elements(rows, columns, GATED, BLOCK)
    source = input + row * pitch + column
    value = activate(tl.load(source, inside, 0.0).to(COMPUTE), ACTIVATION, T)
    if GATED:
        value = value * tl.load(source + columns, inside, 0.0).to(COMPUTE)
    tl.store(out + row * columns + column, convert(value, T), inside)


@triton.jit
def map_activation_gradient(
    grad, input, out, rows, columns, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of both halves."""
    T: tl.constexpr = out.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    row, column, inside, pitch = _find_elements(rows, columns, GATED, BLOCK)
    place = row * pitch + column
    dy = tl.load(grad + row * columns + column, inside, 0.0).to(COMPUTE)
    x = tl.load(input + place, inside, 0.0).to(COMPUTE)
    if GATED:
        of_up = dy * activate(x, ACTIVATION, T)
        dy = dy * tl.load(input + place + columns, inside, 0.0).to(COMPUTE)
        tl.store(out + place + columns, convert(of_up, T), inside)
    tl.store(out + place, convert(activation_gradient(dy, x, ACTIVATION, T), T), inside)


@triton.jit
def _find_elements(rows, columns, GATED: tl.constexpr, BLOCK: tl.constexpr):
    """Row and column of each of the program's elements, which of them exist, and the elements from
    a row of the input to the next.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = index // columns
    return row, index - row * columns, row < rows, columns * 2 if GATED else columns
