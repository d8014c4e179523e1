"""Two linear layers with an activation between them: the contract of the op."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diglot.backends.runs import run
from diglot.define.operator import Operator
from diglot.ops.activation_backward import activation_backward, bend
from diglot.ops.add import add
from diglot.ops.linear import check_layer, linear_operator, run_layer
from diglot.ops.linear_parameters import needed_gradients
from diglot.ops.products import (
    autocast,
    check_operands,
    choose_product,
    multiply_like,
    precision_of,
)
from diglot.reference.activations import ACTIVATIONS
from diglot.reference.matmul import rows_of


def mlp(
    input: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    weight2: Tensor,
    bias2: Tensor | None,
    activation: str = "gelu",
    *,
    precision: str | None = None,
    backend: str | None = None,
) -> Tensor:
    r"""Applies two linear layers with an activation between them.

    It computes activation(input · weight1ᵀ + bias1) · weight2ᵀ + bias2 in two launches. The hidden
    values are rounded. If a gradient may be needed, the first launch also keeps the rounded values
    before the activation. In the backward pass, one launch computes the hidden gradient and
    multiplies it by the activation's derivative. `diglot.matmul` explains the computation.

    Args:
        input: tensor (..., K) of any strides; float32, float16, bfloat16 or float64.
        weight1: tensor (H, K), of the dtype of `input`.
        bias1: tensor (H), or None.
        weight2: tensor (N, H).
        bias2: tensor (N), or None.
        activation: "gelu", "gelu_tanh", "relu" or "silu".
        precision: as in `diglot.matmul`.
        backend: as in `diglot.matmul`.

    Returns:
        A contiguous tensor (..., N). Differentiable any number of times, on the same backend.

    Raises:
        TypeError: an argument is no dense floating-point tensor, or the dtypes differ.
        ValueError: shapes do not fit, tensors are on different devices, or `activation`,
            `precision` or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    tensors = [input, weight1, bias1, weight2, bias2]
    present = [t for t in tensors if t is not None]
    kind = _mlp.known(*present) or _mlp.learn_checked(_check(*tensors), *present)
    if activation not in ACTIVATIONS[1:]:
        raise ValueError(f"mlp: activation must be one of {ACTIVATIONS[1:]}, not {activation!r}")
    if kind.facts:
        tensors = autocast("mlp", *tensors)
        input, weight1, bias1, weight2, bias2 = tensors  # type: ignore[assignment]
    _check_shapes(input, weight1, bias1, weight2, bias2)
    chosen = choose_product("mlp", input.dtype, kind.device, backend, precision)
    how = precision, chosen
    rows = input if input.dim() > 1 else input[None]
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        out = _mlp(rows, weight1, weight2, bias1, bias2, activation, *how)[0]
    else:
        hidden = linear_operator(rows, weight1, bias1, None, activation, False, *how)
        out = linear_operator(hidden, weight2, bias2, None, "none", False, *how)
    return out if input.dim() > 1 else out[0]


def _check(*tensors: Any) -> bool:
    names = ("input", "weight1", "bias1", "weight2", "bias2")
    return check_operands("mlp", **dict(zip(names, tensors, strict=True)))


def _check_shapes(
    input: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None
) -> None:
    if weight1.dim() != 2 or weight2.dim() != 2 or weight2.shape[1] != weight1.shape[0]:
        raise ValueError(
            "mlp: weight1 must be (H, K) and weight2 (N, H), not "
            f"{tuple(weight1.shape)} and {tuple(weight2.shape)}"
        )
    check_layer("mlp", input, weight1, bias1)
    for name, bias, weight in (("bias1", bias1, weight1), ("bias2", bias2, weight2)):
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(
                f"mlp: {name} must have the shape ({weight.shape[0]},), not {tuple(bias.shape)}"
            )


