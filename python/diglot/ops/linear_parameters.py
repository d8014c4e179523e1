"""The gradients of a linear layer's weight and bias: the operator
`diglot::linear_parameters_backward`, named after the launcher that runs it.

The weight's gradient is a product of the output's gradient, transposed, and the input. The bias's
gradient is the sum of that product's first operand along its rows. So one launcher makes both, and
its plan decides whether one launch does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diglot.backends.batch_invariance import hold_rows
from diglot.backends.runs import run
from diglot.define.operator import Operator
from diglot.ops.add import add
from diglot.ops.products import multiply, precision_of
from diglot.ops.sum_to_shape import unbroadcast
from diglot.reference.matmul import rows_of


def parameter_gradients(
    grad_output: Tensor, input: Tensor, precision: str | None, backend: str
) -> tuple[Tensor, Tensor]:
    """Those of a weight (N, K) and a bias (N).

    Args:
        grad_output, input: tensors (..., N) and (..., K).
    """
    made: tuple[Tensor, Tensor] = _parameters_backward(
        rows_of(grad_output), rows_of(input), precision, backend
    )
    return made


def needed_gradients(
    ctx: Any, grad_output: Tensor, input: Tensor, bias: Any, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Those of a layer's weight and bias, where they are needed.

    Args:
        ctx: has the precision and the backend.
        bias: its shape and what else `unbroadcast` takes; None without one.
    """
    if all(needs) and bias[0] == grad_output.shape[-1:]:
        return parameter_gradients(grad_output, input, ctx.precision, ctx.backend)
    of_weight = of_bias = None
    if needs[0]:
        rows = rows_of(grad_output).mT, rows_of(input)
        of_weight = multiply(*rows, ctx.backend, False, ctx.precision)
    if needs[1]:
        of_bias = unbroadcast(grad_output, *bias)
    return of_weight, of_bias


def _forward(
    grad_output: Tensor, input: Tensor, precision: str | None, backend: str
) -> tuple[Tensor, Tensor]:
    grad_weight, grad_bias = _fake(grad_output, input)
    rows, is_held = hold_rows(grad_output.mT, False, backend)
    how = is_held, precision_of(input, precision)
    name = "linear_parameters_backward"
    run(backend, "linear", name, rows, input, *how, grad_weight, grad_bias)
    return grad_weight, grad_bias


def _fake(grad_output: Tensor, input: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    features = grad_output.shape[1]
    return input.new_empty((features, input.shape[1])), input.new_empty(features)


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> tuple[Tensor, Tensor]:
    grad_output, input, ctx.precision, ctx.backend = inputs
    return grad_output, input


def _gradients(
    ctx: Any, of_weight: Tensor | None, of_bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    from diglot.ops.linear import linear_operator  # which imports this file

    grad_output, input = ctx.saved_tensors
    how = ctx.precision, ctx.backend
    if of_weight is None:
        assert of_bias is not None
        return of_bias.expand(grad_output.shape) if ctx.needs_input_grad[0] else None, None
    by_grad = by_input = None
    if ctx.needs_input_grad[0]:
        by_grad = linear_operator(input, of_weight, of_bias, None, "none", False, *how)
    if ctx.needs_input_grad[1]:
        by_input = multiply(grad_output, of_weight, ctx.backend, False, ctx.precision)
    return by_grad, by_input


def _tangents(ctx: Any, of_grad: Tensor | None, of_input: Tensor | None) -> tuple[Tensor, Tensor]:
    grad_output, input = ctx.saved_tensors
    if of_grad is None:
        assert of_input is not None
        product = multiply(grad_output.mT, of_input, ctx.backend, False, ctx.precision)
        return product, product.new_zeros(product.shape[0])
    of_weight, of_bias = _parameters_backward(of_grad, input, ctx.precision, ctx.backend)
    if of_input is not None:
        more = multiply(grad_output.mT, of_input, ctx.backend, False, ctx.precision)
        of_weight = add(of_weight, more, backend=ctx.backend)
    return of_weight, of_bias


def _batch(
    operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int | None]]:
    """Products of a batch, and sums of it."""
    grad_output, input, precision, backend = args
    if in_dims[0] is not None:
        grad_output = grad_output.movedim(in_dims[0], 0)
    if in_dims[1] is not None:
        input = input.movedim(in_dims[1], 0)
    of_weight = multiply(grad_output.mT, input, backend, False, precision)
    sizes = torch.Size((*grad_output.shape[:-2], 1, grad_output.shape[-1]))
    of_bias = unbroadcast(grad_output, sizes, grad_output.dtype, 1, backend).squeeze(-2)
    return (of_weight, of_bias), (0, None if in_dims[0] is None else 0)


_parameters_backward = Operator(
    "linear_parameters_backward(Tensor grad_output, Tensor input, str? precision, str backend)"
    " -> (Tensor, Tensor)",
    forward=_forward,
    fake=_fake,
    save=_save,
    backward=_gradients,
    jvp=_tangents,
    vmap=_batch,
    whole=True,
)
