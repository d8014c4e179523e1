"""Activations that may follow a product, in plain PyTorch, and their derivatives."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from diglot.reference.gelu import gelu_second_derivative

ACTIVATIONS = ("none", "relu", "silu", "gelu", "gelu_tanh")


def activate(input: Tensor, activation: str) -> Tensor:
    """The activation of every element."""
    if activation == "relu":
        return F.relu(input)
    if activation == "silu":
        return F.silu(input)
    if activation == "none":
        return input
    return F.gelu(input, approximate=approximate_of(activation))


def activation_gradient(grad: Tensor, input: Tensor, activation: str) -> Tensor:
    """grad times the activation's derivative at `input`."""
    aten = torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(grad, input, 0)
    if activation == "silu":
        return aten.silu_backward(grad, input)
    if activation == "none":
        return grad
    return aten.gelu_backward(grad, input, approximate=approximate_of(activation))


def second_derivative(input: Tensor, activation: str) -> Tensor:
    """The activation's second derivative, in at least float32. It is differentiable."""
    x = input if input.dtype == torch.float64 else input.float()
    if activation in ("none", "relu"):
        return torch.zeros_like(x)
    if activation == "silu":
        s = torch.sigmoid(x)
        return s * (1 - s) * (2 + x * (1 - 2 * s))
    return gelu_second_derivative(x, approximate_of(activation))


def approximate_of(activation: str) -> str:
    """The form of GELU."""
    return "tanh" if activation == "gelu_tanh" else "none"
