"""The operators of addmm and baddbmm: beta · input + alpha · A · B. Both take batches that
broadcast, because torch.vmap makes such calls of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diglot.backends.batch_invariance import hold_rows
from diglot.backends.runs import run
from diglot.define.operator import Operator
from diglot.ops.add import add
from diglot.ops.broadcasting import align_batches, broadcasts
from diglot.ops.checks import check_floating
from diglot.ops.numbers import Number, check_factor
from diglot.ops.products import (
    check_operands,
    check_out_dtype,
    gradient_of_input,
    gradient_of_other,
    multiply_like,
    precision_of,
    product_shape,
)
from diglot.ops.sum_to_shape import unbroadcast


def factors(op: str, beta: Number, alpha: Number, dtype: torch.dtype) -> tuple[float, float]:
    """beta and alpha as floats.

    Raises:
        TypeError: one is no real number.
        ValueError: one is out of the dtype's range.
    """
    if type(beta) is float and type(alpha) is float:
        return beta, alpha
    return (
        float(check_factor(op, "beta", beta, dtype)),
        float(check_factor(op, "alpha", alpha, dtype)),
    )


def check_dtypes(
    op: str, name: str, operand: Tensor, input: Tensor, out_dtype: torch.dtype | None
) -> None:
    """Raises TypeError unless the dtypes of an operand, the input and the result fit.

    `name` is the operand's. The input has its dtype, or that of the result.
    """
    check_out_dtype(op, operand.dtype, out_dtype)
    if input.dtype not in (operand.dtype, out_dtype):
        one = "one dtype" if out_dtype is None else f"one dtype, or input {out_dtype}"
        raise TypeError(
            f"{op}: {name} and input must have {one}, not {operand.dtype} and {input.dtype}"
        )


def added_product(op: str, first: str, second: str) -> Operator:
    """The operator `diglot::<op>`. `first` and `second` are the names of A and B."""

    def shape_of(a: Tensor, b: Tensor, input: Tensor | None) -> tuple[int, ...]:
        shape = product_shape(a, b, op, first, second)
        if input is not None and not broadcasts(input.shape, shape):
            raise ValueError(
                f"{op}: input must broadcast to the product's shape, {shape}, not "
                f"{tuple(input.shape)}"
            )
        return shape

    def fake(
        a: Tensor,
        b: Tensor,
        input: Tensor | None,
        beta: float,
        alpha: float,
        out_dtype: torch.dtype | None,
        *_: Any,
    ) -> Tensor:
        return a.new_empty(shape_of(a, b, input), dtype=out_dtype)

    def forward(
        a: Tensor,
        b: Tensor,
        input: Tensor | None,
        beta: float,
        alpha: float,
        out_dtype: torch.dtype | None,
        batch_invariant: bool,
        precision: str | None,
        backend: str,
    ) -> Tensor:
        dtype = a.dtype if out_dtype is None else out_dtype
        shape = shape_of(a, b, input)
        out = torch.empty(shape, dtype=dtype, device=a.device)
        # With beta = 0 not even NaN of the input counts.
        beside = None if input is None or beta == 0 else input.to(dtype)
        if beside is not None and beside.shape != shape:  # else it costs the host a microsecond
            beside = beside.expand(shape)
        a, is_held = hold_rows(a, batch_invariant, backend)
        how = beta, alpha, is_held, precision_of(a, precision)
        run(backend, op, f"{op}_forward", a, b, beside, *how, out)
        return out

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, Tensor]:
        a, b, input, ctx.beta, ctx.alpha, ctx.out_dtype, *how = inputs
        ctx.batch_invariant, ctx.precision, ctx.backend = how
        ctx.input = None if input is None else (input.shape, input.dtype, ctx.beta, ctx.backend)
        return a, b

    def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        needs_a, needs_b, needs_input = ctx.needs_input_grad[:3]
        rounded = grad.to(a.dtype)  # of a wide result

        def scaled(x: Tensor, y: Tensor, batch_invariant: bool = False) -> Tensor:
            how = batch_invariant, ctx.precision, ctx.backend
            product: Tensor = operator(x, y, None, 0.0, ctx.alpha, None, *how)
            return product

        product_of = multiply_like(ctx) if ctx.alpha == 1 else scaled
        of_a = of_b = of_input = None
        if needs_a:
            of_a = gradient_of_input(ctx, rounded, a, b, product_of)
        if needs_b:
            of_b = gradient_of_other(ctx, rounded, a, b, product_of)
        if needs_input:
            of_input = unbroadcast(grad, *ctx.input)
        return of_a, of_b, of_input

    def tangent(
        ctx: Any, of_a: Tensor | None, of_b: Tensor | None, of_input: Tensor | None
    ) -> Tensor:
        a, b = ctx.saved_tensors
        parts: list[Tensor] = []
        for x, y in ((of_a, b), (a, of_b)):
            if x is not None and y is not None:
                beside = None if parts else of_input
                numbers = ctx.beta, ctx.alpha
                how = ctx.out_dtype, ctx.batch_invariant, ctx.precision, ctx.backend
                parts.append(operator(x, y, beside, *numbers, *how))
        if not parts:
            assert of_input is not None
            of_input = of_input.to(ctx.out_dtype or a.dtype)
            return of_input.expand(product_shape(a, b)) * ctx.beta
        return parts[0] if len(parts) == 1 else add(*parts, backend=ctx.backend)

    def batch(rule: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        a, b, input, *options = args
        of_a, of_b, of_input = in_dims[:3]
        if of_a is None and of_b is None:  # a batch of one product
            a, of_a = a.expand(info.batch_size, *a.shape), 0
        rank = max(t.dim() - (d is not None) for t, d in ((a, of_a), (b, of_b)))
        a, b = align_batches((a, b), (of_a, of_b))
        if of_input is not None:
            input = input.movedim(of_input, 0)
            ones = (1,) * (rank + 1 - input.dim())
            input = input.reshape(input.shape[0], *ones, *input.shape[1:])
        return operator(a, b, input, *options), 0

    def check(a: Tensor, b: Tensor, input: Tensor) -> bool:
        is_cast = check_operands(op, **{first: a, second: b})
        check_floating(op, "input", input)
        if input.device != a.device:
            raise ValueError(
                f"{op}: {first} and input must be on one device, not on {a.device} and "
                f"{input.device}"
            )
        return is_cast

    operator = Operator(
        f"{op}(Tensor {first}, Tensor {second}, Tensor? input, float beta, float alpha, "
        "ScalarType? out_dtype, bool batch_invariant, str? precision, str backend) -> Tensor",
        forward=forward,
        fake=fake,
        save=save,
        backward=gradients,
        jvp=tangent,
        vmap=batch,
        whole=True,
        check=check,
    )
    return operator
