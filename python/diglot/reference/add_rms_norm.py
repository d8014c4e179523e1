"""Addition and then RMS norm in plain PyTorch: the launcher of the backend "torch", and
the record for the tools.
"""

from __future__ import annotations

import torch

from diglot.reference.rms_norm import rms_norm_forward, rms_norm_spec


def add_rms_norm_forward(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    statistics: torch.Tensor | None,
    sum: torch.Tensor,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """sum = input + residual, and its norm."""
    sum.copy_(input + residual)
    return rms_norm_forward(sum, weight, eps, statistics, out, scratch)


SPEC = rms_norm_spec("add_rms_norm", fused=True)
