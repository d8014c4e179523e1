"""The common part of the contracts of products: checks, autocast, and the operator
`diglot::matmul`, on which all derivatives of products are built.

The gradients of C = A B are again products: of C's gradient and a transpose, which is a view. So
kernels of the same layouts compute them, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diglot.backends.batch_invariance import declare_invariant, hold_rows
from diglot.backends.needs import prefer
from diglot.backends.runs import run
from diglot.define.operator import Operator
from diglot.ops.add import add
from diglot.ops.broadcasting import align_batches
from diglot.ops.checks import check_floating
from diglot.ops.sum_to_shape import unbroadcast
from diglot.reference.matmul import rows_of

Multiply = Callable[..., Tensor]  # of two operands, on a backend
# "auto" takes PyTorch's products: diglot's are slower at some shapes (docs/products.md).
_find_precision: Any = torch._C._get_fp32_precision_getter  # type: ignore[attr-defined]
AUTO_ORDER = ("torch", "cuda", "triton")
for _op in ("matmul", "linear", "addmm", "bmm", "baddbmm", "mlp"):
    prefer(_op, AUTO_ORDER)
for _op in ("matmul", "linear"):
    declare_invariant(_op)

OPTIONAL = ("bias", "residual", "bias1", "bias2")


def check_operands(op: str, **tensors: Tensor | None) -> bool:
    """Checks dtypes and devices of a call's tensors; whether autocast is on for their device.

    Under autocast, dtypes may differ: they are cast.

    Raises:
        TypeError: one is no dense floating-point tensor, or their dtypes differ.
        ValueError: their devices differ.
    """
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if tensor is not None or name not in OPTIONAL:
            check_floating(op, name, tensor)
    assert first is not None
    is_cast = not first.is_meta and torch.is_autocast_enabled(first.device.type)
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.device != first.device:
            raise ValueError(
                f"{op}: {first_name} and {name} must be on one device, not on {first.device} and "
                f"{tensor.device}"
            )
        if tensor.dtype != first.dtype and not is_cast:
            raise TypeError(
                f"{op}: {first_name} and {name} must have one dtype, not {first.dtype} and "
                f"{tensor.dtype}"
            )
    return is_cast


def autocast(op: str, *tensors: Tensor | None) -> list[Tensor | None]:
    """Tensors in autocast's dtype, as PyTorch's products take them. It leaves float64 as it is.

    Raises:
        TypeError: their dtypes still differ.
    """
    first = next(tensor for tensor in tensors if tensor is not None)
    dtype = torch.get_autocast_dtype(first.device.type)
    cast = [None if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors]
    cast = [t if c is None else c for t, c in zip(tensors, cast, strict=True)]
    kinds = {t.dtype for t in cast if t is not None}
    if len(kinds) > 1:
        raise TypeError(f"{op}: under autocast, float64 mixes with no other dtype")
    return cast


def product_shape(
    input: Tensor, other: Tensor, op: str = "matmul", first: str = "input", second: str = "other"
) -> tuple[int, ...]:
    """The shape of a product of matrices, or of batches of them that broadcast.

    Raises:
        ValueError: the shapes do not multiply, or the batches do not broadcast.
    """
    if input.shape[-1] != other.shape[-2]:
        raise ValueError(
            f"{op}: {first} and {second} do not multiply: {tuple(input.shape)} and "
            f"{tuple(other.shape)}; a row of {first} has {input.shape[-1]} elements, and a column "
            f"of {second} has {other.shape[-2]}"
        )
    batches = input.shape[:-2], other.shape[:-2]
    if batches[0] == batches[1]:  # PyTorch's function takes as long as the rest of a launch
        return (*batches[0], input.shape[-2], other.shape[-1])
    try:
        batch = torch.broadcast_shapes(*batches)
    except RuntimeError:
        raise ValueError(
            f"{op}: the batches of {first} and {second} do not broadcast: {tuple(batches[0])} and "
            f"{tuple(batches[1])}"
        ) from None
    return (*batch, input.shape[-2], other.shape[-1])


def precision_of(operand: Tensor) -> str:
    """The precision of products of an operand's dtype, "ieee" or "tf32", as PyTorch's switches say
    now: `torch.backends.cuda.matmul.fp32_precision` and those that set it.

    A launcher gets it, and its plans' keys have it, so that a switch changes the next call.
    """
    if operand.dtype != torch.float32:
        return "ieee"
    # Behind that attribute, which takes 2 microseconds to read.
    return "tf32" if _find_precision("cuda", "matmul") == "tf32" else "ieee"


def _empty_like_fake(input: Tensor, other: Tensor, batch_invariant: bool, backend: str) -> Tensor:
    return input.new_empty(product_shape(input, other))


def _forward(input: Tensor, other: Tensor, batch_invariant: bool, backend: str) -> Tensor:
    out = torch.empty(product_shape(input, other), dtype=input.dtype, device=input.device)
    input, is_held = hold_rows(input, batch_invariant, backend)
    precision = precision_of(input)
    run(backend, "matmul", "matmul_forward", input, other, is_held, precision, out)
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, Tensor]:
    input, other, ctx.batch_invariant, ctx.backend = inputs
    return input, other


def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    input, other = ctx.saved_tensors
    of_input = of_other = None
    if ctx.needs_input_grad[0]:
        of_input = gradient_of_input(grad, input, other, ctx.backend, ctx.batch_invariant)
    if ctx.needs_input_grad[1]:
        of_other = gradient_of_other(grad, input, other, ctx.backend)
    return of_input, of_other


def gradient_of_input(
    grad: Tensor,
    input: Tensor,
    other: Tensor,
    backend: str,
    batch_invariant: bool = False,
    product_of: Multiply | None = None,
) -> Tensor:
    """The gradient of the first operand: grad @ other.mT, summed where it was broadcast.

    `product_of` is what multiplies; by default it is `multiply`.
    """
    product = (product_of or multiply)(grad, other.mT, backend, batch_invariant)
    return unbroadcast(product, input.shape, input.dtype, 1, backend)


def gradient_of_other(
    grad: Tensor, input: Tensor, other: Tensor, backend: str, product_of: Multiply | None = None
) -> Tensor:
    """The gradient of the second operand: input.mT @ grad, summed where it was broadcast.

    One matrix that multiplied a whole batch gets its gradient in one product: the rows of the batch
    are the rows of one matrix. So it is rounded once.
    """
    product_of = product_of or multiply
    if other.dim() == 2 and input.dim() > 2:
        return product_of(rows_of(input).mT, rows_of(grad), backend)
    product = product_of(input.mT, grad, backend)
    return unbroadcast(product, other.shape, other.dtype, 1, backend)


def tangent(ctx: Any, of_input: Tensor | None, of_other: Tensor | None) -> Tensor:
    input, other = ctx.saved_tensors
    parts, how = [], (ctx.backend, ctx.batch_invariant)
    if of_input is not None:
        parts.append(multiply(of_input, other, *how))
    if of_other is not None:
        parts.append(multiply(input, of_other, *how))
    return parts[0] if len(parts) == 1 else add(*parts, backend=ctx.backend)


def _batch(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    input, other, batch_invariant, backend = args
    first, second = align_batches((input, other), in_dims[:2])
    return multiply(first, second, backend, batch_invariant), 0


matmul_operator = Operator(
    "matmul(Tensor input, Tensor other, bool batch_invariant, str backend) -> Tensor",
    forward=_forward,
    fake=_empty_like_fake,
    save=_save,
    backward=gradients,
    jvp=tangent,
    vmap=_batch,
    whole=True,
    check=lambda input, other: check_operands("matmul", input=input, other=other),
)


def multiply(input: Tensor, other: Tensor, backend: str, batch_invariant: bool = False) -> Tensor:
    """input @ other, of at least two dimensions each, on a backend that is already chosen."""
    result: Tensor = matmul_operator(input, other, batch_invariant, backend)
    return result
