"""clip_grad_norm_: cases, providers, bars.

Clipping is active in every timed call: gradients are doubled before each, and `max_norm` is half of
their norm then. A factor of exactly 1, with which nothing is written, never occurs.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import torch

import diglot
from diglot.bench.harness import (
    Bar,
    Benchmark,
    Call,
    Case,
    ErrorOf,
    Function,
    Tensors,
    normal,
    share_of_copy,
    speed_over_torch,
)
from diglot.reference.specs import Expected, nbytes
from diglot.tools.accuracy import measure_error

DTYPES = (torch.float32, torch.bfloat16)
SMALL, GPT2, LARGE = "fits L2", "GPT-2 small", "2 GB"
# The norm is a sum in float32, and the factor is as accurate as the norm.
RELATIVE_ERROR = 2e-6


def _gpt2_sizes() -> list[int]:
    """The 148 parameters of GPT-2 small (Radford et al., 2019), in order."""
    width = 768
    block = [
        *(width, width),
        *(width * 3 * width, 3 * width, width * width, width),
        *(width, width),
        *(width * 4 * width, 4 * width, 4 * width * width, width),
    ]
    return [50257 * width, 1024 * width, *(12 * block), width, width]


@functools.cache
def _sizes(name: str, itemsize: int) -> list[int]:
    if name == SMALL:
        return [10_000_000 // 148] * 148
    if name == GPT2:
        return _gpt2_sizes()
    return [2_000_000_000 // itemsize // 300] * 300


def _case(name: str, dtype: torch.dtype, timer: str) -> Case:
    sizes = _sizes(name, dtype.itemsize)
    return Case(name, dtype, (len(sizes), sum(sizes)), timer=timer)


def _inputs(case: Case) -> Tensors:
    return normal(_sizes(case.direction, case.dtype.itemsize), case.dtype)


def _max_norm(case: Case) -> float:
    return 0.5 * math.sqrt(case.shape[1])


def _double(grads: Tensors) -> None:
    torch._foreach_mul_(list(grads), 2.0)


def _error(case: Case, grads: Tensors, call: Call) -> ErrorOf:
    """The worst error of the gradients and the norm, by float64."""
    _double(grads)
    before = [grad.clone() for grad in grads]
    total = call()
    norm = math.sqrt(sum(grad.double().square().sum().item() for grad in before))
    factor = _max_norm(case) / (norm + 1e-6)
    assert factor < 1, "clipping is not active"
    errors, off = [], 0.0
    for grad, old in zip(grads, before, strict=True):
        exact = Expected(lambda x: x.double() * factor, (old,), {}, grad.dtype)
        errors.append(measure_error(grad, exact))
        eps = torch.finfo(grad.dtype).eps
        allowed = (RELATIVE_ERROR + eps / 2) * factor * old.double().abs()
        off += ((grad.double() - old.double() * factor).abs() > allowed).sum().item()
    if abs(total.item() / norm - 1) > RELATIVE_ERROR + torch.finfo(case.dtype).eps / 2:
        off += 1
    return replace(ErrorOf.of(errors), failing=off / case.shape[1])


benchmark = Benchmark(
    op="clip_grad_norm_",
    cases=[
        *(
            _case(name, dtype, timer)
            for timer in ("captured", "device")
            for name in (SMALL, GPT2, LARGE)
            for dtype in DTYPES
        ),
        _case(SMALL, torch.float32, "host"),
    ],
    inputs=_inputs,
    expected=None,
    # Read for the norm, read and written to be scaled.
    bytes_moved=lambda case, grads: 3 * sum(map(nbytes, grads)),
    bars=[
        Bar(
            "speed over torch",
            lambda row: row["timer"] in ("captured", "device"),
            speed_over_torch,
            lambda row: {SMALL: 2.0, GPT2: 1.2, LARGE: 1.1}[row["direction"]],
        ),
        Bar(
            "share of the byte floor",
            lambda row: row["timer"] in ("captured", "device") and row["direction"] == LARGE,
            share_of_copy,
            lambda row: 0.9,
        ),
    ],
    error=_error,
    prepare=_double,
    ranking=[_case(name, dtype, "device") for name in (SMALL, GPT2) for dtype in DTYPES],
)


def _parameters(grads: Tensors) -> list[torch.nn.Parameter]:
    """Parameters with these gradients, and no memory of their own."""
    parameters = []
    for grad in grads:
        parameter = torch.nn.Parameter(grad.new_zeros(()).expand(grad.shape))
        parameter.grad = grad
        parameters.append(parameter)
    return parameters


def _of_parameters(case: Case, grads: Tensors) -> tuple[list[torch.nn.Parameter], float]:
    return _parameters(grads), _max_norm(case)


def _of_gradients(case: Case, grads: Tensors) -> tuple[list[torch.Tensor], float]:
    return list(grads), _max_norm(case)


def _all(function: Function) -> dict[str, Function]:
    """The same function for every list of gradients, which a case has in place of a direction."""
    return dict.fromkeys((SMALL, GPT2, LARGE), function)


def _foreach(parameters: list[torch.nn.Parameter], max_norm: float) -> torch.Tensor:
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)


def _formula(grads: list[torch.Tensor], max_norm: float) -> torch.Tensor:
    """The definition written out in eager PyTorch, kernels for every gradient."""
    total = torch.stack([torch.sum(grad.float() ** 2) for grad in grads]).sum().sqrt()
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for grad in grads:
        grad.mul_(factor)
    return total


benchmark.ours(_all(diglot.clip_grad_norm_), operands=_of_parameters)
benchmark.way(
    "torch",
    _all(_foreach),
    operands=_of_parameters,
    code=[torch.nn.utils.clip_grad_norm_],
)
benchmark.way("formula", _all(_formula), operands=_of_gradients)
benchmark.compiled(_all(_formula), operands=_of_gradients)
