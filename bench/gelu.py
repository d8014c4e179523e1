"""gelu: cases, providers, bars."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

import diglot
from bench.harness import (
    Bar,
    Benchmark,
    Call,
    Case,
    Tensors,
    microseconds_over_torch,
    share_of_copy,
    time_over_torch,
)
from diglot.reference.gelu import SPEC
from diglot.tools.specs import Expected, nbytes

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FORMS = ("tanh", "none")
BIG, MIDDLE, SMALL = (16384, 16384), (1024, 4096), (4096,)


def _inputs(case: Case) -> Tensors:
    generator = torch.Generator("cuda").manual_seed(0)
    count = 2 if case.direction.startswith("backward") else 1
    drawn = tuple(
        torch.randn(case.shape, generator=generator, device="cuda").to(case.dtype)
        for _ in range(count)
    )
    return tuple(t.requires_grad_() for t in drawn) if case.direction == "recorded" else drawn


def _expected(case: Case, tensors: Tensors) -> Expected:
    if case.direction == "backward":
        return SPEC.backward(*tensors, **case.options)["input"]
    return SPEC.forward(*tensors, **case.options)


benchmark = Benchmark(
    op="gelu",
    cases=[
        *(
            Case(direction, dtype, shape, {"approximate": form})
            for shape in (BIG, MIDDLE)
            for direction in ("forward", "backward")
            for dtype in DTYPES
            for form in FORMS
        ),
        *(
            Case("forward", dtype, SMALL, {"approximate": form}, timer="graph")
            for dtype in DTYPES
            for form in FORMS
        ),
        Case("forward", torch.float32, SMALL, {"approximate": "none"}, timer="host"),
        # The forward call of an input that requires grad.
        Case("recorded", torch.float32, SMALL, {"approximate": "none"}, timer="host"),
    ],
    inputs=_inputs,
    expected=_expected,
    bytes_moved=lambda case, tensors: sum(map(nbytes, tensors)) + nbytes(tensors[0]),
    bars=[
        Bar(
            "share of the copy ceiling",
            lambda row: row["timer"] == "device" and row["shape"] == list(BIG),
            share_of_copy,
            lambda row: (
                0.95
                if row["direction"] == "backward"
                else 0.97
                if row["options"]["approximate"] == "tanh"
                else 0.93
            ),
        ),
        Bar(
            "time over torch in a graph",
            lambda row: row["timer"] == "graph",
            time_over_torch,
            lambda row: 1.05,
            at_least=False,
        ),
        Bar(
            "host µs over torch",
            lambda row: row["timer"] == "host",
            microseconds_over_torch,
            lambda row: {
                ("cuda", "forward"): 3.0,
                ("cuda", "recorded"): 12.0,
                ("triton", "forward"): 10.0,
                ("triton", "recorded"): 20.0,
            }[row["provider"], row["direction"]],
            at_least=False,
        ),
    ],
)


def _ours(backend: str, case: Case, tensors: Tensors) -> Call:
    approximate = case.options["approximate"]
    if case.direction == "backward":
        backward = torch.ops.diglot.gelu_backward
        return lambda: backward(*tensors, approximate, backend)
    (x,) = tensors
    return lambda: diglot.gelu(x, approximate, backend=backend)


@benchmark.provider("cuda")
def cuda(case: Case, tensors: Tensors) -> Call:
    return _ours("cuda", case, tensors)


@benchmark.provider("triton")
def triton(case: Case, tensors: Tensors) -> Call:
    return _ours("triton", case, tensors)


@benchmark.provider("torch")
def eager(case: Case, tensors: Tensors) -> Call:
    approximate = case.options["approximate"]
    if case.direction == "backward":
        backward = torch.ops.aten.gelu_backward
        return lambda: backward(*tensors, approximate=approximate)
    (x,) = tensors
    return lambda: F.gelu(x, approximate=approximate)


@benchmark.provider("torch.compile")
def compiled(case: Case, tensors: Tensors) -> Call | None:
    if case.shape != BIG:
        return None
    approximate = case.options["approximate"]
    directions: dict[str, Callable[..., torch.Tensor]] = {
        "forward": lambda x: F.gelu(x, approximate=approximate),
        "backward": lambda g, x: torch.ops.aten.gelu_backward(g, x, approximate=approximate),
    }
    function = torch.compile(directions[case.direction], dynamic=False)
    return lambda: function(*tensors)


@benchmark.provider("formula")
def formula(case: Case, tensors: Tensors) -> Call | None:
    """The definition written out in eager PyTorch, a kernel per operation."""
    if case.direction != "forward" or case.timer == "graph":
        return None
    (x,) = tensors
    if case.options["approximate"] == "tanh":
        factor = math.sqrt(2 / math.pi)
        return lambda: 0.5 * x * (1 + torch.tanh(factor * (x + 0.044715 * x * x * x)))
    return lambda: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
