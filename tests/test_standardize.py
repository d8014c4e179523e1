"""standardize: special values, eps, and where sums of squares would cancel."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, FLOATING, KERNELS, sum_error

import diglot
from diglot.reference.standardize import SPEC, standardize_oracle
from diglot.tools.accuracy import measure_error


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend, dtype, special):
    for n in (1, 5, 20_000):
        for at in {0, n - 1}:
            x = torch.randn(n, device=DEVICE).to(dtype)
            x[at] = special
            assert diglot.standardize(x, backend=backend).isnan().all()
            assert F.layer_norm(x, x.shape).isnan().all()


@pytest.mark.parametrize("value", [0.0, 1.0, -7.5, 1e30], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_of_one_value(backend, value):
    """No variance: the mean of equal numbers is rounded, but no more than that."""
    x = torch.full((10_000,), value, device=DEVICE)
    result = diglot.standardize(x, backend=backend)
    assert result.isfinite().all()
    bound = 4 * abs(value) * 2**-23 / math.sqrt(1e-5)
    assert result.abs().max() <= bound


@pytest.mark.parametrize("eps", [0, 1e-12, 1e-5, 0.5, 7, True], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_eps(backend, eps):
    x = torch.randn(3, 1000, device=DEVICE, requires_grad=True) * 0.01
    result = diglot.standardize(x, eps, backend=backend)
    expected = F.layer_norm(x, x.shape, eps=float(eps))
    torch.testing.assert_close(result, expected)
    grad = torch.randn_like(x)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, grad) for y in (result, expected)))


def test_bad_eps():
    x = torch.ones(3, device=DEVICE)
    for eps in ("1", None, 1j):
        with pytest.raises(TypeError, match="standardize: eps must be a real number"):
            diglot.standardize(x, eps)


@pytest.mark.parametrize("offset", [100.0, 1e4, -3e5], ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_nothing_cancels(backend, offset):
    """Where mean(x^2) - mean(x)^2 has no digit left: right to the mean's rounding."""
    x = torch.randn(30_000, device=DEVICE) + offset
    result = diglot.standardize(x, backend=backend)
    error = measure_error(result, SPEC.forward(x))
    assert error.failing == 0, error
    textbook = ((x * x).mean() - x.mean() ** 2).double()
    variance = x.double().var(correction=0)
    if abs(offset) > 1000:
        assert abs(textbook / variance - 1) > 0.1
    assert result.double().std(correction=0).item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("backend", KERNELS)
def test_outliers(backend):
    """One great number, anywhere: also where it is the first of its tile."""
    for at in (0, 9_000, 19_999):
        x = torch.randn(20_000, device=DEVICE)
        x[at] = 1e6
        error = measure_error(diglot.standardize(x, backend=backend), SPEC.forward(x))
        assert error.failing == 0, error


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics(backend):
    """What the operator saves: of the type that is computed in, and without a gradient."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = (torch.randn(20_000, device=DEVICE) * 3 + 5).to(dtype).requires_grad_()
        out, statistics = torch.ops.diglot.standardize(x, 1e-5, backend)
        assert out.requires_grad and not statistics.requires_grad
        wide = x.detach().double()
        kind = torch.float64 if dtype == torch.float64 else torch.float32
        assert statistics.dtype == kind and statistics.is_contiguous()
        mean, rstd = statistics
        # Of bfloat16 the output alone is rounded to it.
        error = sum_error(kind)
        rounding = max(error, torch.finfo(dtype).eps)
        torch.testing.assert_close(mean, wide.mean().to(kind), rtol=error, atol=0)
        wanted = (wide.var(correction=0) + 1e-5).rsqrt().to(kind)
        torch.testing.assert_close(rstd, wanted, rtol=error, atol=0)
        wanted = standardize_oracle(x)
        torch.testing.assert_close(out.double(), wanted, rtol=rounding, atol=error)
