"""baddbmm: its tensors, and its formula."""

from __future__ import annotations

import torch

from diglot.bench import products


def _shapes(m: int, n: int, k: int, batch: int) -> list[tuple[int, ...]]:
    return [(batch, m, n), (batch, m, k), (batch, k, n)]


def _formula(input: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor) -> torch.Tensor:
    return input + batch1 @ batch2


benchmark = products.around("baddbmm", torch.baddbmm, _formula, _shapes, side=1024, batch=16)
