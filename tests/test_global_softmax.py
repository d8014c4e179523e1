"""global_softmax: special values, and where a careless sum of exponentials would fail."""

from __future__ import annotations

import math

import pytest
import torch
from backends import BACKENDS, DEVICE, FLOATING, KERNELS, sum_error

import diglot
from diglot.reference.global_softmax import SPEC, global_softmax_oracle
from diglot.tools.accuracy import measure_error

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    "special", [[NAN], [INF], [INF, -INF], [-INF], [INF, NAN], [-INF, NAN], [INF, INF]], ids=str
)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend, dtype, special):
    """Anywhere: next to finite numbers, in tiles of their own, and alone."""
    for n in (len(special), 5, 20_000):
        for at in {0, n - len(special)}:
            x = torch.randn(n, device=DEVICE).to(dtype)
            x[at : at + len(special)] = torch.tensor(special, device=DEVICE).to(dtype)
            result = diglot.global_softmax(x, backend=backend)
            wide = torch.softmax(x.double(), 0)
            rounding = max(sum_error(dtype), 2 * torch.finfo(dtype).eps)
            torch.testing.assert_close(
                result.double(), wide, rtol=rounding, atol=rounding * 1e-4, equal_nan=True
            )


@pytest.mark.parametrize("fill", [INF, -INF, NAN, 0.0, 3e38, -3e38], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_of_one_value(backend, fill):
    x = torch.full((10_000,), fill, device=DEVICE)
    result = diglot.global_softmax(x, backend=backend)
    expected = torch.full_like(x, 1e-4 if math.isfinite(fill) else NAN)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_minus_infinity_before_the_first_number(backend):
    """Whole tiles whose maximum is -inf: their sums are of nothing, and not NaN."""
    x = torch.full((20_000,), -INF, device=DEVICE)
    x[-3:] = torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
    result = diglot.global_softmax(x, backend=backend)
    assert (result[:-3] == 0).all()
    torch.testing.assert_close(result[-3:], torch.softmax(x[-3:], 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_maxima_that_grow_and_fall(backend, dtype):
    """Each tile's sum is brought to the maximum of all."""
    ramp = torch.linspace(-80, 80, 20_000, dtype=torch.float64)
    for x in (ramp, ramp.flip(0), ramp.abs(), -ramp.abs(), ramp * 1e30, ramp + 1e4):
        x = x.to(DEVICE, dtype)
        error = measure_error(diglot.global_softmax(x, backend=backend), SPEC.forward(x))
        assert error.failing == 0, error


@pytest.mark.parametrize("backend", KERNELS)
def test_exponential(backend):
    """Where x - max is exact, within the tolerance alone: no allowance for its rounding."""
    x = -torch.arange(0, 1400, device=DEVICE).float() / 16
    result = diglot.global_softmax(x, backend=backend)
    oracle = global_softmax_oracle(x)
    normal = oracle > torch.finfo(torch.float32).tiny
    relative = ((result.double() - oracle) / oracle)[normal].abs().max()
    assert relative < 3.5 * 2**-23  # the exponential, the sum, its reciprocal, the product
    assert (result[~normal] <= torch.finfo(torch.float32).tiny).all()


@pytest.mark.parametrize("backend", KERNELS)
def test_sums_to_one(backend):
    x = torch.randn(50_000, device=DEVICE)
    total = diglot.global_softmax(x, backend=backend).double().sum()
    assert abs(total.item() - 1) < 1e-6
