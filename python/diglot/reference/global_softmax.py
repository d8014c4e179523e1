"""Softmax over all elements in plain PyTorch: the launchers of the backend "torch", the oracle,
later derivatives.
"""

from __future__ import annotations

import torch

from diglot.reference.compute_eps import compute_eps
from diglot.reference.memory_order import in_memory_order
from diglot.reference.specs import Expected, OpSpec, nbytes


def global_softmax_forward(
    input: torch.Tensor, blocks: int, out: torch.Tensor, scratch: torch.Tensor | None
) -> str:
    """out = softmax(input), by PyTorch's own op; both lie in one dense order."""
    if input.numel() > 0:
        torch.ops.aten._softmax.out(in_memory_order(input), 0, False, out=in_memory_order(out))
    return "aten"


def global_softmax_backward(
    grad_output: torch.Tensor,
    output: torch.Tensor,
    blocks: int,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = output · (grad_output - Σ grad_output · output), by PyTorch's own op."""
    if output.numel() > 0:
        torch.ops.aten._softmax_backward_data.out(
            in_memory_order(grad_output),
            in_memory_order(output),
            0,
            output.dtype,
            grad_input=in_memory_order(out),
        )
    return "aten"


def softmax_gradient_slope(
    grad_output: torch.Tensor,
    output: torch.Tensor,
    direction: torch.Tensor,
    transposed: bool,
) -> torch.Tensor:
    """The derivative of output · (grad_output - Σ grad_output · output) by the output.

    Along a direction d, d · (g - Σgy) - y · Σgd; transposed, applied to a gradient d, with
    - g · Σdy instead of the last term. In float32 or wider, and differentiable to any order.
    """
    dtype = output.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    g, y, d = (tensor.to(wide) for tensor in (grad_output, output, direction))
    outer, inner = (g, y) if transposed else (y, g)
    return (d * (g - (g * y).sum()) - outer * (inner * d).sum()).to(dtype)


def _max_and_log_sum(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum, and the logarithm of the sum of exp(x - max), in float64."""
    x = input.detach().double()
    if x.numel() == 0:
        return x.new_zeros(()), x.new_zeros(())
    return x.max(), (x - x.max()).exp().sum().log()


def global_softmax_oracle(input: torch.Tensor) -> torch.Tensor:
    """softmax(input) over all elements, in float64."""
    top, log_sum = _max_and_log_sum(input)
    return ((input.double() - top) - log_sum).exp()


def _expected(input: torch.Tensor) -> Expected:
    top, log_sum = _max_and_log_sum(input)

    def value(x: torch.Tensor, top: torch.Tensor, log_sum: torch.Tensor) -> torch.Tensor:
        return ((x.double() - top) - log_sum).exp()

    # The rounding of x - max, which the exponential multiplies by its size, and of the sum.
    below = (input.detach().double() - top).clamp(min=-200)
    allowance = compute_eps(input.dtype) * (2 - below) * value(input.detach(), top, log_sum)
    tensors = (input, top, log_sum)
    return Expected(value, tensors, {"input": input}, input.dtype, allowance.nan_to_num(0.0))


def _expected_gradients(grad_output: torch.Tensor, input: torch.Tensor) -> dict[str, Expected]:
    grad, y = grad_output.detach().double(), global_softmax_oracle(input.detach())
    total, magnitude = (grad * y).sum(), (grad * y).abs().sum()

    def value(grad: torch.Tensor, y: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return y * (grad.double() - total)

    # The output is rounded to its type before it is differentiated, and then terms cancel.
    eps = torch.finfo(input.dtype).eps
    x = input.detach().double()
    below = (x - x.max()).clamp(min=-200) if x.numel() else x
    relative = eps + compute_eps(input.dtype) * (4 - below)
    tiny = torch.finfo(input.dtype).tiny
    worst = relative.max() if x.numel() else 0.0
    lost = tiny * grad.abs().sum()  # outputs below the least normal number
    allowance = (y * relative + tiny) * (grad.abs() + total.abs()) + y * (worst * magnitude + lost)
    shown = {"input": input, "grad_output": grad_output}
    tensors = (grad_output, y, total)
    return {"input": Expected(value, tensors, shown, input.dtype, allowance.nan_to_num(0.0))}


SPEC = OpSpec(
    name="global_softmax",
    inputs=("input",),
    floating_only=True,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, **_: nbytes(grad_output) + 2 * nbytes(input),
)
