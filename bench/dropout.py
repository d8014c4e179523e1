"""dropout: cases, providers, bars."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import diglot
from bench.harness import Bar, Benchmark, Call, Case, ErrorOf, Tensors, share_of_copy
from diglot.reference.dropout import SPEC, dropout_oracle
from diglot.tools.accuracy import measure_error
from diglot.tools.specs import Expected, nbytes

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BIG, MIDDLE, SMALL = (16384, 16384), (1024, 4096), (4096,)
SEED = SPEC.constants["seed"]


@dataclass(frozen=True)
class Seeded:
    """A call whose mask is that of the seed; what others drop, they alone know."""

    function: Callable[[], Any]

    def __call__(self) -> Any:
        return self.function()


def _inputs(case: Case) -> Tensors:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(case.shape, generator=generator, device="cuda").to(case.dtype)
    return (x.requires_grad_() if case.direction == "recorded" else x,)


def _error(case: Case, tensors: Tensors, call: Call) -> ErrorOf:
    """Against the mask of the seed; of others, against their own, which must be of p's share."""
    (x,), p = (t.detach() for t in tensors), case.options["p"]
    result = call().detach()
    expected = SPEC.forward(x, p)
    if not isinstance(call, Seeded):
        mask = (result != 0) | (x == 0)
        deviation = math.sqrt(p * (1 - p) / x.numel())
        if abs(1 - p - mask.double().mean().item()) > 6 * deviation:
            return ErrorOf(math.inf, math.inf, 1.0)
        expected = Expected(
            lambda x, mask: dropout_oracle(x, p, mask), (x, mask), {"input": x}, x.dtype
        )
    error = measure_error(result, expected)
    return ErrorOf(error.worst_ulp, error.worst_absolute, error.failing)


benchmark = Benchmark(
    op="dropout",
    cases=[
        *(
            Case(direction, dtype, shape, {"p": 0.1})
            for shape in (BIG, MIDDLE)
            for direction in ("forward", "backward")
            for dtype in DTYPES
        ),
        # With a seed that is drawn.
        *(Case("forward", dtype, SMALL, {"p": 0.1}, timer="graph") for dtype in DTYPES),
        Case("forward", torch.float32, SMALL, {"p": 0.1}, timer="host"),
        # The forward call of an input that requires grad.
        Case("recorded", torch.float32, SMALL, {"p": 0.1}, timer="host"),
    ],
    inputs=_inputs,
    expected=None,
    error=_error,
    bytes_moved=lambda case, tensors: 2 * nbytes(tensors[0]),
    bars=[
        Bar(
            "share of the copy ceiling",
            lambda row: (
                row["timer"] == "device"
                and row["shape"] == list(BIG)
                and row["dtype"] in ("float32", "bfloat16")
            ),
            share_of_copy,
            lambda row: 0.95,
        ),
    ],
)


def _ours(backend: str, case: Case, tensors: Tensors) -> Call:
    (x,), p = tensors, case.options["p"]
    seed = torch.full((), SEED, device="cuda")
    if case.direction == "backward":
        backward = torch.ops.diglot.dropout_backward
        return Seeded(lambda: backward(x, seed, 0, p, backend))
    if case.timer == "device":
        return Seeded(lambda: diglot.dropout(x, p, seed=seed, backend=backend))
    return lambda: diglot.dropout(x, p, backend=backend)


@benchmark.provider("cuda")
def cuda(case: Case, tensors: Tensors) -> Call:
    return _ours("cuda", case, tensors)


@benchmark.provider("triton")
def triton(case: Case, tensors: Tensors) -> Call:
    return _ours("triton", case, tensors)


def _torch_backward(case: Case, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, float]:
    """What PyTorch's backward pass takes: the gradient, a mask, the scale."""
    (grad,), p = tensors, case.options["p"]
    mask = torch.rand(case.shape, device="cuda") >= p
    return grad, mask, 1 / (1 - p)


@benchmark.provider("torch")
def eager(case: Case, tensors: Tensors) -> Call:
    if case.direction == "backward":
        arguments = _torch_backward(case, tensors)
        backward = torch.ops.aten.native_dropout_backward
        return lambda: backward(*arguments)
    (x,), p = tensors, case.options["p"]
    return lambda: F.dropout(x, p)


@benchmark.provider("torch.compile")
def compiled(case: Case, tensors: Tensors) -> Call | None:
    if case.shape != BIG:
        return None
    if case.direction == "backward":
        arguments = _torch_backward(case, tensors)
        of_mask = torch.compile(
            lambda g, m, s: torch.ops.aten.native_dropout_backward(g, m, s), dynamic=False
        )
        return lambda: of_mask(*arguments)
    (x,), p = tensors, case.options["p"]
    function = torch.compile(lambda x: F.dropout(x, p), dynamic=False)
    return lambda: function(x)
