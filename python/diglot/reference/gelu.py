"""GELU in plain PyTorch: the launchers of the backend "torch", the oracle, later derivatives."""

from __future__ import annotations

import math

import torch

from diglot.tools.specs import Expected, OpSpec, Option, nbytes

KAPPA = 0.044715


def gelu_forward(
    input: torch.Tensor, approximate: str, out: torch.Tensor, scratch: torch.Tensor | None
) -> str:
    """out = gelu(input), by PyTorch's own op."""
    torch.ops.aten.gelu.out(input, approximate=approximate, out=out)
    return "aten"


def gelu_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    approximate: str,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = grad_output · gelu'(input), by PyTorch's own op."""
    torch.ops.aten.gelu_backward.grad_input(
        grad_output, input, approximate=approximate, grad_input=out
    )
    return "aten"


def gelu_oracle(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu(input) in float64, accurate in the negative tail: neither form subtracts from one."""
    x = input.double()
    if approximate == "none":
        return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))
    return x * torch.sigmoid(2 * _tanh_argument(x))


def gelu_derivative_oracle(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu'(input) in float64."""
    x = input.double()
    if approximate == "none":
        return 0.5 * torch.erfc(-x * math.sqrt(0.5)) + x * _normal_density(x)
    upper, lower = torch.sigmoid(2 * _tanh_argument(x)), torch.sigmoid(-2 * _tanh_argument(x))
    # At large |x| the product is infinity times zero, and the term is zero.
    slope = torch.where(lower * upper == 0, 0, x * _tanh_argument_slope(x))
    return upper * (1 + 2 * slope * lower)


def gelu_second_derivative(input: torch.Tensor, approximate: str) -> torch.Tensor:
    """gelu''(input), in float32 or wider and differentiable to any order.

    Finite everywhere; 0, its limit, at infinities, where PyTorch's is NaN. NaN stays NaN.
    """
    x = input if input.dtype == torch.float64 else input.float()
    # Beyond 40 the exponential is zero even in float64, and its factor must not overflow.
    x = torch.where(x.abs() > 40, 40, x)
    if approximate == "none":
        return _normal_density(x) * (2 - x * x)
    # With t = tanh(u): d/dx [(1 + t)/2 + x/2·(1 - t²)·u'], where 1 - t² = 4·σ(2u)·σ(-2u) does not
    # cancel.
    argument = 2 * _tanh_argument(x)
    upper, lower = torch.sigmoid(argument), torch.sigmoid(-argument)
    slope = _tanh_argument_slope(x)
    curvature = math.sqrt(2 / math.pi) * 6 * KAPPA * x
    return 4 * upper * lower * (slope + x * (curvature / 2 - (upper - lower) * slope * slope))


def _normal_density(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _tanh_argument(x: torch.Tensor) -> torch.Tensor:
    return math.sqrt(2 / math.pi) * (x + KAPPA * x * x * x)


def _tanh_argument_slope(x: torch.Tensor) -> torch.Tensor:
    return math.sqrt(2 / math.pi) * (1 + 3 * KAPPA * x * x)


def _expected(input: torch.Tensor, approximate: str = "none") -> Expected:
    def value(x: torch.Tensor) -> torch.Tensor:
        return gelu_oracle(x, approximate)

    return Expected(value, (input,), {"input": input}, input.dtype)


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, approximate: str = "none"
) -> dict[str, Expected]:
    def value(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return grad.double() * gelu_derivative_oracle(x, approximate)

    shown = {"input": input, "grad_output": grad_output}
    return {"input": Expected(value, (grad_output, input), shown, input.dtype)}


SPEC = OpSpec(
    name="gelu",
    inputs=("input",),
    options={"approximate": Option("none", ("none", "tanh"))},
    floating_only=True,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, **_: nbytes(grad_output) + 2 * nbytes(input),
)
