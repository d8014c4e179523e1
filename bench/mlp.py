"""mlp: cases, providers. A case's shape is (tokens, hidden size, features); the layer between has
four times the features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import diglot
from diglot.bench import products
from diglot.bench.harness import Case
from diglot.reference.mlp import SPEC

TOKENS = 8192


def _shapes(case: Case) -> list[tuple[int, ...]]:
    tokens, hidden, features = case.shape
    return [(tokens, features), (hidden, features), (hidden,), (features, hidden), (features,)]


def _layers(
    input: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(input, weight1, bias1)), weight2, bias2)


def _formula(
    input: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
) -> torch.Tensor:
    return F.gelu(input @ weight1.mT + bias1) @ weight2.mT + bias2


benchmark = products.around(
    "mlp",
    SPEC,
    diglot.mlp,
    _layers,
    _formula,
    _shapes,
    [
        *(
            Case("forward", torch.bfloat16, (TOKENS, 4 * features, features), {"batch": 2})
            for features in (768, 1024, 2048, 4096)
        ),
        Case("forward", torch.float32, (64, 64, 64), {"batch": 2}, timer="host"),
    ],
)
