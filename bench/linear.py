"""linear: layers of published models, providers, bars."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F

import diglot
from diglot.bench import models, products
from diglot.bench.harness import (
    Bar,
    Benchmark,
    Case,
    Function,
    Tensors,
    expected_of,
    normal,
)
from diglot.reference.linear import SPEC

SEED, CASES = 26, 60
MOST_BYTES = 4 << 30  # of input, weight and output


def layers(seed: int = SEED, count: int = CASES) -> list[tuple[int, int, int]]:
    """Shapes (tokens, N, K) of layers of published models, the same for the same seed.

    A layer is a projection of the hidden size, or one to or from the intermediate size.
    """
    chance = random.Random(f"linear {seed}")
    published = models.published()
    drawn: list[tuple[int, int, int]] = []
    while len(drawn) < count:
        model = chance.choice(published)
        hidden, inner = model.hidden_size, model.intermediate_size
        n, k = chance.choice([(hidden, hidden), (inner, hidden), (hidden, inner)])
        tokens = 1 << chance.randrange(15)
        shape = (tokens, n, k)
        if 2 * (tokens * (n + k) + n * k) <= MOST_BYTES and shape not in drawn:
            drawn.append(shape)
    return drawn


def _inputs(case: Case) -> Tensors:
    m, n, k = case.shape
    return normal([(m, k), (n, k), (n,)], case.dtype)


benchmark = Benchmark(
    op="linear",
    cases=[
        *(Case("forward", torch.bfloat16, shape) for shape in layers()),
        Case("forward", torch.float32, (64, 64, 64), timer="host"),
    ],
    inputs=_inputs,
    expected=expected_of(SPEC),
    bytes_moved=products.bytes_moved,
    flops=products.flops,
    shape=products.square,
    takes=products.is_product,
    bars=[
        Bar(
            "worst speed over cuBLAS",
            lambda row: row["timer"] == "device",
            products.speed_over_torch,
            lambda row: 0.90 if row["provider"] == "cuda" else 0.85,
        ),
        products.HOST_BAR,
    ],
)

benchmark.ours({"forward": diglot.linear})
FUNCTIONS: dict[str, Function] = {"forward": F.linear}
benchmark.way("torch", FUNCTIONS, code=[F.linear])


def _layer(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The definition, a kernel for each operation in eager PyTorch."""
    return input @ weight.mT + bias


benchmark.compiled({"forward": _layer})
benchmark.way("formula", {"forward": _layer})
