"""The mean of a normal density at neighbouring points in plain PyTorch: the launchers of the
backend "torch", the oracle, later derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import torch

from diglot.reference.compensated import (
    TwoPart,
    exp_negative,
    two_product,
    two_quotient,
    two_sum,
)
from diglot.reference.compute_eps import compute_eps
from diglot.reference.specs import Expected, OpSpec, Option, nbytes

TERMS = 22
FLOAT64_ULP = 16.0  # kernels and the oracle are each within 5 of the exact values
PEAK = 1 / math.sqrt(2 * math.pi)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Converted to the type of the computation."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _distances(x: torch.Tensor, mean: float, std: float, terms: int) -> Iterator[torch.Tensor]:
    """How many standard deviations each of the points around x is from the mean."""
    distance = x - mean
    for i in range(terms):
        yield (distance + (i - terms // 2) / 100) / std


def _density(x: torch.Tensor, mean: float, std: float, terms: int) -> torch.Tensor:
    total = torch.zeros_like(x)
    for z in _distances(x, mean, std, terms):
        total = total + torch.exp(-0.5 * z * z)
    return total * (PEAK / std / terms)


def _slope(
    x: torch.Tensor, mean: float, std: float, terms: int, magnitude: bool = False
) -> torch.Tensor:
    """Its derivative, or the sum of the magnitudes of its terms."""
    total = torch.zeros_like(x)
    for z in _distances(x, mean, std, terms):
        # Where it is infinite, the density is zero, and so is the product.
        factor = z.abs().clamp(max=1e3) if magnitude else -z.clamp(-1e3, 1e3)
        total = total + torch.exp(-0.5 * z * z) * factor
    return total * (PEAK / std / terms) / std


def gaussian_pdf_forward(
    input: torch.Tensor,
    mean: float,
    std: float,
    terms: int,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = the mean of the density at `terms` points around input."""
    out.copy_(_density(_wide(input), mean, std, terms))
    return "aten"


def gaussian_pdf_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    mean: float,
    std: float,
    terms: int,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = grad_output times the derivative of that mean."""
    out.copy_(_wide(grad_output) * _slope(_wide(input), mean, std, terms))
    return "aten"


def gaussian_pdf_oracle(
    input: torch.Tensor, mean: float = 0.0, std: float = 1.0, terms: int = TERMS
) -> torch.Tensor:
    """The mean of the density, to a few ulp of float64, in the far tail too."""
    x = input.double()
    total = torch.zeros_like(x)
    for _, exponential in _exact_terms(x, mean, std, terms):
        total = total + exponential
    return total * (PEAK / std / terms)


def gaussian_pdf_derivative_oracle(
    input: torch.Tensor, mean: float = 0.0, std: float = 1.0, terms: int = TERMS
) -> torch.Tensor:
    """Its derivative, each of its terms to a few ulp of float64."""
    x = input.double()
    total = torch.zeros_like(x)
    for z, exponential in _exact_terms(x, mean, std, terms):
        # Where it is infinite, the density is zero, and so is the product.
        total = total - exponential * z.clamp(-1e3, 1e3)
    return total * (PEAK / std / terms) / std


def _exact_terms(
    x: torch.Tensor, mean: float, std: float, terms: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each point, z = (point - mean) / std and exp(-z^2/2), with its argument in two parts."""
    distance = two_sum(x, -mean)
    for number in range(-(terms // 2), terms - terms // 2):
        step = number / 100
        rest = float(Fraction(number, 100) - Fraction(step))
        apart = two_sum(distance.head, step)
        z = two_quotient(TwoPart(apart.head, apart.tail + distance.tail + rest), std)
        square = two_product(z.head, z.head)
        tail = square.tail / 2 + z.head * z.tail
        # Where a term's distance nearly cancels, its tail is many ulp of it.
        yield z.head + z.tail, exp_negative(TwoPart(square.head / 2, tail))


def gaussian_pdf_second_derivative(
    input: torch.Tensor, mean: float, std: float, terms: int
) -> torch.Tensor:
    """Its second derivative, in float32 or wider and differentiable to any order.

    0 at infinities; NaN stays NaN.
    """
    x = _wide(input)
    total = torch.zeros_like(x)
    for z in _distances(x, mean, std, terms):
        # Beyond 40 the exponential is zero even in float64, and its factor must not overflow.
        z = torch.where(z.abs() > 40, 40, z)
        total = total + torch.exp(-0.5 * z * z) * (z * z - 1)
    return (total / std / std) * (PEAK / std / terms)  # zero by little, not times infinity


def _expected(
    input: torch.Tensor, mean: float = 0.0, std: float = 1.0, terms: int = TERMS
) -> Expected:
    def value(x: torch.Tensor) -> torch.Tensor:
        return gaussian_pdf_oracle(x, mean, std, terms)

    # The ratios of the terms to the greatest one are rounded, all of them alike.
    allowance = compute_eps(input.dtype) * value(input.detach())
    allowance = allowance.nan_to_num(0.0)
    return Expected(value, (input,), {"input": input}, input.dtype, allowance, FLOAT64_ULP)


def _expected_gradients(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    terms: int = TERMS,
) -> dict[str, Expected]:
    def value(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return grad.double() * gaussian_pdf_derivative_oracle(x, mean, std, terms)

    # Terms on both sides of the mean cancel.
    magnitude = _slope(input.detach().double(), mean, std, terms, magnitude=True)
    allowance = 3 * compute_eps(input.dtype) * magnitude * grad_output.detach().double().abs()
    shown = {"input": input, "grad_output": grad_output}
    tensors = (grad_output, input)
    allowance = allowance.nan_to_num(0.0)
    return {"input": Expected(value, tensors, shown, input.dtype, allowance, FLOAT64_ULP)}


SPEC = OpSpec(
    name="gaussian_pdf",
    inputs=("input",),
    options={
        "mean": Option(0.0, another=0.5),
        "std": Option(1.0, another=0.3),
        "terms": Option(TERMS, another=5),
    },
    floating_only=True,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, **_: nbytes(grad_output) + 2 * nbytes(input),
)
