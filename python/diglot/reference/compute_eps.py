"""How exactly kernels compute."""

from __future__ import annotations

import torch


def compute_eps(dtype: torch.dtype, float64: float = 4.0) -> float:
    """Of the type that is computed in; in float64, where the oracle's own sums are no better, so
    many of its epsilons: about twice what kernels, or PyTorch's own, need in the tests.
    """
    if dtype == torch.float64:
        return float64 * torch.finfo(torch.float64).eps
    return torch.finfo(torch.float32).eps
