"""Linear layers: the contract of the op."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diglot.backends.batch_invariance import hold_rows
from diglot.backends.runs import run
from diglot.define.batching import one_by_one
from diglot.define.operator import Operator
from diglot.ops.activation_backward import activation_backward
from diglot.ops.add import add
from diglot.ops.broadcasting import broadcasts
from diglot.ops.linear_parameters import needed_gradients
from diglot.ops.products import (
    autocast,
    check_operands,
    choose_product,
    multiply,
    multiply_like,
    precision_of,
)
from diglot.ops.sum_to_shape import unbroadcast
from diglot.reference.activations import ACTIVATIONS


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    batch_invariant: bool = False,
    precision: str | None = None,
    backend: str | None = None,
) -> Tensor:
    r"""Applies a linear layer, as `torch.nn.functional.linear`, and what may follow it.

    It computes activation(input · weightᵀ + bias + residual). Only the result is rounded, and one
    launch computes it. Under vmap with batches of weight or bias, the bias is added after a
    rounding. `diglot.matmul` explains the computation.

    Args:
        input: tensor (..., K) of any strides; float32, float16, bfloat16 or float64.
        weight: tensor (N, K), or a vector (K); of the dtype of `input`.
        bias: tensor (N), or (1); for a vector `weight`, a tensor (). Of the dtype of `input`.
        activation: None, "relu", "silu", "gelu", or "gelu_tanh", the other form of `diglot.gelu`.
            If a gradient may be needed, the launch also keeps the rounded values before it.
        residual: tensor that broadcasts to the result, of the dtype of `input`.
        batch_invariant, precision: as in `diglot.matmul`.
        backend: as in `diglot.matmul`.

    Returns:
        A contiguous tensor (..., N), or (...) for a vector `weight`. Differentiable any number of
        times, on the same backend.

    Raises:
        TypeError: an argument is no dense floating-point tensor, or the dtypes differ.
        ValueError: shapes do not fit, tensors are on different devices, or `activation`,
            `precision` or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    present = [input, weight, *(t for t in (bias, residual) if t is not None)]
    kind = linear_operator.known(*present) or linear_operator.learn_checked(
        _check(input, weight, bias, residual), *present
    )
    if kind.facts:
        input, weight, bias, residual = autocast(  # type: ignore[assignment]
            "linear", input, weight, bias, residual
        )
    name = "none" if activation is None else activation
    if name not in ACTIVATIONS:
        raise ValueError(
            f"linear: activation must be None or one of {ACTIVATIONS[1:]}, not {activation!r}"
        )
    check_layer("linear", input, weight, bias)
    _check_residual(input, weight, residual)
    chosen = choose_product("linear", input.dtype, kind.device, backend, precision, batch_invariant)
    how = name, batch_invariant, precision, chosen
    if weight.dim() == 2 and input.dim() > 1 and (bias is None or bias.dim() == 1):
        if name == "none":
            return kind.call(input, weight, bias, residual, *how)
        return _activated(input, weight, bias, residual, *how)
    # Views of vectors as matrices have other kinds.
    matrix, rows = weight if weight.dim() == 2 else weight[None], input
    if residual is not None:
        residual = residual.expand((*input.shape[:-1], *weight.shape[:-1]))
        residual = residual[..., None] if weight.dim() == 1 else residual
    out = _activated(
        rows[None] if rows.dim() == 1 else rows,
        matrix,
        bias.reshape(1) if bias is not None and bias.dim() == 0 else bias,
        residual,
        *how,
    )
    out = out.squeeze(-1) if weight.dim() == 1 else out
    return out.squeeze(0) if input.dim() == 1 else out


def _activated(*arguments: Any) -> Tensor:
    """The layer, by the operator that keeps what a gradient may need."""
    *tensors, activation, _, _, _ = arguments
    needs_gradient = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in tensors
    )
    if activation == "none" or not needs_gradient:
        return linear_operator(*arguments)
    return linear_kept(*arguments)[0]


