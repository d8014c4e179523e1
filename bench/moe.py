"""moe: cases, providers.

A case's shape is (experts, choices of a token, tokens, I, H), of a published model's experts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import diglot
from diglot.bench import products
from diglot.bench.harness import Benchmark, Case, Function, Tensors, normal
from diglot.reference.moe import moe_oracle
from diglot.reference.specs import Expected, nbytes

EXPERTS, TOPK, INNER, HIDDEN = 64, 6, 1408, 2048  # DeepSeek-V2-Lite's
TOKENS = (1, 16, 128, 1024, 8192)


def _inputs(case: Case) -> Tensors:
    """Tokens, weights of the experts, and an even routing: neighbours have neighbouring experts."""
    experts, topk, tokens, inner, hidden = case.shape
    shapes = [(tokens, hidden), (experts, 2 * inner, hidden), (experts, hidden, inner)]
    x, w1, w2 = normal(shapes, case.dtype)
    (scores,) = normal([(tokens, topk)], torch.float32)
    pairs = torch.arange(tokens * topk, device=x.device)
    ids = (pairs % experts).view(tokens, topk)
    return x, w1 / hidden**0.5, w2 / inner**0.5, scores.softmax(-1), ids


def _expected(case: Case, tensors: Tensors) -> Expected:
    """Rounded as often. A value that is rounded otherwise changes a result by an ulp of 1."""
    x, w1, w2, weights, ids = tensors
    right = moe_oracle(x, w1, w2, weights, ids, steps_in=case.dtype)
    allowance = torch.full_like(right, 4 * torch.finfo(case.dtype).eps)
    return Expected(lambda right: right, (right,), {}, case.dtype, allowance)


def _bytes_moved(case: Case, tensors: Tensors) -> int:
    """Each input once, and the result once. Weights count of experts that a token has chosen."""
    x, w1, w2, weights, ids = tensors
    chosen = ids.unique().numel() / len(w1)
    return 2 * nbytes(x) + nbytes(weights) + nbytes(ids) + round(chosen * (nbytes(w1) + nbytes(w2)))


def _flops(case: Case, tensors: Tensors) -> int:
    """Of the products: a multiplication and an addition for each term of a sum."""
    _, topk, tokens, inner, hidden = case.shape
    return 2 * topk * tokens * inner * hidden * 3


def _square(elements: int) -> tuple[int, int, int, int, int]:
    """Four experts of square matrices of at most this number of elements in all."""
    side, *_ = products.square(elements // 4)
    return 4, 2, side, side, side


def _loop(
    x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Expert by expert, as the first models did."""
    result = torch.zeros(x.shape, dtype=weights.dtype, device=x.device)
    for expert in range(len(w1)):
        token, choice = torch.nonzero(ids == expert, as_tuple=True)
        gate, up = (x[token] @ w1[expert].mT).chunk(2, -1)
        out = (F.silu(gate) * up) @ w2[expert].mT
        result.index_add_(0, token, weights[token, choice][:, None] * out)
    return result.to(x.dtype)


benchmark = Benchmark(
    op="moe",
    cases=[
        Case("forward", torch.bfloat16, (EXPERTS, TOPK, tokens, INNER, HIDDEN)) for tokens in TOKENS
    ],
    inputs=_inputs,
    expected=_expected,
    bytes_moved=_bytes_moved,
    flops=_flops,
    shape=_square,
    takes=lambda case: len(case.shape) == 5,
    on_demand=products.ON_DEMAND,
    bars=[],
)

benchmark.ours({"forward": diglot.moe})


def _of_torch(*tensors: torch.Tensor) -> torch.Tensor:
    """Our steps with PyTorch's grouped product."""
    return diglot.moe(*tensors, backend="torch")


FUNCTIONS: dict[str, Function] = {"forward": _of_torch}
benchmark.way("torch", FUNCTIONS, code=[_of_torch])
benchmark.way("formula", {"forward": _loop})
