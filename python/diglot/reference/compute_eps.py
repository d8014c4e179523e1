"""How exactly kernels compute."""

from __future__ import annotations

import torch


def compute_eps(dtype: torch.dtype) -> float:
    """Of the type that is computed in; in float64 the oracle's own sums are no better.

    Of what ops allow by it, kernels in the tests need at most 0.45 there.
    """
    if dtype == torch.float64:
        return 4 * torch.finfo(torch.float64).eps
    return torch.finfo(torch.float32).eps
