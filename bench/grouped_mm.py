"""grouped_mm: cases, providers, bars.

A case's shape is (groups, rows of each, N, K): 64 experts of a published model's width. "rows" is
the product of a forward pass, and "K" that of the weights' gradient.
"""

from __future__ import annotations

from typing import Any

import torch

import diglot
from diglot.bench import products
from diglot.bench.harness import (
    Bar,
    Benchmark,
    Case,
    Function,
    Tensors,
    normal,
    speed_over_torch,
)
from diglot.reference.grouped_mm import expected_grouped
from diglot.reference.specs import nbytes

EXPERTS, WIDTH, HIDDEN = 64, 1408, 2048  # DeepSeek-V2-Lite's
TOKENS = (32, 64, 128, 256, 512, 1024, 2048)


def _inputs(case: Case) -> Tensors:
    """A and B as for weights (experts, N, K), and where each group ends."""
    groups, rows, n, k = case.shape
    if case.options["groups"] == "rows":
        a, weights = normal([(groups * rows, k), (groups, n, k)], case.dtype)
        b = weights.mT
    else:
        grad, b = normal([(groups * rows, n), (groups * rows, k)], case.dtype)
        a = grad.mT
    ends = torch.arange(1, groups + 1, dtype=torch.int32, device=a.device) * rows
    return a, b, ends


def _bytes_moved(case: Case, tensors: Tensors) -> int:
    """Each input once, and the product once."""
    groups, rows, n, k = case.shape
    out = groups * n * (rows if case.options["groups"] == "rows" else k)
    return sum(map(nbytes, tensors)) + out * case.dtype.itemsize


def _flops(case: Case, tensors: Tensors) -> int:
    """A multiplication and an addition for each term of a sum."""
    groups, rows, n, k = case.shape
    return 2 * groups * rows * n * k


def _square(elements: int) -> tuple[int, int, int, int]:
    """Four groups of square matrices of at most this number of elements in all."""
    side, *_ = products.square(elements // 4)
    return 4, side, side, side


def _loop(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """A product for each group, whose ends the host reads."""
    ends = offs.tolist()
    ranges = list(zip([0, *ends], ends, strict=False))
    if b.dim() == 2:
        return torch.stack([a[:, begin:end] @ b[begin:end] for begin, end in ranges])
    return torch.cat([a[begin:end] @ b[group] for group, (begin, end) in enumerate(ranges)])


def _with_offsets(function: Function) -> Function:
    """The function of the two operands and the ends."""

    def call(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, **options: Any) -> torch.Tensor:
        result: torch.Tensor = function(a, b, offs=offs, **options)
        return result

    return call


benchmark = Benchmark(
    op="grouped_mm",
    cases=[
        *(
            Case("forward", torch.bfloat16, (EXPERTS, rows, WIDTH, HIDDEN), {"groups": groups})
            for groups in ("rows", "K")
            for rows in TOKENS
        ),
        Case("forward", torch.bfloat16, (4, 16, 64, 64), {"groups": "rows"}, timer="host"),
    ],
    inputs=_inputs,
    expected=lambda case, tensors: expected_grouped(*tensors),
    bytes_moved=_bytes_moved,
    flops=_flops,
    shape=_square,
    keywords=lambda case: {},
    takes=lambda case: len(case.shape) == 4,
    on_demand=products.ON_DEMAND,
    bars=[
        Bar(
            "speed over PyTorch's",
            lambda row: row["timer"] == "device",
            speed_over_torch,
            products.by_language(1.05, 1.00),
        ),
        products.HOST_BAR,
    ],
)

benchmark.ours({"forward": _with_offsets(diglot.grouped_mm)})
FUNCTIONS: dict[str, Function] = {"forward": _with_offsets(torch._grouped_mm)}
benchmark.way("torch", FUNCTIONS, code=[torch._grouped_mm])
benchmark.compiled(FUNCTIONS)
benchmark.way("formula", {"forward": _loop})
