"""How exactly kernels compute."""

from __future__ import annotations

import torch


def compute_eps(dtype: torch.dtype) -> float:
    """Of the type that is computed in; in float64 the oracle's own sums are no better."""
    if dtype == torch.float64:
        return 16 * torch.finfo(torch.float64).eps
    return torch.finfo(torch.float32).eps
