"""GELU, the Gaussian error linear unit: the contract of the op."""

from __future__ import annotations

from typing import Any

import torch

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.ops.checks import check_dtype, check_tensor
from diglot.ops.operator import Operator, is_direct
from diglot.reference.gelu import gelu_second_derivative

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
APPROXIMATIONS = ("none", "tanh")


def gelu(
    input: torch.Tensor, approximate: str = "none", *, backend: str | None = None
) -> torch.Tensor:
    r"""Applies the Gaussian error linear unit to every element, as `torch.nn.functional.gelu`.

    With `approximate="none"`, x·Φ(x), where Φ is the distribution function of the standard normal
    distribution; with `"tanh"`, x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))). (Hendrycks and Gimpel,
    "Gaussian Error Linear Units", 2016, arXiv:1606.08415.) Computed in float32 (float64 for
    float64) and rounded once; the negative tail keeps its relative accuracy, which the formula
    x/2·(1 + erf(x/√2)) loses by cancellation.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64.
        approximate: "none" or "tanh".
        backend: "cuda", "triton", "torch" or "auto"; by default what `use_backend`, the variable
            DIGLOT_BACKEND or "auto" say.

    Returns:
        A tensor of the shape, dtype and memory format of `input`. NaN gives NaN, as do -inf and the
        first derivative at both infinities, in PyTorch too. Differentiable twice and more; the
        first derivative runs on the same backend, the second and later ones are made of PyTorch's
        operators, finite for every finite number, and 0 at the infinities.

    Raises:
        TypeError: `input` is not a dense floating-point tensor.
        ValueError: an unknown `approximate` or `backend`.
        diglot.BackendUnavailable: the backend asked for cannot run on the tensor's device.
    """
    direct = is_direct(input)
    if not direct:
        check_tensor("gelu", "input", input)
    # The other checks are inline while they pass: a call costs a tenth of a microsecond.
    if input.dtype not in DTYPES:
        check_dtype("gelu", "input", input, DTYPES)
    if approximate not in APPROXIMATIONS:
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', not {approximate!r}")
    chosen = choose("gelu", input.device, backend)
    if not direct:
        return _gelu.indirect(input, approximate, chosen)
    if input.requires_grad and torch.is_grad_enabled():
        return _gelu.recorded(input, approximate, chosen)
    return _forward(input, approximate, chosen)


def _forward(input: torch.Tensor, approximate: str, backend: str) -> torch.Tensor:
    out = torch.empty_like(input)
    run(backend, "gelu", "gelu_forward", input, approximate, out)
    return out


def _backward(
    grad_output: torch.Tensor, input: torch.Tensor, approximate: str, backend: str
) -> torch.Tensor:
    if grad_output.shape != input.shape or grad_output.dtype != input.dtype:
        raise ValueError(
            "gelu_backward: grad_output must have the shape and dtype of input, "
            f"{tuple(input.shape)} and {input.dtype}, not {tuple(grad_output.shape)} and "
            f"{grad_output.dtype}"
        )
    out = torch.empty_like(input)
    run(backend, "gelu", "gelu_backward", grad_output, input, approximate, out)
    return out


def _like_input(input: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(input)


def _like_second(_grad_output: torch.Tensor, input: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(input)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.approximate, ctx.backend = inputs
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _call_backward(
    grad_output: torch.Tensor, input: torch.Tensor, approximate: str, backend: str
) -> torch.Tensor:
    differentiable = grad_output.requires_grad or input.requires_grad
    return _gelu_backward(differentiable, grad_output, input, approximate, backend)


def _gradient(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor]:
    (input,) = ctx.saved_tensors
    return (_call_backward(grad_output, input, ctx.approximate, ctx.backend),)


def _tangent(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    return _gradient(ctx, tangent)[0]


def _gradients_of_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    grad_output, input = ctx.saved_tensors
    second = gelu_second_derivative(input, ctx.approximate)
    return (
        _call_backward(grad, input, ctx.approximate, ctx.backend),
        (second * grad * grad_output).to(input.dtype),
    )


def _tangent_of_backward(ctx: Any, *tangents: torch.Tensor | None) -> torch.Tensor:
    grad_output, input = ctx.saved_tensors
    of_grad_output, of_input = tangents
    result = torch.zeros_like(input)
    if of_grad_output is not None:
        result = _call_backward(of_grad_output, input, ctx.approximate, ctx.backend)
    if of_input is not None:
        second = gelu_second_derivative(input, ctx.approximate)
        result = result + (second * of_input * grad_output).to(input.dtype)
    return result


def _batch(info: Any, in_dims: tuple[Any, ...], input: torch.Tensor, *rest: Any) -> Any:
    approximate, backend = rest
    return gelu(input, approximate, backend=backend), in_dims[0]


def _batch_backward(
    info: Any,
    in_dims: tuple[Any, ...],
    grad_output: torch.Tensor,
    input: torch.Tensor,
    approximate: str,
    backend: str,
) -> Any:
    grad_output, input = (
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip((grad_output, input), in_dims[:2], strict=True)
    )
    return _call_backward(grad_output, input, approximate, backend), 0


_gelu = Operator(
    "gelu(Tensor input, str approximate, str backend) -> Tensor",
    forward=_forward,
    fake=_like_input,
    setup_context=_save,
    backward=_gradient,
    jvp=_tangent,
    vmap=_batch,
    tensors=1,
)
_gelu_backward = Operator(
    "gelu_backward(Tensor grad_output, Tensor input, str approximate, str backend) -> Tensor",
    forward=_backward,
    fake=_like_second,
    setup_context=_save,
    backward=_gradients_of_backward,
    jvp=_tangent_of_backward,
    vmap=_batch_backward,
    tensors=2,
)
