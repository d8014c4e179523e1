"""Standardization over all elements: the contract of the op."""

from __future__ import annotations

from typing import Any

import torch

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.ops.autocast import autocast_to_float32
from diglot.ops.checks import check_dtype, check_tensor
from diglot.ops.global_memory import compute_dtype, dense_like
from diglot.ops.numbers import check_number, fixed
from diglot.ops.operator import Operator, is_direct
from diglot.reference.standardize import EPS, standardize_gradient_slope

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# The output, and its statistics: the mean and 1/sqrt(variance + eps), of the type that is computed
# in.
Outputs = tuple[torch.Tensor, torch.Tensor]


def standardize(
    input: torch.Tensor, eps: float = EPS, *, backend: str | None = None
) -> torch.Tensor:
    """Zero mean, unit variance over all elements, as `F.layer_norm(input, input.shape, eps=eps)`.

    (x - mean) / sqrt(variance + eps), where the variance is that of the elements at hand (divided
    by their number, not by one less), computed in float32 (float64 for float64) and rounded once.
    One launch: chunks are reduced to their moments, which are combined without cancellation (Chan,
    Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
    1979), all blocks meet at a barrier, and each maps what it has read. The result does not depend
    on the number of blocks, in no bit. It does on the order in which elements lie in memory, in
    which they are summed.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64. One that is
            not dense (a slice of another, or expanded) is copied first.
        eps: added to the variance.
        backend: as in `diglot.gelu`.

    Returns:
        A tensor of the shape, dtype and memory format of `input`; float32 of a float16 or bfloat16
        input under autocast, as PyTorch's layer_norm. All NaN if any element is NaN or infinite.
        Differentiable twice and more; the first derivative runs on the same backend, the later ones
        are made of PyTorch's operators. Under vmap, a launch for each sample.

    Raises:
        TypeError: `input` is not a dense floating-point tensor, or `eps` not a number.
        ValueError: an unknown `backend`.
        diglot.BackendUnavailable: the backend asked for cannot run on the tensor's device.
    """
    direct = is_direct(input)
    if not direct:
        check_tensor("standardize", "input", input)
    if input.dtype not in DTYPES:
        check_dtype("standardize", "input", input, DTYPES)
    if type(eps) is not float:
        eps = float(fixed(check_number("standardize", "eps", eps)))
    input = autocast_to_float32(input)
    chosen = choose("standardize", input.device, backend)
    if not direct:
        return _standardize.indirect(input, eps, chosen)[0]
    return _standardize.direct(input.requires_grad, input, eps, chosen)[0]


def _forward(input: torch.Tensor, eps: float, backend: str) -> Outputs:
    out, statistics = outputs = _like_input(input)
    if input.numel() == 0:
        statistics.fill_(torch.nan)
    input, name = dense_like(input, out), "standardize_forward"
    run(backend, "standardize", name, input, eps, 0, statistics, out)
    return outputs


def _backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    statistics: torch.Tensor,
    eps: float,
    backend: str,
) -> torch.Tensor:
    if grad_output.shape != input.shape or grad_output.dtype != input.dtype:
        raise ValueError(
            "standardize_backward: grad_output must have the shape and dtype of input, "
            f"{tuple(input.shape)} and {input.dtype}, not {tuple(grad_output.shape)} and "
            f"{grad_output.dtype}"
        )
    out = torch.empty_like(input)
    grad_output, input = dense_like(grad_output, out), dense_like(input, out)
    arguments = (grad_output, input, statistics, 0, out)
    run(backend, "standardize", "standardize_backward", *arguments)
    return out


def _like_input(input: torch.Tensor, *_: Any) -> Outputs:
    statistics = input.new_empty(2, dtype=compute_dtype(input.dtype))
    return torch.empty_like(input), statistics


def _like_second(_grad_output: torch.Tensor, input: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(input)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    input, ctx.eps, ctx.backend = inputs
    ctx.save_for_backward(input, output[1])
    ctx.save_for_forward(input, output[1])


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.eps, ctx.backend = inputs
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _call_backward(grad_output: torch.Tensor, ctx: Any, *saved: torch.Tensor) -> torch.Tensor:
    differentiable = grad_output.requires_grad or saved[0].requires_grad
    return _standardize_backward(differentiable, grad_output, *saved, ctx.eps, ctx.backend)


def _gradient(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor]:
    return (_call_backward(grad_output, ctx, *ctx.saved_tensors),)


def _tangent(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    return _gradient(ctx, tangent)[0]  # the derivative is symmetric


# The statistics are those of the input: its derivatives hold theirs, and they have none.


def _gradients_of_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    grad_output, *saved = ctx.saved_tensors
    return (
        _call_backward(grad, ctx, *saved),
        standardize_gradient_slope(grad_output, saved[0], grad, ctx.eps),
        None,
    )


def _tangent_of_backward(ctx: Any, *tangents: torch.Tensor | None) -> torch.Tensor:
    grad_output, *saved = ctx.saved_tensors
    of_grad_output, of_input = tangents[:2]
    result = torch.zeros_like(saved[0])
    if of_grad_output is not None:
        result = _call_backward(of_grad_output, ctx, *saved)
    if of_input is not None:
        result = result + standardize_gradient_slope(grad_output, saved[0], of_input, ctx.eps)
    return result


_standardize = Operator(
    "standardize(Tensor input, float eps, str backend) -> (Tensor, Tensor)",
    forward=_forward,
    fake=_like_input,
    setup_context=_save,
    backward=_gradient,
    jvp=_tangent,
    tensors=1,
    opaque=True,
)
_standardize_backward = Operator(
    "standardize_backward(Tensor grad_output, Tensor input, Tensor statistics, float eps, "
    "str backend) -> Tensor",
    forward=_backward,
    fake=_like_second,
    setup_context=_save_inputs,
    backward=_gradients_of_backward,
    jvp=_tangent_of_backward,
    tensors=3,
    opaque=True,
)
