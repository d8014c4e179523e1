"""mlp: cases, providers. A case's shape is (tokens, hidden size, features); the layer between has
four times the features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import diglot
from diglot.bench import products
from diglot.bench.harness import Case
from diglot.reference.mlp import SPEC

TOKENS = 8192


def _shapes(case: Case) -> list[tuple[int, ...]]:
    tokens, hidden, features = case.shape
    return [(tokens, features), (hidden, features), (hidden,), (features, hidden), (features,)]


def _layers(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def _formula(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return F.gelu(x @ w1.mT + b1) @ w2.mT + b2


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
