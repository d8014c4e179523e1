"""The gradient through an activation that follows a product: the operator
`diglot::linear_backward`, named after the launcher that runs it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diglot.backends.runs import run
from diglot.define.batching import elementwise
from diglot.define.operator import Operator
from diglot.reference.activations import second_derivative


def _forward(grad_output: Tensor, before: Tensor, activation: str, backend: str) -> Tensor:
    out = torch.empty_like(before)
    run(backend, "linear", "linear_backward", grad_output, before, activation, out)
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, Tensor]:
    grad_output, before, ctx.activation, ctx.backend = inputs
    return grad_output, before


def bend(grad_output: Tensor, before: Tensor, direction: Tensor, activation: str) -> Tensor:
    """grad_output times the change of the activation's derivative along a direction."""
    return (second_derivative(before, activation) * direction * grad_output).to(before.dtype)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    grad_output, before = ctx.saved_tensors
    return (
        activation_backward(grad, before, ctx.activation, ctx.backend),
        bend(grad_output, before, grad, ctx.activation),
    )


def _tangent(ctx: Any, of_grad: Tensor | None, of_before: Tensor | None) -> Tensor:
    grad_output, before = ctx.saved_tensors
    parts = []
    if of_grad is not None:
        parts.append(activation_backward(of_grad, before, ctx.activation, ctx.backend))
    if of_before is not None:
        parts.append(bend(grad_output, before, of_before, ctx.activation))
    return sum(parts[1:], parts[0])


_activation_backward = Operator(
    "linear_backward(Tensor grad_output, Tensor before, str activation, str backend) -> Tensor",
    forward=_forward,
    fake=lambda grad_output, before, activation, backend: torch.empty_like(before),
    save=_save,
    backward=_gradients,
    jvp=_tangent,
    vmap=elementwise,
)


def activation_backward(
    grad_output: Tensor, before: Tensor, activation: str, backend: str
) -> Tensor:
    """grad_output times the activation's derivative at `before`."""
    result: Tensor = _activation_backward(grad_output, before, activation, backend)
    return result
