"""addmm: its tensors, and its formula."""

from __future__ import annotations

import torch

from diglot.bench import products


def _shapes(m: int, n: int, k: int, batch: int) -> list[tuple[int, ...]]:
    return [(m, n), (m, k), (k, n)]


def _formula(input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    return input + mat1 @ mat2


benchmark = products.around("addmm", torch.addmm, _formula, _shapes, side=4096, batch=None)
