"""Layer norm in plain PyTorch: the launchers of the backend "torch", and the oracle."""

from __future__ import annotations

import torch

from diglot.reference.norm import norm_spec, oracle, wide
from diglot.reference.specs import OpSpec, Option

EPS = 1e-5


def _wide(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else wide(tensor)


def layer_norm_forward(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    statistics: torch.Tensor | None,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = (input - mean) · rstd · weight + bias, and mean and rstd, by PyTorch's own op."""
    arguments = (wide(input), input.shape[-1:], _wide(weight), _wide(bias), eps)
    made, mean, rstd = torch.native_layer_norm(*arguments)
    out.copy_(made)
    if statistics is not None:
        statistics.copy_(torch.stack([mean, rstd]).view(statistics.shape))
    return "aten"


def layer_norm_backward(
    grad_output: torch.Tensor,
    grad_sum: torch.Tensor | None,
    input: torch.Tensor,
    statistics: torch.Tensor,
    weight: torch.Tensor | None,
    grad_weight: torch.Tensor | None,
    grad_bias: torch.Tensor | None,
    grad_input: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """The gradients, and grad_sum added to the input's, by PyTorch's own op."""
    mean, rstd = statistics[..., None]
    of_input, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
        wide(grad_output),
        wide(input),
        input.shape[-1:],
        mean,
        rstd,
        _wide(weight),
        _wide(grad_bias),  # a bias gives only its shape and dtype
        [True, grad_weight is not None, grad_bias is not None],
    )
    grad_input.copy_(of_input if grad_sum is None else of_input + grad_sum)
    if grad_weight is not None:
        grad_weight.copy_(of_weight)
    if grad_bias is not None:
        grad_bias.copy_(of_bias)
    return "aten"


def layer_norm_oracle(
    input: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = EPS,
) -> torch.Tensor:
    """The layer norm of the last dimension, in float64."""
    return oracle(input, weight, bias, eps, centered=True)


def layer_norm_spec(name: str, fused: bool) -> OpSpec:
    """The record of the op, or of the one that adds a residual."""
    return norm_spec(name, lambda dtype: EPS, Option(EPS), centered=True, fused=fused)


SPEC = layer_norm_spec("layer_norm", fused=False)
