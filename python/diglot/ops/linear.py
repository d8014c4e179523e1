"""Linear layers: the contract of the op."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from diglot.backends.batch_invariance import choose_invariant, hold_rows
from diglot.backends.runs import run
from diglot.define.operator import Operator
from diglot.ops.add import add
from diglot.ops.products import autocast, check_operands, multiply, precision_of
from diglot.ops.sum_to_shape import unbroadcast
from diglot.reference.matmul import rows_of


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    batch_invariant: bool = False,
    backend: str | None = None,
) -> Tensor:
    r"""Applies a linear layer, as `torch.nn.functional.linear`: input · weightᵀ + bias.

    The bias is added before the only rounding, in the same launch. Under vmap with batches of
    weight or bias it is added after one. `diglot.matmul` explains the computation.

    Args:
        input: tensor (..., K) of any strides; float32, float16, bfloat16 or float64.
        weight: tensor (N, K), or a vector (K); of the dtype of `input`.
        bias: tensor (N), or (1); for a vector `weight`, a tensor (). Of the dtype of `input`.
        batch_invariant: as in `diglot.matmul`.
        backend: as in `diglot.matmul`.

    Returns:
        A contiguous tensor (..., N), or (...) for a vector `weight`. Differentiable any number of
        times, on the same backend.

    Raises:
        TypeError: an argument is no dense floating-point tensor, or the dtypes differ.
        ValueError: shapes do not fit, tensors are on different devices, or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    present = (input, weight) if bias is None else (input, weight, bias)
    kind = _linear.known(*present) or _linear.learn(*present)
    if kind.facts:
        input, weight, bias = autocast("linear", input, weight, bias)  # type: ignore[assignment]
    _check_shapes(input, weight, bias)
    chosen = choose_invariant("linear", kind.device, backend, batch_invariant)
    if weight.dim() == 2 and input.dim() > 1 and (bias is None or bias.dim() == 1):
        return kind.call(input, weight, bias, batch_invariant, chosen)
    # Views of vectors as matrices have other kinds.
    matrix, rows = weight if weight.dim() == 2 else weight[None], input
    out = _linear(
        rows[None] if rows.dim() == 1 else rows,
        matrix,
        bias.reshape(1) if bias is not None and bias.dim() == 0 else bias,
        batch_invariant,
        chosen,
    )
    out = out.squeeze(-1) if weight.dim() == 1 else out
    return out.squeeze(0) if input.dim() == 1 else out


def _check(input: Any, weight: Any, bias: Any = None) -> bool:
    return check_operands("linear", input=input, weight=weight, bias=bias)


def _check_shapes(input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    shapes = f"input {tuple(input.shape)} and weight {tuple(weight.shape)}"
    if input.dim() == 0 or weight.dim() not in (1, 2):
        raise ValueError(
            f"linear: input must have at least one dimension, and weight one or two, not {shapes}"
        )
    if input.shape[-1] != weight.shape[-1]:
        raise ValueError(f"linear: the last dimensions of {shapes} differ")
    if bias is None:
        return
    features = weight.shape[:-1]
    if bias.dim() > len(features) or (bias.dim() == 1 and bias.shape[0] not in (1, features[0])):
        raise ValueError(
            f"linear: bias must have the shape {tuple(features)}, not {tuple(bias.shape)}"
        )


def _empty(input: Tensor, weight: Tensor) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def _fake(
    input: Tensor, weight: Tensor, bias: Tensor | None, batch_invariant: bool, backend: str
) -> Tensor:
    return _empty(input, weight)


def _forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, batch_invariant: bool, backend: str
) -> Tensor:
    out = _empty(input, weight)
    input, is_held = hold_rows(input, batch_invariant, backend)
    if bias is not None and bias.shape[0] != weight.shape[0]:
        bias = bias.expand(weight.shape[0]).contiguous()
    precision = precision_of(input)
    run(backend, "linear", "linear_forward", input, weight, bias, is_held, precision, out)
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, Tensor]:
    input, weight, bias, ctx.batch_invariant, ctx.backend = inputs
    ctx.bias = None if bias is None else (bias.shape, bias.dtype)
    return input, weight


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    input, weight = ctx.saved_tensors
    needs_input, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    of_input = of_weight = of_bias = None
    if needs_input:
        of_input = multiply(grad, weight, ctx.backend, ctx.batch_invariant)
    if needs_weight:
        of_weight = multiply(rows_of(grad).mT, rows_of(input), ctx.backend)
    if needs_bias:
        shape, dtype = ctx.bias
        of_bias = unbroadcast(grad, shape, dtype, 1, ctx.backend)
    return of_input, of_weight, of_bias


def _tangent(ctx: Any, of_input: Any, of_weight: Any, of_bias: Any) -> Tensor:
    input, weight = ctx.saved_tensors
    backend, how = ctx.backend, (ctx.batch_invariant, ctx.backend)
    if of_input is None and of_weight is None:
        return of_bias.expand(*input.shape[:-1], weight.shape[0])
    parts = []
    if of_input is not None:
        parts.append(_linear(of_input, weight, of_bias, *how))
        of_bias = None
    if of_weight is not None:
        parts.append(_linear(input, of_weight, of_bias, *how))
    return parts[0] if len(parts) == 1 else add(*parts, backend=backend)


def _batch(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    input, weight, bias, batch_invariant, backend = args
    of_input, of_weight, of_bias = in_dims[:3]
    if of_input is not None:
        input = input.movedim(of_input, 0)
    if of_weight is None and of_bias is None:
        return _linear(input, weight, bias, batch_invariant, backend), 0
    if of_weight is not None:  # a matrix for each sample, before the input's own dimensions
        weight = weight.movedim(of_weight, 0)
        ones = (1,) * (input.dim() - 2 - (of_input is not None))
        weight = weight.reshape(weight.shape[0], *ones, *weight.shape[1:])
    out = multiply(input, weight.mT, backend, batch_invariant)
    if bias is None:
        return out, 0
    if of_bias is not None:
        bias = bias.movedim(of_bias, 0)
        rank = max(out.dim(), input.dim() + (of_input is None))
        bias = bias.reshape(bias.shape[0], *(1,) * (rank - 2), bias.shape[-1])
    return add(out, bias, backend=backend), 0


_linear = Operator(
    "linear(Tensor input, Tensor weight, Tensor? bias, bool batch_invariant, str backend)"
    " -> Tensor",
    forward=_forward,
    fake=_fake,
    save=_save,
    backward=_gradients,
    jvp=_tangent,
    vmap=_batch,
    whole=True,
    check=_check,
)