def _forward(
    input: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Tensor | None,
    bias2: Tensor | None,
    activation: str,
    precision: str | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    before = input.new_empty((*input.shape[:-1], weight1.shape[0]))
    hidden = run_layer(before, input, weight1, bias1, None, activation, False, precision, backend)
    out = run_layer(None, hidden, weight2, bias2, None, "none", False, precision, backend)
    return out, before, hidden


def _fake(input: Tensor, weight1: Tensor, weight2: Tensor, *_: Any) -> tuple[Tensor, ...]:
    features = weight2.shape[0], weight1.shape[0], weight1.shape[0]
    out, before, hidden = (input.new_empty((*input.shape[:-1], n)) for n in features)
    return out, before, hidden


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    *_, bias1, bias2, ctx.activation, ctx.precision, ctx.backend = inputs
    ctx.biases = [
        None if bias is None else (bias.shape, bias.dtype, 1, ctx.backend)
        for bias in (bias1, bias2)
    ]
    return (*inputs[:3], *outputs[1:])


def _hidden(ctx: Any) -> tuple[Any, ...]:
    """How the hidden gradient of a context's call is computed."""
    return ctx.activation, ctx.precision, ctx.backend


def _gradients(
    ctx: Any, grad: Tensor | None, of_before: Tensor | None, of_hidden: Tensor | None
) -> tuple[Tensor | None, ...]:
    input, weight1, weight2, before, hidden = ctx.saved_tensors
    activation, backend, product_of = ctx.activation, ctx.backend, multiply_like(ctx)
    needs = ctx.needs_input_grad
    by_weight2 = by_bias2 = None
    parts = [] if of_before is None else [of_before]
    if grad is not None:
        of_second = ctx.biases[1], (needs[2], needs[4])
        by_weight2, by_bias2 = needed_gradients(ctx, grad, hidden, *of_second)
        if needs[0] or needs[1] or needs[3]:
            parts.append(_hidden_gradient(grad, weight2, before, *_hidden(ctx)))
    if of_hidden is not None:
        parts.append(activation_backward(of_hidden, before, activation, backend))
    if not parts:
        return None, None, by_weight2, None, by_bias2
    through = parts[0]
    for part in parts[1:]:
        through = add(through, part, backend=backend)
    by_input = product_of(through, weight1) if needs[0] else None
    of_first = ctx.biases[0], (needs[1], needs[3])
    by_weight1, by_bias1 = needed_gradients(ctx, through, input, *of_first)
    return by_input, by_weight1, by_weight2, by_bias1, by_bias2


def _tangent(
    ctx: Any, of_input: Any, of_weight1: Any, of_weight2: Any, of_bias1: Any, of_bias2: Any
) -> tuple[Tensor, ...]:
    input, weight1, weight2, before, hidden = ctx.saved_tensors
    backend = ctx.backend
    of_before = _affine(ctx, input, weight1, of_input, of_weight1, of_bias1)
    of_hidden = None
    if of_before is not None:
        of_hidden = activation_backward(of_before, before, ctx.activation, backend)
    of_out = _affine(ctx, hidden, weight2, of_hidden, of_weight2, of_bias2)
    kept = (torch.zeros_like(before) if t is None else t for t in (of_before, of_hidden))
    assert of_out is not None
    return (of_out, *kept)


def _affine(
    ctx: Any, input: Tensor, weight: Tensor, of_input: Any, of_weight: Any, of_bias: Any
) -> Tensor | None:
    """The tangent of a layer without activation; None if it is zero."""
    parts, product_of = [], multiply_like(ctx)
    if of_input is not None:
        parts.append(product_of(of_input, weight.mT))
    if of_weight is not None:
        parts.append(product_of(input, of_weight.mT))
    if of_bias is not None:
        parts.append(of_bias.expand(*input.shape[:-1], weight.shape[0]))
    while len(parts) > 1:
        parts.append(add(parts.pop(), parts.pop(), backend=ctx.backend))
    return parts[0] if parts else None


_mlp = Operator(
    "mlp(Tensor input, Tensor weight1, Tensor weight2, Tensor? bias1, Tensor? bias2, "
    "str activation, str? precision, str backend) -> (Tensor, Tensor, Tensor)",
    forward=_forward,
    fake=_fake,
    save=_save,
    backward=_gradients,
    jvp=_tangent,
    whole=True,
)


def _forward_hidden(
    grad_output: Tensor,
    weight: Tensor,
    before: Tensor,
    activation: str,
    precision: str | None,
    backend: str,
) -> Tensor:
    out = torch.empty_like(before, memory_format=torch.contiguous_format)
    how = activation, precision_of(grad_output, precision)
    run(backend, "mlp", "mlp_backward", grad_output, weight, before, *how, out)
    return out


def _save_hidden(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, ...]:
    *tensors, ctx.activation, ctx.precision, ctx.backend = inputs
    return tuple(tensors)


def _gradients_of_hidden(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_output, weight, before = ctx.saved_tensors
    needs_grad, needs_weight, needs_before = ctx.needs_input_grad[:3]
    product_of = multiply_like(ctx)
    through = activation_backward(grad, before, ctx.activation, ctx.backend)
    by_grad = product_of(through, weight.mT) if needs_grad else None
    by_weight = None
    if needs_weight:
        by_weight = product_of(rows_of(grad_output).mT, rows_of(through))
    by_before = None
    if needs_before:
        by_before = bend(product_of(grad_output, weight), before, grad, ctx.activation)
    return by_grad, by_weight, by_before


def _tangent_of_hidden(ctx: Any, of_grad: Any, of_weight: Any, of_before: Any) -> Tensor:
    grad_output, weight, before = ctx.saved_tensors
    parts = []
    if of_grad is not None:
        parts.append(_hidden_gradient(of_grad, weight, before, *_hidden(ctx)))
    if of_weight is not None:
        parts.append(_hidden_gradient(grad_output, of_weight, before, *_hidden(ctx)))
    if of_before is not None:
        product = multiply_like(ctx)(grad_output, weight)
        parts.append(bend(product, before, of_before, ctx.activation))
    return sum(parts[1:], parts[0])


# (grad_output · weight) times the activation's derivative at `before`, in one launch.
_hidden_gradient = Operator(
    "mlp_backward(Tensor grad_output, Tensor weight, Tensor before, str activation, "
    "str? precision, str backend) -> Tensor",
    forward=_forward_hidden,
    fake=lambda grad_output, weight, before, *how: torch.empty_like(
        before, memory_format=torch.contiguous_format
    ),
    save=_save_hidden,
    backward=_gradients_of_hidden,
    jvp=_tangent_of_hidden,
    whole=True,
)
