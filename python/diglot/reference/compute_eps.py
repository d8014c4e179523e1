"""How exactly kernels compute."""

from __future__ import annotations

import torch


def compute_eps(dtype: torch.dtype, float64: float = 4.0) -> float:
    """The epsilon of the type of the computation. For float64, where the oracle's own sums are no
    better, it is `float64` times the epsilon. That is about twice the error of kernels, PyTorch's
    too, in the tests.
    """
    if dtype == torch.float64:
        return float64 * torch.finfo(torch.float64).eps
    return torch.finfo(torch.float32).eps
