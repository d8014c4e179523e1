"""Softmax along a dimension in plain PyTorch: the launchers of the backend "torch", the oracle,
later derivatives.
"""

from __future__ import annotations

import torch

from diglot.reference.compute_eps import compute_eps
from diglot.reference.specs import Expected, OpSpec, Option, nbytes


def softmax_forward(
    input: torch.Tensor, dim: int, out: torch.Tensor, scratch: torch.Tensor | None
) -> str:
    """out = softmax(input), by PyTorch's own op."""
    if out.numel() > 0:
        out.copy_(torch.ops.aten._softmax(input.to(out.dtype), dim, False))
    return "aten"


def softmax_backward(
    grad_output: torch.Tensor,
    output: torch.Tensor,
    dim: int,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = output · (grad_output - Σ grad_output · output), by PyTorch's own op."""
    if out.numel() > 0:
        arguments = (grad_output, output, dim, output.dtype)
        out.copy_(torch.ops.aten._softmax_backward_data(*arguments))
    return "aten"


def softmax_gradient_slope(
    grad_output: torch.Tensor,
    output: torch.Tensor,
    direction: torch.Tensor,
    dim: int,
    transposed: bool,
) -> torch.Tensor:
    """The derivative of output · (grad_output - Σ grad_output · output) by the output.

    Along a direction d, d · (g - Σgy) - y · Σgd; transposed, applied to a gradient d, with
    - g · Σdy instead of the last term. In float32 or wider, and differentiable to any order.
    """
    wide = torch.float64 if output.dtype == torch.float64 else torch.float32
    g, y, d = (tensor.to(wide) for tensor in (grad_output, output, direction))
    outer, inner = (g, y) if transposed else (y, g)
    return d * (g - (g * y).sum(dim, True)) - outer * (inner * d).sum(dim, True)


def max_and_log_sum(input: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum of each row, and the logarithm of the sum of exp(x - max), in float64."""
    x = input.detach().double()
    if x.numel() == 0:
        return x, x
    top = x.amax(dim, True)
    return top, (x - top).exp().sum(dim, True).log()


def softmax_oracle(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """softmax(input), in float64."""
    top, log_sum = max_and_log_sum(input, dim)
    return ((input.double() - top) - log_sum).exp()


def _expected(input: torch.Tensor, dim: int = -1) -> Expected:
    top, log_sum = max_and_log_sum(input, dim)

    def value(x: torch.Tensor, top: torch.Tensor, log_sum: torch.Tensor) -> torch.Tensor:
        return ((x.double() - top) - log_sum).exp()

    # The rounding of x - max, which the exponential multiplies by its size, and of the sum, where a
    # thread adds up 32 elements one after the other.
    below = (input.detach().double() - top).clamp(min=-200)
    allowance = compute_eps(input.dtype) * (4 - below) * value(input.detach(), top, log_sum)
    tensors = (input, top, log_sum)
    return Expected(value, tensors, {"input": input}, input.dtype, allowance.nan_to_num(0.0))


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, dim: int = -1
) -> dict[str, Expected]:
    grad, y = grad_output.detach().double(), softmax_oracle(input.detach(), dim)
    total, magnitude = (grad * y).sum(dim, True), (grad * y).abs().sum(dim, True)

    def value(grad: torch.Tensor, y: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return y * (grad.double() - total)

    # The output is rounded to its type before it is differentiated, and then terms cancel.
    x, info = input.detach().double(), torch.finfo(input.dtype)
    if x.numel() == 0:
        allowance = y
    else:
        below = (x - x.amax(dim, True)).clamp(min=-200)
        relative = info.eps + compute_eps(input.dtype) * (4 - below)
        lost = info.tiny * grad.abs().sum(dim, True)  # outputs below the least normal number
        worst = relative.amax(dim, True) * magnitude + lost
        allowance = (y * relative + info.tiny) * (grad.abs() + total.abs()) + y * worst
    shown = {"input": input, "grad_output": grad_output}
    tensors = (grad_output, y, total)
    return {"input": Expected(value, tensors, shown, input.dtype, allowance.nan_to_num(0.0))}


SPEC = OpSpec(
    name="softmax",
    inputs=("input",),
    options={"dim": Option(-1)},
    floating_only=True,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, **_: nbytes(grad_output) + 2 * nbytes(input),
)
