"""add: cases, providers, bars."""

from __future__ import annotations

import torch

import diglot
from bench.harness import (
    Bar,
    Benchmark,
    Call,
    Case,
    Tensors,
    speed_over_torch,
)
from diglot.reference.add import SPEC
from diglot.tools.specs import Expected, nbytes

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BIG, MIDDLE, SMALL = (16384, 16384), (1024, 4096), (4096,)


def _inputs(case: Case) -> Tensors:
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [case.shape, case.shape]
    if case.direction == "forward, bias":
        shapes[1] = case.shape[-1:]
    if case.direction == "backward, bias":
        shapes = [case.shape]
    return tuple(
        torch.randn(shape, generator=generator, device="cuda").to(case.dtype) for shape in shapes
    )


def _expected(case: Case, tensors: Tensors) -> Expected:
    if case.direction == "backward, bias":
        (grad,) = tensors
        bias = grad.new_empty(grad.shape[-1:])
        return SPEC.backward(grad, grad, bias)["other"]
    return SPEC.forward(*tensors)


def _bytes(case: Case, tensors: Tensors) -> int:
    result = tensors[0][0] if case.direction == "backward, bias" else tensors[0]
    return sum(map(nbytes, tensors)) + nbytes(result)


benchmark = Benchmark(
    op="add",
    cases=[
        *(Case("forward", dtype, shape) for shape in (BIG, MIDDLE) for dtype in DTYPES),
        *(
            Case(direction, dtype, BIG)
            for direction in ("forward, bias", "backward, bias")
            for dtype in DTYPES
        ),
        *(Case("forward", dtype, SMALL, timer="graph") for dtype in DTYPES),
        Case("forward", torch.float32, SMALL, timer="host"),
    ],
    inputs=_inputs,
    expected=_expected,
    bytes_moved=_bytes,
    bars=[
        Bar(
            "speed over torch",
            lambda row: (
                row["timer"] == "device"
                and row["shape"] == list(BIG)
                and row["direction"] == "forward"
            ),
            speed_over_torch,
            lambda row: 0.98,
        ),
    ],
)


def _ours(backend: str, case: Case, tensors: Tensors) -> Call:
    if case.direction == "backward, bias":
        (grad,) = tensors
        backward, shape = torch.ops.diglot.add_backward, list(grad.shape[-1:])
        return lambda: backward(grad, shape, grad.dtype, 1, backend)
    x, y = tensors
    return lambda: diglot.add(x, y, backend=backend)


@benchmark.provider("cuda")
def cuda(case: Case, tensors: Tensors) -> Call:
    return _ours("cuda", case, tensors)


@benchmark.provider("triton")
def triton(case: Case, tensors: Tensors) -> Call:
    return _ours("triton", case, tensors)


@benchmark.provider("torch")
def eager(case: Case, tensors: Tensors) -> Call:
    if case.direction == "backward, bias":
        (grad,) = tensors
        return lambda: grad.sum(0)
    x, y = tensors
    return lambda: torch.add(x, y)
