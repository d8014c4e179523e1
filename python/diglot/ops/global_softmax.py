"""Softmax over all elements: the contract of the op."""

from __future__ import annotations

from typing import Any

import torch

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.ops.autocast import autocast_to_float32
from diglot.ops.checks import check_dtype, check_tensor
from diglot.ops.global_memory import dense_like
from diglot.ops.operator import Operator, is_direct
from diglot.reference.global_softmax import softmax_gradient_slope

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def global_softmax(input: torch.Tensor, *, backend: str | None = None) -> torch.Tensor:
    """Applies softmax over all elements, as `torch.softmax(input.flatten(), 0).view_as(input)`.

    exp(x - max) / sum(exp(x - max)), computed in float32 (float64 for float64) and rounded once.
    One launch: chunks are reduced to a maximum and a sum (Milakov and Gimelshein, "Online
    normalizer calculation for softmax", 2018, arXiv:1805.02867), all blocks meet at a barrier, and
    each maps what it has read. The result does not depend on the number of blocks, in no bit. It
    does on the order in which elements lie in memory, in which they are summed.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64. One that is
            not dense (a slice of another, or expanded) is copied first.
        backend: as in `diglot.gelu`.

    Returns:
        A tensor of the shape, dtype and memory format of `input`; float32 of a float16 or bfloat16
        input under autocast, as PyTorch's softmax. All NaN if any element is NaN or +inf, or all
        are -inf. Differentiable twice and more; the first derivative runs on the same backend, the
        later ones are made of PyTorch's operators. Under vmap, a launch for each sample.

    Raises:
        TypeError: `input` is not a dense floating-point tensor.
        ValueError: an unknown `backend`.
        diglot.BackendUnavailable: the backend asked for cannot run on the tensor's device.
    """
    direct = is_direct(input)
    if not direct:
        check_tensor("global_softmax", "input", input)
    if input.dtype not in DTYPES:
        check_dtype("global_softmax", "input", input, DTYPES)
    input = autocast_to_float32(input)
    chosen = choose("global_softmax", input.device, backend)
    if not direct:
        return _softmax.indirect(input, chosen)
    return _softmax.direct(input.requires_grad, input, chosen)


def _forward(input: torch.Tensor, backend: str) -> torch.Tensor:
    out = torch.empty_like(input)
    input = dense_like(input, out)
    run(backend, "global_softmax", "global_softmax_forward", input, 0, out)
    return out


def _backward(grad_output: torch.Tensor, output: torch.Tensor, backend: str) -> torch.Tensor:
    if grad_output.shape != output.shape or grad_output.dtype != output.dtype:
        raise ValueError(
            "global_softmax_backward: grad_output must have the shape and dtype of output, "
            f"{tuple(output.shape)} and {output.dtype}, not {tuple(grad_output.shape)} and "
            f"{grad_output.dtype}"
        )
    out = torch.empty_like(output)
    grad_output, output = dense_like(grad_output, out), dense_like(output, out)
    name = "global_softmax_backward"
    run(backend, "global_softmax", name, grad_output, output, 0, out)
    return out


def _like_input(input: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(input)


def _like_output(_grad_output: torch.Tensor, output: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(output)


def _save_output(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.backend = inputs[-1]
    ctx.save_for_backward(output)
    ctx.save_for_forward(output)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.backend = inputs
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _call_backward(grad_output: torch.Tensor, output: torch.Tensor, backend: str) -> torch.Tensor:
    differentiable = grad_output.requires_grad or output.requires_grad
    return _softmax_backward(differentiable, grad_output, output, backend)


def _gradient(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor]:
    (output,) = ctx.saved_tensors
    return (_call_backward(grad_output, output, ctx.backend),)


def _tangent(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    return _gradient(ctx, tangent)[0]  # the derivative is symmetric


def _gradients_of_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    grad_output, output = ctx.saved_tensors
    return (
        _call_backward(grad, output, ctx.backend),
        softmax_gradient_slope(grad_output, output, grad, transposed=True),
    )


def _tangent_of_backward(ctx: Any, *tangents: torch.Tensor | None) -> torch.Tensor:
    grad_output, output = ctx.saved_tensors
    of_grad_output, of_output = tangents
    result = torch.zeros_like(output)
    if of_grad_output is not None:
        result = _call_backward(of_grad_output, output, ctx.backend)
    if of_output is not None:
        result = result + softmax_gradient_slope(grad_output, output, of_output)
    return result


_softmax = Operator(
    "global_softmax(Tensor input, str backend) -> Tensor",
    forward=_forward,
    fake=_like_input,
    setup_context=_save_output,
    backward=_gradient,
    jvp=_tangent,
    tensors=1,
    opaque=True,
)
_softmax_backward = Operator(
    "global_softmax_backward(Tensor grad_output, Tensor output, str backend) -> Tensor",
    forward=_backward,
    fake=_like_output,
    setup_context=_save_inputs,
    backward=_gradients_of_backward,
    jvp=_tangent_of_backward,
    tensors=2,
    opaque=True,
)