def _check(*tensors: Any) -> bool:
    names = ("input", "weight", "bias", "residual")
    return check_operands("linear", **dict(zip(names, tensors, strict=True)))


def _check_residual(input: Tensor, weight: Tensor, residual: Tensor | None) -> None:
    shape = (*input.shape[:-1], *weight.shape[:-1])
    if residual is not None and not broadcasts(residual.shape, shape):
        raise ValueError(
            f"linear: residual must broadcast to the result's shape, {shape}, not "
            f"{tuple(residual.shape)}"
        )


def check_layer(op: str, input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raises ValueError unless the shapes of a layer fit."""
    shapes = f"input {tuple(input.shape)} and weight {tuple(weight.shape)}"
    if input.dim() == 0 or weight.dim() not in (1, 2):
        raise ValueError(
            f"{op}: input must have at least one dimension, and weight one or two, not {shapes}"
        )
    if input.shape[-1] != weight.shape[-1]:
        raise ValueError(f"{op}: the last dimensions of {shapes} differ")
    if bias is None:
        return
    features = weight.shape[:-1]
    if bias.dim() > len(features) or (bias.dim() == 1 and bias.shape[0] not in (1, features[0])):
        raise ValueError(
            f"{op}: bias must have the shape {tuple(features)}, not {tuple(bias.shape)}"
        )


def _empty(input: Tensor, weight: Tensor) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def run_layer(
    before: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    batch_invariant: bool,
    precision: str | None,
    backend: str,
) -> Tensor:
    """Launches a layer. `before`, if any, gets the values before the activation."""
    out = _empty(input, weight)
    if bias is not None and bias.shape[0] != weight.shape[0]:
        bias = bias.expand(weight.shape[0]).contiguous()
    if residual is not None:
        residual = residual.expand(out.shape)
    rows, is_held = hold_rows(input, batch_invariant, backend)
    how = activation, is_held, precision_of(input, precision)
    run(backend, "linear", "linear_forward", rows, weight, bias, residual, *how, before, out)
    return out


def _forward(*arguments: Any) -> Tensor:
    return run_layer(None, *arguments)


def _forward_kept(*arguments: Any) -> tuple[Tensor, Tensor]:
    before = _empty(*arguments[:2])
    return run_layer(before, *arguments), before


def _note(ctx: Any, inputs: tuple[Any, ...]) -> None:
    """Notes in a context all but tensors."""
    _, _, bias, residual, ctx.activation, *how = inputs
    ctx.batch_invariant, ctx.precision, ctx.backend = how
    ctx.bias, ctx.residual = (
        None if added is None else (added.shape, added.dtype, 1, ctx.backend)
        for added in (bias, residual)
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor | None, ...]:
    _note(ctx, inputs)
    # The values before an activation are computed again.
    return inputs[: 2 if ctx.activation == "none" else 4]


def _save_kept(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> Any:
    _note(ctx, inputs)
    return (*inputs[:2], outputs[1])


def _affine(ctx: Any) -> tuple[Any, ...]:
    """How the layer's values before its activation are computed."""
    return "none", ctx.batch_invariant, ctx.precision, ctx.backend


def _before(ctx: Any) -> Tensor:
    return linear_operator(*ctx.saved_tensors, *_affine(ctx))


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.activation != "none":
        grad = activation_backward(grad, _before(ctx), ctx.activation, ctx.backend)
    return _gradients_of_sum(ctx, grad)


def _gradients_kept(
    ctx: Any, grad: Tensor | None, of_before: Tensor | None
) -> tuple[Tensor | None, ...]:
    if grad is None:
        assert of_before is not None
        return _gradients_of_sum(ctx, of_before)
    through = activation_backward(grad, ctx.saved_tensors[2], ctx.activation, ctx.backend)
    if of_before is not None:
        through = add(through, of_before, backend=ctx.backend)
    return _gradients_of_sum(ctx, through)


def _gradients_of_sum(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the tensors, from that of the values before the activation."""
    input, weight = ctx.saved_tensors[:2]
    needs_input, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad[:4]
    product_of = multiply_like(ctx)
    of_input = product_of(grad, weight, ctx.batch_invariant) if needs_input else None
    needs = needs_weight, needs_bias
    of_weight, of_bias = needed_gradients(ctx, grad, input, ctx.bias, needs)
    of_residual = unbroadcast(grad, *ctx.residual) if needs_residual else None
    return of_input, of_weight, of_bias, of_residual


def _tangent_of_sum(ctx: Any, of_input: Any, of_weight: Any, of_bias: Any, of_more: Any) -> Tensor:
    """The tangent of the values before the activation."""
    input, weight = ctx.saved_tensors[:2]
    parts: list[Tensor] = []
    for x, w in ((of_input, weight), (input, of_weight)):
        if x is not None and w is not None:
            added = (None, None) if parts else (of_bias, of_more)
            parts.append(linear_operator(x, w, *added, *_affine(ctx)))
    if not parts:
        shape = (*input.shape[:-1], weight.shape[0])
        parts = [t.expand(shape) for t in (of_bias, of_more) if t is not None]
    return parts[0] if len(parts) == 1 else add(*parts, backend=ctx.backend)


def _tangent(ctx: Any, *directions: Any) -> Tensor:
    tangent = _tangent_of_sum(ctx, *directions)
    if ctx.activation == "none":
        return tangent
    return activation_backward(tangent, _before(ctx), ctx.activation, ctx.backend)


def _tangent_kept(ctx: Any, *directions: Any) -> tuple[Tensor, Tensor]:
    tangent = _tangent_of_sum(ctx, *directions)
    before = ctx.saved_tensors[2]
    return activation_backward(tangent, before, ctx.activation, ctx.backend), tangent


def _batch(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    input, weight, bias, residual, *how = args
    activation, batch_invariant, precision, backend = how
    of_input, of_weight, of_bias, of_residual = in_dims[:4]
    if of_input is not None:
        input = input.movedim(of_input, 0)
    if of_weight is None and of_bias is None:
        if of_input is None:
            input = input.expand(info.batch_size, *input.shape)
        if of_residual is not None:
            residual = residual.movedim(of_residual, 0)
            ones = (1,) * (input.dim() - residual.dim())
            residual = residual.reshape(residual.shape[0], *ones, *residual.shape[1:])
        out = operator(input, weight, bias, residual, *how)
        return (out, 0) if isinstance(out, Tensor) else (out, (0, 0))
    if activation != "none" or residual is not None:
        return one_by_one(operator, info, in_dims, *args)
    if of_weight is not None:  # a matrix for each sample, before the input's own dimensions
        weight = weight.movedim(of_weight, 0)
        ones = (1,) * (input.dim() - 2 - (of_input is not None))
        weight = weight.reshape(weight.shape[0], *ones, *weight.shape[1:])
    out = multiply(input, weight.mT, backend, batch_invariant, precision)
    if bias is None:
        return out, 0
    if of_bias is not None:
        bias = bias.movedim(of_bias, 0)
        rank = max(out.dim(), input.dim() + (of_input is None))
        bias = bias.reshape(bias.shape[0], *(1,) * (rank - 2), bias.shape[-1])
    return add(out, bias, backend=backend), 0


_TENSORS = "(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str activation,"
linear_operator = Operator(
    f"linear{_TENSORS} bool batch_invariant, str? precision, str backend) -> Tensor",
    forward=_forward,
    fake=lambda *arguments: _empty(*arguments[:2]),
    save=_save,
    backward=_gradients,
    jvp=_tangent,
    vmap=_batch,
    whole=True,
)
# The values before the activation are an output: later derivatives go through them.
linear_kept = Operator(
    f"linear_kept{_TENSORS} bool batch_invariant, str? precision, str backend) -> (Tensor, Tensor)",
    forward=_forward_kept,
    fake=lambda *arguments: (_empty(*arguments[:2]), _empty(*arguments[:2])),
    save=_save_kept,
    backward=_gradients_kept,
    jvp=_tangent_kept,
    vmap=_batch,
    whole=True,
)
