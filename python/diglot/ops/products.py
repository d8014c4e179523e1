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

from diglot.backends.batch_invariance import choose_invariant, declare_invariant, hold_rows
from diglot.backends.needs import prefer
from diglot.backends.runs import run
from diglot.backends.selection import BackendUnavailable, choose
from diglot.define.operator import Operator
from diglot.ops.add import add
from diglot.ops.broadcasting import align_batches
from diglot.ops.checks import check_floating
from diglot.ops.sum_to_shape import unbroadcast
from diglot.reference.matmul import rows_of

Multiply = Callable[..., Tensor]  # of two operands, and whether rows of the first are held
# "auto" takes PyTorch's products: diglot's are slower at some shapes (docs/products.md).
_find_precision: Any = torch._C._get_fp32_precision_getter  # type: ignore[attr-defined]
AUTO_ORDER = ("torch", "cuda", "triton")
_PRECISE = "{}, of a precision"  # an op's name, where a call gives one
for _op in ("matmul", "linear", "addmm", "bmm", "baddbmm", "mlp"):
    prefer(_op, AUTO_ORDER)
    prefer(_PRECISE.format(_op), ("cuda", "triton", "torch"))
for _op in ("matmul", "linear", "addmm", "bmm", "baddbmm"):
    declare_invariant(_op)

PRECISIONS = ("ieee", "tf32")
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


def autocast(
    op: str, *tensors: Tensor | None, out_dtype: torch.dtype | None = None
) -> list[Tensor | None]:
    """Tensors in autocast's dtype, as PyTorch's products take them. It leaves float64 as it is, and
    all tensors of a call with `out_dtype`.

    Raises:
        TypeError: their dtypes still differ.
    """
    first = next(tensor for tensor in tensors if tensor is not None)
    if out_dtype is not None:
        for tensor in tensors:
            if tensor is not None and tensor.dtype != first.dtype:
                raise TypeError(
                    f"{op}: autocast casts no operands of a call with out_dtype, so they must have "
                    f"one dtype, not {first.dtype} and {tensor.dtype}"
                )
        return list(tensors)
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


def check_out_dtype(op: str, dtype: torch.dtype, out_dtype: torch.dtype | None) -> None:
    """Raises TypeError unless products of a dtype may have results of `out_dtype`."""
    if out_dtype in (None, dtype):
        return
    if out_dtype != torch.float32 or dtype not in (torch.float16, torch.bfloat16):
        raise TypeError(
            f"{op}: out_dtype must be {dtype}, the operands', or torch.float32 if they are "
            f"torch.float16 or torch.bfloat16, not {out_dtype}"
        )


def check_precision(op: str, precision: str | None) -> None:
    """Raises ValueError unless it names a precision, or is None."""
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"{op}: precision must be None or one of {PRECISIONS}, not {precision!r}")


def choose_product(
    op: str,
    dtype: torch.dtype,
    device: torch.device,
    backend: str | None,
    precision: str | None,
    batch_invariant: bool | None = None,
) -> str:
    """The backend that runs a product of operands of a dtype. With a precision of float32 on a GPU
    it is not PyTorch, whose products have no such argument.

    Args:
        batch_invariant: None: the op has no such argument.

    Raises:
        ValueError: `precision` is unknown, or `backend` is.
        BackendUnavailable: the requested backend cannot run the call.
    """
    check_precision(op, precision)
    if precision is not None and dtype == torch.float32 and device.type == "cuda":
        chosen = choose(_PRECISE.format(op), device, backend)
        if chosen == "torch":
            raise BackendUnavailable(
                f"{op}: precision={precision!r} needs the backend 'cuda' or 'triton'; PyTorch's "
                f"products know only switches, torch.backends.cuda.matmul.fp32_precision"
            )
        return chosen
    if batch_invariant is None:
        return choose(op, device, backend)
    return choose_invariant(op, device, backend, batch_invariant)


def precision_of(operand: Tensor, precision: str | None) -> str:
    """The precision of products of an operand's dtype, "ieee" or "tf32": the call's own, or what
    PyTorch's switches say now, `torch.backends.cuda.matmul.fp32_precision` and those that set it.

    A launcher gets it, and its plans' keys have it, so that a switch changes the next call.
    """
    if operand.dtype != torch.float32:
        return "ieee"
    if precision is not None:
        return precision
    # Behind that attribute, which takes 2 microseconds to read.
    return "tf32" if _find_precision("cuda", "matmul") == "tf32" else "ieee"


