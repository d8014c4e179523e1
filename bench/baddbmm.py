"""baddbmm: cases, providers."""

from __future__ import annotations

import torch

import diglot
from diglot.bench import products
from diglot.bench.harness import Case
from diglot.reference.baddbmm import SPEC


def _shapes(case: Case) -> list[tuple[int, ...]]:
    m, n, k = case.shape
    batch = case.options.get("batch", 1)
    return [(batch, m, n), (batch, m, k), (batch, k, n)]


def _formula(input: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor) -> torch.Tensor:
    return input + batch1 @ batch2


benchmark = products.around(
    "baddbmm",
    SPEC,
    diglot.baddbmm,
    torch.baddbmm,
    _formula,
    _shapes,
    [
        Case("forward", torch.bfloat16, (1024, 1024, 1024), {"batch": 16}),
        Case("forward", torch.float32, (64, 64, 64), {"batch": 1}, timer="host"),
    ],
)
