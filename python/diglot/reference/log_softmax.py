"""The logarithm of softmax along a dimension in plain PyTorch: the launchers of the backend
"torch", the oracle, later derivatives.
"""

from __future__ import annotations

import torch

from diglot.reference.compute_eps import compute_eps
from diglot.reference.softmax import max_and_log_sum
from diglot.reference.specs import Expected, OpSpec, Option, nbytes


def log_softmax_forward(
    input: torch.Tensor, dim: int, out: torch.Tensor, scratch: torch.Tensor | None
) -> str:
    """out = log_softmax(input), by PyTorch's own op."""
    if out.numel() > 0:
        out.copy_(torch.ops.aten._log_softmax(input.to(out.dtype), dim, False))
    return "aten"


def log_softmax_backward(
    grad_output: torch.Tensor,
    output: torch.Tensor,
    dim: int,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = grad_output - exp(output) · Σ grad_output, by PyTorch's own op."""
    if out.numel() > 0:
        arguments = (grad_output, output, dim, output.dtype)
        out.copy_(torch.ops.aten._log_softmax_backward_data(*arguments))
    return "aten"


def _wide(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Converted to the type of the computation."""
    return tuple(t if t.dtype == torch.float64 else t.float() for t in tensors)


def log_softmax_tangent(direction: torch.Tensor, output: torch.Tensor, dim: int) -> torch.Tensor:
    """The derivative of the output along a direction d of the input: d - Σ exp(y) · d."""
    d, y = _wide(direction, output)
    return (d - (y.exp() * d).sum(dim, True)).to(output.dtype)


def log_softmax_gradient_slope(
    grad_output: torch.Tensor,
    output: torch.Tensor,
    direction: torch.Tensor,
    dim: int,
    transposed: bool,
) -> torch.Tensor:
    """The derivative of grad_output - exp(output) · Σ grad_output by the output.

    Along a direction d, -exp(y) · d · Σg, which is symmetric. In float32 or wider, and
    differentiable to any order.
    """
    g, y, d = _wide(grad_output, output, direction)
    return -y.exp() * d * g.sum(dim, True)


def log_softmax_oracle(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """log_softmax(input), in float64."""
    top, log_sum = max_and_log_sum(input, dim)
    return (input.double() - top) - log_sum


def _expected(input: torch.Tensor, dim: int = -1) -> Expected:
    top, log_sum = max_and_log_sum(input, dim)

    def value(x: torch.Tensor, top: torch.Tensor, log_sum: torch.Tensor) -> torch.Tensor:
        return (x.double() - top) - log_sum

    # Three roundings: of x - max, of the sum, and of its logarithm. That of the sum is relative; it
    # includes a thread's, which adds up 32 elements one after the other.
    below = top - input.detach().double()
    allowance = compute_eps(input.dtype) * (4 + 2 * log_sum + below)
    tensors = (input, top, log_sum)
    allowance = allowance.nan_to_num(0.0, posinf=0.0)
    return Expected(value, tensors, {"input": input}, input.dtype, allowance)


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, dim: int = -1
) -> dict[str, Expected]:
    grad, y = grad_output.detach().double(), log_softmax_oracle(input.detach(), dim)
    total, magnitude = grad.sum(dim, True), grad.abs().sum(dim, True)

    def value(grad: torch.Tensor, y: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return grad.double() - y.exp() * total

    # The output is rounded to its type before it is differentiated. The exponential multiplies that
    # error by the output's size.
    info = torch.finfo(input.dtype)
    depth = y.clamp(min=-200).abs()
    relative = info.eps * depth + compute_eps(input.dtype) * (4 + 2 * depth)
    allowance = y.exp() * (relative * total.abs() + 4 * compute_eps(input.dtype) * magnitude)
    allowance = allowance + compute_eps(input.dtype) * grad.abs()
    shown = {"input": input, "grad_output": grad_output}
    tensors = (grad_output, y, total)
    allowance = allowance.nan_to_num(0.0, posinf=0.0)
    return {"input": Expected(value, tensors, shown, input.dtype, allowance)}


SPEC = OpSpec(
    name="log_softmax",
    inputs=("input",),
    options={"dim": Option(-1)},
    floating_only=True,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, **_: nbytes(grad_output) + 2 * nbytes(input),
)
