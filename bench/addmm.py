"""addmm: cases, providers."""

from __future__ import annotations

import torch

import diglot
from diglot.bench import products
from diglot.bench.harness import Case
from diglot.reference.addmm import SPEC


def _shapes(case: Case) -> list[tuple[int, ...]]:
    m, n, k = case.shape
    return [(m, n), (m, k), (k, n)]


def _formula(input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    return input + mat1 @ mat2


benchmark = products.around(
    "addmm",
    SPEC,
    diglot.addmm,
    torch.addmm,
    _formula,
    _shapes,
    [
        Case("forward", torch.bfloat16, (4096, 4096, 4096)),
        Case("forward", torch.float32, (64, 64, 64), timer="host"),
    ],
)
