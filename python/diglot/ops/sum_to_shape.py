"""Gradients of operands that were broadcast: summed over what was repeated, on the same backend.

`unbroadcast` is what an op's derivative calls. The operator below it, `diglot::add_backward`, is
named after the launchers that run it, those of `add`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from diglot.backends.runs import run
from diglot.ops.numbers import Number, fixed
from diglot.ops.operator import Operator

# A sum over broadcast dimensions is split until this many blocks share it, 16 for each of an H200's
# 132 multiprocessors, with at least this many elements each. A block is one kept element wide where
# a reduced dimension is the fastest, and a warp's 16-byte accesses otherwise. Constants, so that
# the order of a sum depends on shapes, strides and alignment alone.
SUM_BLOCKS = 16 * 132
SUM_ELEMENTS_PER_BLOCK = 16384
SUM_BYTES_OF_KEPT = 32 * 16
# A kernel sums over this many dimensions at most (kMaxRank, MAX_RANK); over more, several do.
SUM_DIMENSIONS = 8


def unbroadcast(
    grad_output: torch.Tensor, shape: torch.Size, dtype: torch.dtype, alpha: Number, backend: str
) -> torch.Tensor:
    """alpha · grad_output, summed to `shape` and rounded to `dtype`."""
    if alpha == 1 and grad_output.shape == shape and grad_output.dtype == dtype:
        return grad_output
    return _add_backward(grad_output.requires_grad, grad_output, list(shape), dtype, alpha, backend)


def _splits(grad_output: torch.Tensor, shape: list[int]) -> int:
    """Into how many parts the sum over broadcast dimensions is split."""
    kept = math.prod(shape)
    reduced = grad_output.numel() // max(kept, 1)
    if reduced <= 1:
        return 1
    missing = grad_output.dim() - len(shape)
    own = [1] * missing + list(shape)
    steps = zip(grad_output.stride(), grad_output.shape, own, strict=True)
    _, is_kept = min((stride, of_out == size) for stride, size, of_out in steps if size != 1)
    width = min(kept, SUM_BYTES_OF_KEPT // grad_output.element_size()) if is_kept else 1
    blocks = -(-kept // width)
    return max(1, min(SUM_BLOCKS // blocks, reduced * width // SUM_ELEMENTS_PER_BLOCK))


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
    workspace = None
    splits = _splits(grad_output, shape)
    if splits > 1:
        workspace = out.new_empty((splits, out.numel()), dtype=compute)
    run(backend, "add", "add_backward", grad_output, fixed(alpha), workspace, out)
    return out


def _fake(
    grad_output: torch.Tensor, shape: list[int], dtype: torch.dtype, alpha: Number, backend: str
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=grad_output.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    grad_output, ctx.shape, ctx.out_dtype, ctx.alpha, ctx.backend = inputs
    ctx.grad_output = (grad_output.shape, grad_output.dtype)


def _gradient(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor]:
    shape, dtype = ctx.grad_output
    return (unbroadcast(grad.expand(shape), shape, dtype, ctx.alpha, ctx.backend),)


def _tangent(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    return unbroadcast(tangent, ctx.shape, ctx.out_dtype, ctx.alpha, ctx.backend)


def _batch(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    grad_output, shape, dtype, alpha, backend = args
    grad_output = grad_output.movedim(in_dims[0], 0)
    own = [1] * (grad_output.dim() - 1 - len(shape)) + list(shape)
    result = unbroadcast(grad_output, torch.Size([info.batch_size, *own]), dtype, alpha, backend)
    return result.reshape(info.batch_size, *shape), 0


_add_backward = Operator(
    "add_backward(Tensor grad_output, SymInt[] shape, ScalarType dtype, Scalar alpha, str backend)"
    " -> Tensor",
    forward=_forward,
    fake=_fake,
    setup_context=_save,
    backward=_gradient,
    jvp=_tangent,
    vmap=_batch,
    tensors=1,
)
