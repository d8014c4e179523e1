"""A mixture of experts in plain PyTorch: the launchers of the backend "torch", and the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diglot.reference.specs import CallSpec


def moe_rows(
    input: Tensor,
    places: Tensor,
    weights: Tensor | None,
    spread: int,
    out: Tensor,
    scratch: Tensor | None,
) -> str:
    """out[i] = sum over j of weights * input[places[i, j]].

    With `spread`, that many places share a row of the input, and the weights are the places'.
    """
    rows = input[places // spread if spread else places]
    if weights is not None:
        each = weights.flatten()[places] if spread else weights.view(places.shape)
        rows = rows.to(weights.dtype) * each[:, :, None]
    elif places.shape[1] > 1:
        rows = rows.to(torch.promote_types(input.dtype, torch.float32))
    out.copy_(rows.sum(1))
    return "aten"


def moe_activation_forward(
    input: Tensor, activation: str, gated: bool, out: Tensor, scratch: Tensor | None
) -> str:
    """out = activation(input), or activation(first half of a row) * second half."""
    out.copy_(activate_rows(input, activation, gated))
    return "aten"


def moe_activation_backward(
    grad_output: Tensor,
    input: Tensor,
    activation: str,
    gated: bool,
    out: Tensor,
    scratch: Tensor | None,
) -> str:
    """The gradient of the input."""
    out.copy_(activation_gradient(grad_output, input, activation, gated))
    return "aten"


def _activate(x: Tensor, activation: str) -> Tensor:
    return F.silu(x) if activation == "silu" else F.gelu(x)


def _slope(x: Tensor, activation: str) -> Tensor:
    """The activation's derivative."""
    if activation == "silu":
        return torch.sigmoid(x) * (1 + x * torch.sigmoid(-x))
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return torch.special.ndtr(x) + x * density


def _parts(input: Tensor, gated: bool) -> tuple[Tensor, Tensor | None]:
    """The halves of each row, in the type of the computation; None where there is one part."""
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    if not gated:
        return wide, None
    first, second = wide.chunk(2, -1)
    return first, second


def activate_rows(input: Tensor, activation: str, gated: bool) -> Tensor:
    """activation(input), or activation(first half of a row) * second half."""
    x, up = _parts(input, gated)
    value = _activate(x, activation)
    return (value if up is None else value * up).to(input.dtype)


def activation_gradient(grad: Tensor, input: Tensor, activation: str, gated: bool) -> Tensor:
    """The gradient of the input, differentiable itself."""
    x, up = _parts(input, gated)
    wide = grad.to(x.dtype)
    if up is None:
        return (wide * _slope(x, activation)).to(input.dtype)
    halves = wide * up * _slope(x, activation), wide * _activate(x, activation)
    return torch.cat(halves, -1).to(input.dtype)


def activation_tangent(tangent: Tensor, input: Tensor, activation: str, gated: bool) -> Tensor:
    """The derivative along a direction."""
    x, up = _parts(input, gated)
    of_x, of_up = _parts(tangent, gated)
    result = _slope(x, activation) * of_x
    if up is not None and of_up is not None:
        result = result * up + _activate(x, activation) * of_up
    return result.to(input.dtype)


def moe_oracle(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    activation: str = "silu",
    gated: bool = True,
    steps_in: torch.dtype = torch.float64,
) -> Tensor:
    """Expert by expert, in float64. What an expert rounds, to the type `steps_in`, is rounded here
    too.
    """

    def rounded(value: Tensor) -> Tensor:
        return value.to(steps_in).double()

    result = torch.zeros(x.shape[0], w2.shape[1], dtype=torch.float64, device=x.device)
    for expert in range(w1.shape[0]):
        token, choice = torch.nonzero(topk_ids == expert, as_tuple=True)
        hidden = rounded(x[token].double() @ w1[expert].double().mT)
        inner = rounded(activate_rows(hidden, activation, gated))
        out = rounded(inner @ w2[expert].double().mT)
        result = result.index_add(0, token, topk_weights[token, choice].double()[:, None] * out)
    return result


def _call(function: Callable[..., Any], x: Tensor, w1: Tensor, w2: Tensor, **options: Any) -> Any:
    """Each token goes to both of two experts."""
    ids = torch.arange(2, device=x.device).expand(x.shape[0], 2)
    return function(x, w1, w2, torch.full(ids.shape, 0.5, device=x.device), ids, **options)


def _shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Of the tokens, and square matrices of two experts."""
    width = shape[-1]
    return [shape, (2, 2 * width, width), (2, width, width)]


SPEC = CallSpec(
    name="moe",
    inputs=("x", "w1", "w2"),
    floating_only=True,
    call=_call,
    shapes=_shapes,
)
