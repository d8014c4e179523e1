"""softmax: where a careless sum of exponentials would fail. test_rows.py has the rest."""

from __future__ import annotations

import math

import pytest
import torch
from backends import BACKENDS, DEVICE, KERNELS

import diglot
from diglot.reference.softmax import softmax_oracle


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_minus_infinity_before_the_first_number(backend):
    """Whole tiles whose maximum is -inf: their sums are of nothing, and not NaN."""
    for n in (300, 20_000, 100_000):
        x = torch.full((2, n), -math.inf, device=DEVICE)
        x[0, -3:] = torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
        result = diglot.softmax(x, backend=backend)
        assert (result[0, :-3] == 0).all() and result[1].isnan().all()
        torch.testing.assert_close(result[0, -3:], torch.softmax(x[0, -3:], 0))


@pytest.mark.parametrize("backend", KERNELS)
def test_exponential(backend):
    """Where x - max is exact, within the tolerance alone: no allowance for its rounding."""
    x = -torch.arange(0, 1400, device=DEVICE).float() / 16
    result = diglot.softmax(x, backend=backend)
    oracle = softmax_oracle(x)
    normal = oracle > torch.finfo(torch.float32).tiny
    relative = ((result.double() - oracle) / oracle)[normal].abs().max()
    assert relative < 3.5 * 2**-23  # the exponential, the sum, its reciprocal, the product
    assert (result[~normal] <= torch.finfo(torch.float32).tiny).all()


@pytest.mark.parametrize("n", [100, 5000, 50_000])
@pytest.mark.parametrize("backend", KERNELS)
def test_sums_to_one(backend, n):
    x = torch.randn(3, n, device=DEVICE)
    total = diglot.softmax(x, backend=backend).double().sum(1)
    assert (total - 1).abs().max() < 1e-6


def test_both_languages_agree():
    """Sums are in an order of each language's own."""
    for shape, dim in (((7, 1000), 1), ((40, 64), 0), ((2, 40_000), 1)):
        x = torch.randn(shape, device=DEVICE)
        own, twin = (diglot.softmax(x, dim, backend=b) for b in ("cuda", "triton"))
        torch.testing.assert_close(own, twin, rtol=1e-6, atol=1e-9)
