"""Addition and then layer norm in plain PyTorch: the launcher of the backend "torch", and
the record for the tools.
"""

from __future__ import annotations

import torch

from diglot.reference.layer_norm import layer_norm_forward, layer_norm_spec


def add_layer_norm_forward(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    statistics: torch.Tensor | None,
    sum: torch.Tensor,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """sum = input + residual, and its norm."""
    sum.copy_(input + residual)
    return layer_norm_forward(sum, weight, bias, eps, statistics, out, scratch)


SPEC = layer_norm_spec("add_layer_norm", fused=True)