def _empty(input: Tensor, other: Tensor, out_dtype: torch.dtype | None, *_: Any) -> Tensor:
    return input.new_empty(product_shape(input, other), dtype=out_dtype)


def _forward(
    input: Tensor,
    other: Tensor,
    out_dtype: torch.dtype | None,
    batch_invariant: bool,
    precision: str | None,
    backend: str,
) -> Tensor:
    dtype = input.dtype if out_dtype is None else out_dtype
    out = torch.empty(product_shape(input, other), dtype=dtype, device=input.device)
    input, is_held = hold_rows(input, batch_invariant, backend)
    how = is_held, precision_of(input, precision)
    run(backend, "matmul", "matmul_forward", input, other, *how, out)
    return out


def save_operands(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, Tensor]:
    input, other, ctx.out_dtype, ctx.batch_invariant, ctx.precision, ctx.backend = inputs
    return input, other


def multiply_like(ctx: Any) -> Multiply:
    """What multiplies on the backend, and in the precision, of a context's call."""

    def multiply_so(input: Tensor, other: Tensor, batch_invariant: bool = False) -> Tensor:
        return multiply(input, other, ctx.backend, batch_invariant, ctx.precision)

    return multiply_so


def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    input, other = ctx.saved_tensors
    grad = grad.to(input.dtype)  # of a wide result
    of_input = of_other = None
    if ctx.needs_input_grad[0]:
        of_input = gradient_of_input(ctx, grad, input, other, multiply_like(ctx))
    if ctx.needs_input_grad[1]:
        of_other = gradient_of_other(ctx, grad, input, other, multiply_like(ctx))
    return of_input, of_other


def gradient_of_input(
    ctx: Any, grad: Tensor, input: Tensor, other: Tensor, product_of: Multiply
) -> Tensor:
    """The gradient of the first operand: grad @ other.mT, summed where it was broadcast.

    `product_of` is what multiplies.
    """
    product = product_of(grad, other.mT, ctx.batch_invariant)
    return unbroadcast(product, input.shape, input.dtype, 1, ctx.backend)


def gradient_of_other(
    ctx: Any, grad: Tensor, input: Tensor, other: Tensor, product_of: Multiply
) -> Tensor:
    """The gradient of the second operand: input.mT @ grad, summed where it was broadcast.

    One matrix that multiplied a whole batch gets its gradient in one product: the rows of the batch
    are the rows of one matrix. So it is rounded once.
    """
    if other.dim() == 2 and input.dim() > 2:
        return product_of(rows_of(input).mT, rows_of(grad))
    product = product_of(input.mT, grad)
    return unbroadcast(product, other.shape, other.dtype, 1, ctx.backend)


def tangent(ctx: Any, of_input: Tensor | None, of_other: Tensor | None) -> Tensor:
    input, other = ctx.saved_tensors
    parts, how = [], (ctx.backend, ctx.batch_invariant, ctx.precision, ctx.out_dtype)
    if of_input is not None:
        parts.append(multiply(of_input, other, *how))
    if of_other is not None:
        parts.append(multiply(input, of_other, *how))
    return parts[0] if len(parts) == 1 else add(*parts, backend=ctx.backend)


def batch_product(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    input, other, out_dtype, batch_invariant, precision, backend = args
    first, second = align_batches((input, other), in_dims[:2])
    return multiply(first, second, backend, batch_invariant, precision, out_dtype), 0


matmul_operator = Operator(
    "matmul(Tensor input, Tensor other, ScalarType? out_dtype, bool batch_invariant, "
    "str? precision, str backend) -> Tensor",
    forward=_forward,
    fake=_empty,
    save=save_operands,
    backward=gradients,
    jvp=tangent,
    vmap=batch_product,
    whole=True,
    check=lambda input, other: check_operands("matmul", input=input, other=other),
)


def multiply(
    input: Tensor,
    other: Tensor,
    backend: str,
    batch_invariant: bool = False,
    precision: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """input @ other, of at least two dimensions each, on a backend that is already chosen."""
    result: Tensor = matmul_operator(input, other, out_dtype, batch_invariant, precision, backend)
    return result
