"""Addition with broadcasting and type promotion: the contract of the op."""

from __future__ import annotations

from typing import Any

import torch

from diglot.backends.runs import run, wrap_to_64_bits
from diglot.backends.selection import choose
from diglot.define.batching import elementwise
from diglot.define.direct import is_direct
from diglot.define.operator import Operator
from diglot.ops.broadcasting import align_batches, check_broadcast, empty_broadcast
from diglot.ops.checks import check_dtype, check_tensor
from diglot.ops.numbers import Number, check_factor, check_number, fixed
from diglot.ops.promotion import result_type
from diglot.ops.sum_to_shape import unbroadcast

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)


def add(
    input: torch.Tensor,
    other: torch.Tensor | Number,
    *,
    alpha: Number = 1,
    backend: str | None = None,
) -> torch.Tensor:
    r"""Adds with broadcasting and type promotion: input + alpha · other, as `torch.add`.

    Floating-point sums are computed in float32 (float64 for float64) and rounded once to the
    result's dtype. If `other` is a number, alpha · other is computed first, in float64. Integers
    wrap; for bool the sum is `or`.

    Args:
        input: tensor of any shape and strides. Its dtype is floating-point (up to 64 bits), integer
            (signed, or uint8) or bool.
        other: tensor that broadcasts with `input`, or a number; NumPy's scalars are numbers. A 0-d
            CPU tensor, in either place, may meet a tensor on any device. The call reads its value,
            so a CUDA graph repeats the value at the capture.
        alpha: factor of `other`, in the result's range (for uint8, from -255). Floating-point
            results take a real number, infinities and NaN included. Integer results take an
            integer, and bool results True, False or an integer.
        backend: "cuda", "triton", "torch" or "auto". By default `use_backend` decides, then the
            variable DIGLOT_BACKEND, then "auto".

    Returns:
        A tensor of the broadcast shape and the promoted dtype (`torch.result_type`), in the memory
        format of `torch.add`. Differentiable. Gradients are summed over broadcast dimensions on the
        same backend. On "cuda" and "triton" the order of these sums depends only on shapes, strides
        and alignment; on "torch" it is PyTorch's.

    Raises:
        TypeError: an operand is no tensor or number, or has an unsupported dtype; `alpha` is of the
            wrong kind.
        ValueError: shapes do not broadcast, tensors are on different devices, a number is out of
            range, or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    if isinstance(other, torch.Tensor):
        kind = _add.known(input, other) or _add.learn(input, other)
        dtype = kind.facts
        if dtype is None:
            return _add_across_devices(input, other, alpha, backend)
        if not kind.is_direct:  # otherwise the allocation of the sum checks it
            check_broadcast("add", input, other)
        # The passing check is inline: a call would cost a tenth of a microsecond.
        if type(alpha) is not int or alpha != 1:
            alpha = check_factor("add", "alpha", alpha, dtype)
        return kind.call(input, other, alpha, choose("add", kind.device, backend))
    check_tensor("add", "input", input)
    number = check_number("add", "other", other, "a torch.Tensor or a number")
    return _add_number(input, number, alpha, result_type(input, number), backend)


def _check(input: torch.Tensor, other: torch.Tensor | None = None) -> torch.dtype | None:
    """The dtype of the sum of two tensors; None if they are on two devices."""
    if other is None:  # a number
        return None
    check_tensor("add", "input", input)
    check_tensor("add", "other", other)
    if input.device != other.device:
        return None
    dtype = input.dtype if input.dtype == other.dtype else result_type(input, other)
    _check_dtypes(dtype, input, other)
    return dtype


def _add_number(
    input: torch.Tensor, other: Number, alpha: Number, dtype: torch.dtype, backend: str | None
) -> torch.Tensor:
    """input + alpha · other in `dtype`, the promoted type of `input` and the number."""
    _check_dtypes(dtype, input)
    if dtype != input.dtype:
        input = input.to(dtype)  # of a higher category than the tensor: torch converts too
    number = check_factor("add", "alpha", alpha, dtype) * other
    if dtype == torch.bool:
        number = bool(number)
    elif not dtype.is_floating_point:
        number = wrap_to_64_bits(number)
    chosen = choose("add", input.device, backend)
    return _add(input, None, number, chosen)


def _add_across_devices(
    input: torch.Tensor, other: torch.Tensor, alpha: Number, backend: str | None
) -> torch.Tensor:
    """The sum of a 0-d CPU tensor, in either place, and a tensor on another device.

    If nobody else needs to see the tensor, its value is read here. A copy to the device would wait
    for it, which is an error during the capture of a CUDA graph.
    """
    tensor, scalar = (input, other) if _is_host_scalar(other) else (other, input)
    if not _is_host_scalar(scalar):
        raise ValueError(
            f"add: input and other must be on one device, not on {input.device} and {other.device}"
        )
    if not is_direct(input, other) or (scalar.requires_grad and torch.is_grad_enabled()):
        moved = scalar.to(tensor.device)
        operands = (tensor, moved) if scalar is other else (moved, tensor)
        return add(*operands, alpha=alpha, backend=backend)
    dtype = result_type(input, other)
    _check_dtypes(dtype, input, other)
    value = scalar.to(dtype).item()
    if scalar is other:
        return _add_number(tensor, value, alpha, dtype, backend)
    if check_factor("add", "alpha", alpha, dtype) == 1:
        return _add_number(tensor, value, 1, dtype, backend)
    filled = torch.full((), value, dtype=dtype, device=tensor.device)  # a kernel, not a copy
    return add(filled, tensor, alpha=alpha, backend=backend)


def _is_host_scalar(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 0 and tensor.device.type == "cpu"


def _check_dtypes(result: torch.dtype, *tensors: torch.Tensor) -> None:
    for name, tensor in zip(("input", "other"), tensors, strict=False):
        if tensor.dtype not in DTYPES:
            check_dtype("add", name, tensor, DTYPES)
    if result not in DTYPES:
        raise TypeError(f"add: no kernel for a result of dtype {result}")


def _forward(
    input: torch.Tensor, other: torch.Tensor | None, alpha: Number, backend: str
) -> torch.Tensor:
    out = empty_broadcast("add", input, other)
    alpha = alpha if type(alpha) is int else fixed(alpha)
    run(backend, "add", "add_forward", input, other, alpha, out)
    return out


def _fake(
    input: torch.Tensor, other: torch.Tensor | None, alpha: Number, backend: str
) -> torch.Tensor:
    return empty_broadcast("add", input, other)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> tuple[()]:
    input, other, ctx.alpha, ctx.backend = inputs
    # The gradients need only shapes and dtypes, so nothing keeps the inputs alive.
    ctx.input = (input.shape, input.dtype)
    ctx.other = None if other is None else (other.shape, other.dtype)
    return ()


def _gradients(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, Any]:
    grad_input = grad_other = None
    if ctx.needs_input_grad[0]:
        shape, dtype = ctx.input
        grad_input = unbroadcast(grad_output, shape, dtype, 1, ctx.backend)
    if ctx.other is not None and ctx.needs_input_grad[1]:
        shape, dtype = ctx.other
        grad_other = unbroadcast(grad_output, shape, dtype, ctx.alpha, ctx.backend)
    return grad_input, grad_other


def _tangent(ctx: Any, of_input: Any, of_other: Any = None) -> torch.Tensor:
    if ctx.other is None:
        return of_input
    if of_other is None:  # not times alpha, which may be infinite
        return add(of_input, _zeros(ctx.other, of_input.device), backend=ctx.backend)
    if of_input is None:
        of_input = _zeros(ctx.input, of_other.device)
    return add(of_input, of_other, alpha=ctx.alpha, backend=ctx.backend)


def _zeros(kind: tuple[torch.Size, torch.dtype], device: torch.device) -> torch.Tensor:
    shape, dtype = kind
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def _batch(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    input, other, alpha, backend = args
    if other is None:
        return elementwise(operator, info, in_dims, *args)
    aligned = align_batches((input, other), in_dims[:2])
    return add(*aligned, alpha=alpha, backend=backend), 0


_add = Operator(
    "add(Tensor input, Tensor? other, Scalar alpha, str backend) -> Tensor",
    forward=_forward,
    fake=_fake,
    save=_save,
    backward=_gradients,
    jvp=_tangent,
    vmap=_batch,
    check=_check,
)
