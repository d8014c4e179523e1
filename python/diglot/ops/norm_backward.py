"""The backward pass of a norm of rows, as an operator, and its own derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from diglot.backends.runs import run
from diglot.define.batching import batch_at, batch_first, one_by_one
from diglot.define.operator import Operator
from diglot.ops.norm_rows import Tensors, as_rows, contiguous_like, sum_like
from diglot.reference.norm import Normalized, wide


class Backward(NamedTuple):
    """The arguments of a norm's backward pass.

    Attributes:
        grad_output, grad_sum: gradients of the outputs, of the shape and dtype of `input`.
            `grad_sum` is None if the sum has no gradient.
        input: of the forward pass, or its sum.
        statistics: (fields, *outer).
        eps, backend: of the forward pass.
        weight: of the forward pass.
        weight_dtype, bias_dtype: of the parameter; None if its gradient is not requested.
    """

    grad_output: Tensor
    grad_sum: Tensor | None
    input: Tensor
    statistics: Tensor
    eps: float
    backend: str
    weight: Tensor | None = None
    weight_dtype: torch.dtype | None = None
    bias_dtype: torch.dtype | None = None

    @property
    def rank(self) -> int:
        """How many dimensions do not belong to a row."""
        return self.statistics.dim() - 1


def define_backward(op: str, parameters: tuple[str, ...], centered: bool) -> Operator:
    """The gradients of the input and of each parameter whose dtype is given.

    Its derivatives consist of PyTorch's operators. The input's derivatives include those of the
    statistics, which have none of their own.
    """
    name = f"{op}_backward"
    tensors = ("grad_output", "grad_sum", "input", "statistics", "weight")
    dtypes = [f"{which}_dtype" for which in parameters]
    names = (*tensors, *dtypes, "eps", "backend")

    def read(args: tuple[Any, ...]) -> Backward:
        return Backward(**dict(zip(names, args, strict=True)))

    def dtypes_of(call: Backward) -> list[torch.dtype | None]:
        return [getattr(call, which) for which in dtypes]

    def fake(*args: Any) -> Tensors:
        call = read(args)
        input, row = call.input, call.input.shape[call.rank :]
        return (
            contiguous_like(input),
            *[input.new_empty(row if d else (0,), dtype=d) for d in dtypes_of(call)],
        )

    def forward(*args: Any) -> Tensors:
        call = read(args)
        input, rank = call.input, call.rank
        for which in ("grad_output", "grad_sum"):
            grad = getattr(call, which)
            if grad is not None and (grad.shape != input.shape or grad.dtype != input.dtype):
                raise ValueError(
                    f"{name}: {which} must have the shape and dtype of input, "
                    f"{tuple(input.shape)} and {input.dtype}, not {tuple(grad.shape)} and "
                    f"{grad.dtype}"
                )
        grad_input, *made = results = fake(*args)
        if input.numel() == 0:
            for gradient in made:
                gradient.zero_()
            return results
        asked = [g if d else None for g, d in zip(made, dtypes_of(call), strict=True)]
        rows = [as_rows(t, rank) for t in (call.grad_output, call.grad_sum, input)]
        vectors = [as_rows(vector, 0) for vector in (call.weight, *asked)]
        statistics = call.statistics.contiguous()  # torch.vmap moves their dimensions
        run(
            call.backend,
            op,
            name,
            *rows,
            statistics,
            *vectors,
            as_rows(grad_input, rank),
        )
        return results

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> list[Any]:
        call = read(inputs)
        ctx.has_sum, ctx.dims = call.grad_sum is not None, call.input.dim() - call.rank
        ctx.dtypes, ctx.eps = dtypes_of(call), call.eps
        return [call.grad_output, call.input, call.weight]

    def parts_of(ctx: Any) -> tuple[Any, ...]:
        grad_output, input, weight = ctx.saved_tensors
        rows = Normalized.compute(input, ctx.dims, ctx.eps, centered)
        g = wide(grad_output)
        return rows, g, g if weight is None else g * weight, weight

    def gradients(ctx: Any, along: Any, *by_parameters: Any) -> tuple[Any, ...]:
        rows, g, scaled, weight = parts_of(ctx)
        input, of_weight = ctx.saved_tensors[1], None
        wanted = [p if d else None for p, d in zip(by_parameters, ctx.dtypes, strict=True)]
        by: dict[str, Any] = dict(zip(parameters, wanted, strict=True))
        to_grad, to_input = [], []
        if along is not None:
            projected = rows.project(wide(along))
            to_input.append(rows.bend(scaled, wide(along)))
            to_grad.append(projected if weight is None else projected * weight)
            if weight is not None:
                of_weight = rows.sum_rows(g * projected).to(weight.dtype)
        if by["weight"] is not None:
            to_grad.append(by["weight"] * rows.values)
            to_input.append(rows.project(by["weight"] * g))
        if by.get("bias") is not None:
            to_grad.append(wide(by["bias"]).expand_as(g))
        return (
            sum_like(to_grad, input),
            along if ctx.has_sum else None,
            sum_like(to_input, input),
            None,
            of_weight,
        )

    def tangents(ctx: Any, *directions: Any) -> Tensors:
        rows, g, scaled, weight = parts_of(ctx)
        input = ctx.saved_tensors[1]
        by: dict[str, Any] = dict(zip(tensors, directions, strict=True))
        by_grad, by_input = by["grad_output"], by["input"]
        to_input, to_weight, to_bias, to_scaled = [], [], [], []
        if by_grad is not None:
            to_scaled.append(wide(by_grad) if weight is None else wide(by_grad) * weight)
            to_weight.append(rows.sum_rows(by_grad * rows.values))
            to_bias.append(rows.sum_rows(wide(by_grad)))
        if by["weight"] is not None:
            to_scaled.append(g * by["weight"])
        if to_scaled:
            to_input.append(rows.project(sum(to_scaled)))
        if by["grad_sum"] is not None:
            to_input.append(wide(by["grad_sum"]))
        if by_input is not None:
            to_input.append(rows.bend(scaled, wide(by_input)))
            to_weight.append(rows.sum_rows(g * rows.project(wide(by_input))))
        row = input.shape[input.dim() - ctx.dims :]
        of_parameters = [
            sum_like(parts, input.new_empty(row, dtype=dtype)) if dtype else input.new_zeros((0,))
            for parts, dtype in zip((to_weight, to_bias), ctx.dtypes, strict=False)
        ]
        return sum_like(to_input, input), *of_parameters

    def batch(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        call, dims = read(args), dict(zip(names, in_dims, strict=True))
        if dims["weight"] is not None or any(dtypes_of(call)):
            return one_by_one(operator, info, in_dims, *args)
        first = batch_first(info, in_dims, (call.grad_output, call.grad_sum, call.input))
        statistics = batch_at(1, info, dims["statistics"], call.statistics)
        results = operator(*first, statistics, *args[4:])
        return results, (0, *[None for _ in parameters])

    options = ", ".join(f"ScalarType? {which}" for which in dtypes)
    return Operator(
        f"{name}(Tensor grad_output, Tensor? grad_sum, Tensor input, Tensor statistics, "
        f"Tensor? weight, {options}, float eps, str backend) -> "
        f"({', '.join(['Tensor'] * (1 + len(dtypes)))})",
        forward=forward,
        fake=fake,
        save=save,
        backward=gradients,
        jvp=tangents,
        vmap=batch,
    )
