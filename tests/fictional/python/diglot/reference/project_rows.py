"""Rows times a vector, and each product's share of them all, in plain PyTorch."""

from __future__ import annotations

import torch


def project_rows_forward(
    input: torch.Tensor,
    weight: torch.Tensor,
    dots: torch.Tensor,
    shares: torch.Tensor,
    total: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """dots = input @ weight, shares = dots / sum(dots), total = sum(dots)."""
    torch.mv(input, weight, out=dots)
    torch.sum(dots, 0, out=total)
    torch.div(dots, total, out=shares)
    return "torch"
