"""add: cases, providers, bars."""

from __future__ import annotations

from typing import Any

import torch

import diglot
from diglot.bench.elementwise import BIG, benchmark_of, is_big, on_device, small
from diglot.bench.harness import (
    RECORDED,
    Bar,
    Case,
    Function,
    Tensors,
    graph_bar,
    host_bar,
    normal,
    recorded,
    speed_over_torch,
)
from diglot.reference.add import SPEC
from diglot.reference.specs import Expected, nbytes


def _inputs(case: Case) -> Tensors:
    shapes = [case.shape, case.shape]
    if case.direction == "forward, bias":
        shapes[1] = case.shape[-1:]
    if case.direction == "backward, bias":
        shapes = [case.shape]
    return recorded(case, normal(shapes, case.dtype))


def _expected(case: Case, tensors: Tensors) -> Expected:
    if case.direction == "backward, bias":
        (grad,) = tensors
        bias = grad.new_empty(grad.shape[-1:])
        return SPEC.backward(grad, grad, bias)["other"]
    return SPEC.forward(*tensors)


def _bytes(case: Case, tensors: Tensors) -> int:
    result = tensors[0][0] if case.direction == "backward, bias" else tensors[0]
    return sum(map(nbytes, tensors)) + nbytes(result)


benchmark = benchmark_of(
    "add",
    [
        *on_device(("forward",)),
        *on_device(("forward, bias", "backward, bias"), ({},), BIG),
        *small(),
    ],
    [
        Bar(
            "speed over torch",
            lambda row: is_big(row) and row["direction"] == "forward",
            speed_over_torch,
            lambda row: 0.98,
        ),
        graph_bar(),
        host_bar(cuda=(3, 8), triton=(9, 14)),
    ],
    inputs=_inputs,
    expected=_expected,
    bytes_moved=_bytes,
    # A bias is of columns.
    takes=lambda case: len(case.shape) == 2 or "bias" not in case.direction,
)


def _ours_backward(grad: torch.Tensor, backend: str) -> torch.Tensor:
    return torch.ops.diglot.add_backward(grad, list(grad.shape[-1:]), grad.dtype, 1, backend)


def _formula(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def _sum_of_rows(grad: torch.Tensor) -> torch.Tensor:
    return grad.sum(0)


def _directions(forward: Function, backward: Function) -> dict[str, Function]:
    return {
        "forward": forward,
        RECORDED: forward,
        "forward, bias": forward,
        "backward, bias": backward,
    }


FORMULAS = _directions(_formula, _sum_of_rows)
benchmark.ours(_directions(diglot.add, _ours_backward))
benchmark.way("torch", _directions(torch.add, _sum_of_rows), code=[torch.add])
benchmark.compiled(FORMULAS)
benchmark.way("formula", FORMULAS)


@benchmark.peer("flag_gems", "flag_gems.ops")
def _flag_gems(ops: Any) -> dict[str, Function]:
    return {"forward": ops.add, "forward, bias": ops.add}
