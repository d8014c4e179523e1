"""RMS norm in plain PyTorch: the launchers of the backend "torch", and the oracle."""

from __future__ import annotations

import torch

from diglot.reference.norm import norm_spec, oracle, wide
from diglot.reference.specs import OpSpec, Option


def default_eps(dtype: torch.dtype) -> float:
    """The eps that None stands for: the epsilon of the type of the computation."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def rms_norm_forward(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    statistics: torch.Tensor | None,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = input · rstd · weight, and rstd."""
    x = wide(input)
    of_rows = torch.rsqrt(x.square().mean(-1, True) + eps)
    y = x * of_rows
    out.copy_(y if weight is None else y * weight)
    if statistics is not None:
        statistics.copy_(of_rows[None, ..., 0])
    return "aten"


def rms_norm_backward(
    grad_output: torch.Tensor,
    grad_sum: torch.Tensor | None,
    input: torch.Tensor,
    statistics: torch.Tensor,
    weight: torch.Tensor | None,
    grad_weight: torch.Tensor | None,
    grad_input: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """The gradients, and grad_sum added to the input's."""
    g, of_rows = wide(grad_output), statistics[0, ..., None]
    y = wide(input) * of_rows
    h = g if weight is None else g * weight
    of_input = of_rows * (h - y * (h * y).mean(-1, True))
    grad_input.copy_(of_input if grad_sum is None else of_input + grad_sum)
    if grad_weight is not None:
        grad_weight.copy_((g * y).reshape(-1, y.shape[-1]).sum(0))
    return "aten"


def rms_norm_oracle(
    input: torch.Tensor, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """The RMS norm of the last dimension, in float64."""
    eps = default_eps(input.dtype) if eps is None else eps
    return oracle(input, weight, None, eps, centered=False)


def rms_norm_spec(name: str, fused: bool) -> OpSpec:
    """The record of the op, or of the one that adds a residual."""
    eps = Option(None, another=1e-3)
    return norm_spec(name, default_eps, eps, centered=False, fused=fused)


SPEC = rms_norm_spec("rms_norm", fused=False)
