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
def map_activation(
    input, out, rows, columns, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = activation(input), or activation(first half of a row) * second half."""
    T: tl.constexpr = out.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    source, target, inside = _find_accesses(rows, columns, GATED, VECTOR, BLOCK)
    x = tl.load(accesses(input, source, VECTOR), inside, 0.0).to(COMPUTE)
    value = activate(x, ACTIVATION, T)
    if GATED:
        up = tl.load(accesses(input, source + columns, VECTOR), inside, 0.0)
        value = value * up.to(COMPUTE)
    tl.store(accesses(out, target, VECTOR), convert(value, T), inside)


@triton.jit
def map_activation_gradient(
    grad, input, out, rows, columns, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of both halves."""
    T: tl.constexpr = out.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    place, target, inside = _find_accesses(rows, columns, GATED, VECTOR, BLOCK)
    dy = tl.load(accesses(grad, target, VECTOR), inside, 0.0).to(COMPUTE)
    x = tl.load(accesses(input, place, VECTOR), inside, 0.0).to(COMPUTE)
    if GATED:
        of_up = dy * activate(x, ACTIVATION, T)
        up = tl.load(accesses(input, place + columns, VECTOR), inside, 0.0)
        dy = dy * up.to(COMPUTE)
        tl.store(accesses(out, place + columns, VECTOR), convert(of_up, T), inside)
    of_x = activation_gradient(dy, x, ACTIVATION, T)
    tl.store(accesses(out, place, VECTOR), convert(of_x, T), inside)


@triton.jit
def accesses(pointer, place, VECTOR: tl.constexpr):
    """Addresses that the compiler may join to accesses of VECTOR elements along a row."""
    address = pointer + place
    if VECTOR > 1:
        address = tl.max_contiguous(tl.multiple_of(address, (1, 16)), (1, VECTOR))
    return address


@triton.jit
def _find_accesses(
    rows, columns, GATED: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Places in the input and in rows of `columns`, of the program's elements; and a column which
    says which accesses exist.

    Args:
        VECTOR: elements of an access, which divide `columns`.
    """
    access = tl.program_id(0).to(tl.int64) * (BLOCK // VECTOR) + tl.arange(0, BLOCK // VECTOR)
    width = columns // VECTOR
    row = access // width
    column = (access - row * width)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    pitch = columns * 2 if GATED else columns
    return row[:, None] * pitch + column, row[:, None] * columns + column, (row < rows)[:, None]
