"""Standardization over all elements in plain PyTorch: the launchers of the backend "torch", the
oracle, later derivatives.
"""

from __future__ import annotations

import torch

from diglot.reference.compute_eps import compute_eps
from diglot.reference.specs import Expected, OpSpec, Option, nbytes

EPS = 1e-5


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Converted to the type of the computation."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def standardize_forward(
    input: torch.Tensor,
    eps: float,
    blocks: int,
    statistics: torch.Tensor,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = (input - mean) · rstd, and mean and rstd."""
    if input.numel() > 0:
        x = _wide(input)
        # In two passes: a single one loses digits where the mean is far from zero.
        center = x.mean()
        center = center + (x - center).mean()
        variance = (x - center).square().mean()
        rstd = torch.rsqrt(variance + eps)
        statistics.copy_(torch.stack([center, rstd]))
        out.copy_((x - center) * rstd)
    return "aten"


def standardize_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    statistics: torch.Tensor,
    blocks: int,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """The gradient of the input, from the forward's mean and rstd."""
    if input.numel() > 0:
        mean, rstd = statistics
        out.copy_(_project(_wide(grad_output), (_wide(input) - mean) * rstd, rstd))
    return "aten"


def _project(grad: torch.Tensor, y: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
    """rstd (g - mean(g) - y mean(g y)): the derivative of y by the input, which is symmetric."""
    return rstd * (grad - grad.mean() - y * (grad * y).mean())


def standardize_gradient_slope(
    grad_output: torch.Tensor, input: torch.Tensor, direction: torch.Tensor, eps: float
) -> torch.Tensor:
    """The derivative of the input's gradient by the input, along a direction; it is symmetric.

    Let P be the derivative of y = standardize(x), and a and c the means of d·y and g·y. It is
    -rstd · (rstd · y · (mean(d·g) - mean(d) mean(g) - a c) + c P d + a P g),
    in float32 or wider, and differentiable to any order.
    """
    g, x, d = _wide(grad_output), _wide(input), _wide(direction)
    variance, mean = torch.var_mean(x, correction=0)
    rstd = torch.rsqrt(variance + eps)
    y = (x - mean) * rstd
    a, c = (d * y).mean(), (g * y).mean()
    curvature = y * ((d * g).mean() - d.mean() * g.mean() - a * c)
    result = -rstd * (rstd * curvature + c * _project(d, y, rstd) + a * _project(g, y, rstd))
    return result.to(input.dtype)


def _statistics(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    x = input.detach().double()
    if x.numel() == 0:
        return x.new_zeros(()), x.new_zeros(())
    # torch.var_mean adds in an order that loses more than float64 kernels do.
    mean = x.mean()
    mean = mean + (x - mean).mean()
    return mean, torch.rsqrt((x - mean).square().mean() + eps)


def standardize_oracle(input: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """(input - mean) / sqrt(variance + eps) over all elements, in float64."""
    mean, rstd = _statistics(input, eps)
    return (input.double() - mean) * rstd


def _expected(input: torch.Tensor, eps: float = EPS) -> Expected:
    mean, rstd = _statistics(input, eps)

    def value(x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
        return (x.double() - mean) * rstd

    # The rounding of the mean, and the relative errors of it and of the root.
    y = value(input.detach(), mean, rstd)
    allowance = 4 * compute_eps(input.dtype) * ((mean * rstd).abs() + y.abs() + 1)
    tensors = (input, mean, rstd)
    return Expected(value, tensors, {"input": input}, input.dtype, allowance.nan_to_num(0.0))


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, eps: float = EPS
) -> dict[str, Expected]:
    mean, rstd = _statistics(input, eps)
    g, y = grad_output.detach().double(), standardize_oracle(input.detach(), eps)
    n = max(input.numel(), 1)
    grad_mean, slope = g.sum() / n, (g * y).sum() / n

    def value(grad: torch.Tensor, x: torch.Tensor, *of: torch.Tensor) -> torch.Tensor:
        mean, rstd, grad_mean, slope = of
        return rstd * (grad.double() - grad_mean - (x.double() - mean) * rstd * slope)

    offset = (mean * rstd).abs() + 1
    size = g.abs() + g.abs().sum() / n + (y.abs() + offset) * ((g * y).abs().sum() / n)
    allowance = 8 * compute_eps(input.dtype) * rstd * offset * size
    shown = {"input": input, "grad_output": grad_output}
    tensors = (grad_output, input, mean, rstd, grad_mean, slope)
    return {"input": Expected(value, tensors, shown, input.dtype, allowance.nan_to_num(0.0))}


SPEC = OpSpec(
    name="standardize",
    inputs=("input",),
    options={"eps": Option(EPS)},
    floating_only=True,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, **_: nbytes(grad_output) + 2 * nbytes(input),
)
