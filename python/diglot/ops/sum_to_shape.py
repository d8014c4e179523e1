"""Gradients of broadcast operands: summed over the repeated dimensions, on the same backend.

An op's derivative calls `unbroadcast`. Below it is the operator `diglot::add_backward`, named after
the launchers of `add` that run it.
"""

from __future__ import annotations

from typing import Any

import torch

from diglot.backends.runs import run
from diglot.define.operator import Operator
from diglot.ops.numbers import Number, fixed

# The most dimensions that one kernel sums over (kMaxRank, MAX_RANK). Several kernels sum over more.
SUM_DIMENSIONS = 8


def unbroadcast(
    grad_output: torch.Tensor, shape: torch.Size, dtype: torch.dtype, alpha: Number, backend: str
) -> torch.Tensor:
    """alpha · grad_output, summed to `shape` and rounded to `dtype`."""
    if alpha == 1 and grad_output.shape == shape and grad_output.dtype == dtype:
        return grad_output
    return _add_backward(grad_output, list(shape), dtype, alpha, backend)


def _forward(
    grad_output: torch.Tensor, shape: list[int], dtype: torch.dtype, alpha: Number, backend: str
) -> torch.Tensor:
    compute = torch.float64 if grad_output.dtype == torch.float64 else torch.float32
    missing = grad_output.dim() - len(shape)
    sizes = [1] * missing + list(shape)
    if missing < 0:
        raise ValueError(f"add_backward: shape has more dimensions than grad_output: {list(shape)}")
    reduced = [d for d, size in enumerate(grad_output.shape) if size != sizes[d]]
    if any(sizes[d] != 1 for d in reduced):
        raise ValueError(
            f"add_backward: {list(shape)} does not broadcast to {list(grad_output.shape)}, the "
            "shape of grad_output"
        )
    if len(reduced) > SUM_DIMENSIONS:
        between = list(grad_output.shape)
        for d in reduced[-SUM_DIMENSIONS:]:
            between[d] = 1
        grad_output = _forward(grad_output, between, compute, 1, backend)
        return _forward(grad_output, shape, dtype, alpha, backend)
    out = torch.empty(shape, dtype=dtype, device=grad_output.device)
    run(backend, "add", "add_backward", grad_output, fixed(alpha), out)
    return out


def _fake(
    grad_output: torch.Tensor, shape: list[int], dtype: torch.dtype, alpha: Number, backend: str
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=grad_output.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> tuple[()]:
    grad_output, ctx.shape, ctx.out_dtype, ctx.alpha, ctx.backend = inputs
    ctx.grad_output = (grad_output.shape, grad_output.dtype)
    return ()


def _gradient(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor]:
    shape, dtype = ctx.grad_output
    return (unbroadcast(grad.expand(shape), shape, dtype, ctx.alpha, ctx.backend),)


def _tangent(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    return unbroadcast(tangent, ctx.shape, ctx.out_dtype, ctx.alpha, ctx.backend)


def _batch(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    grad_output, shape, dtype, alpha, backend = args
    grad_output = grad_output.movedim(in_dims[0], 0)
    sizes = [1] * (grad_output.dim() - 1 - len(shape)) + list(shape)
    result = unbroadcast(grad_output, torch.Size([info.batch_size, *sizes]), dtype, alpha, backend)
    return result.reshape(info.batch_size, *shape), 0


_add_backward = Operator(
    "add_backward(Tensor grad_output, SymInt[] shape, ScalarType dtype, Scalar alpha, str backend)"
    " -> Tensor",
    forward=_forward,
    fake=_fake,
    save=_save,
    backward=_gradient,
    jvp=_tangent,
    vmap=_batch,
)
