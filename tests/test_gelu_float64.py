"""gelu in float64: kernels, and the oracle that judges them, against values of fifty digits."""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, KERNELS, assert_close

import diglot
from diglot.reference.gelu import (
    ERF_ROOT,
    TANH_ROOT,
    gelu_derivative_oracle,
    gelu_oracle,
)
from diglot.tools.accuracy import ulp_of

mpmath = pytest.importorskip("mpmath")  # PyTorch's own requirements bring it
exact = mpmath.MPContext()
exact.dps = 50

WITHIN = 12.0  # ulp: interpreted kernels of both languages need 5.7 here, the oracle 6.4
FARTHEST = {"none": -37.4, "tanh": -20.8}  # where results are normal numbers
ROOTS = {"none": ERF_ROOT[0], "tanh": TANH_ROOT[0]}


def values(approximate: str) -> torch.Tensor:
    """Both sides, the far tail, and the derivative's root with its neighbours."""
    root = torch.tensor(ROOTS[approximate], dtype=torch.float64)
    steps = torch.tensor(
        [0.0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.4, 0.49, 0.51], dtype=root.dtype
    )
    tail = torch.linspace(FARTHEST[approximate], 6, 150, dtype=torch.float64)
    return torch.cat([tail, root + steps, root - steps]).to(DEVICE)


def logistic(x):
    """1 / (1 + exp(-z)), and the slope of z."""
    factor, kappa = 2 * exact.sqrt(2 / exact.pi), exact.mpf("0.044715")
    z = factor * (x + kappa * x**3)
    return 1 / (1 + exact.exp(-z)), factor * (1 + 3 * kappa * x * x)


def exact_value(x, approximate):
    return x * (exact.ncdf(x) if approximate == "none" else logistic(x)[0])


def exact_slope(x, approximate):
    if approximate == "none":
        return exact.ncdf(x) + x * exact.npdf(x)
    upper, slope = logistic(x)
    return upper * (1 + x * slope * (1 - upper))


def errors(result: torch.Tensor, x: torch.Tensor, function, approximate: str) -> torch.Tensor:
    """In ulp of the exact value, which is not rounded."""
    rights = [function(exact.mpf(value), approximate) for value in x.tolist()]
    apart = [
        float(exact.mpf(own) - right) for own, right in zip(result.tolist(), rights, strict=True)
    ]
    rounded = torch.tensor([float(right) for right in rights], dtype=torch.float64)
    return torch.tensor(apart, dtype=torch.float64).abs() / ulp_of(rounded, torch.float64)


@pytest.mark.parametrize("approximate", FARTHEST)
@pytest.mark.parametrize("by", ["oracle", *KERNELS])
def test_exact_values(by, approximate):
    x = values(approximate)
    if by == "oracle":
        result, slope = gelu_oracle(x, approximate), gelu_derivative_oracle(x, approximate)
    else:
        leaf = x.clone().requires_grad_()
        result = diglot.gelu(leaf, approximate, backend=by)
        (slope,) = torch.autograd.grad(result.sum(), leaf)
    for own, function in ((result.detach(), exact_value), (slope, exact_slope)):
        error = errors(own, x, function, approximate)
        assert error.max() <= WITHIN, (error.max(), x[error.argmax()].item())


@pytest.mark.parametrize("approximate", FARTHEST)
def test_where_the_oracle_ends(approximate):
    """Zeros, infinities and NaN, as kernels have them; large values do not overflow."""
    x = torch.tensor([0.0, -0.0, 1e4, -1e4, 1e300, -1e300, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([x, torch.tensor([1e300, -1e300], dtype=torch.float64)])
    result, slope = gelu_oracle(x, approximate), gelu_derivative_oracle(x, approximate)
    leaf = x.to(DEVICE, torch.float64).requires_grad_()
    own = diglot.gelu(leaf, approximate, backend=KERNELS[-1])
    (gradient,) = torch.autograd.grad(own.sum(), leaf)
    assert_close(own.detach(), result, 0.0)
    assert_close(gradient, slope, 1.0)
