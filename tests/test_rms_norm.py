"""rms_norm: the mean square, and the eps that stands for None. test_norms.py has the rest."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, FLOATING, KERNELS
from norms import Norm

import diglot
from diglot.reference.rms_norm import rms_norm_oracle


def test_oracle():
    """By PyTorch's own in float64."""
    x, weight = torch.randn(7, 40, device=DEVICE), torch.randn(40, device=DEVICE)
    for eps in (1e-5, 0.5):
        expected = F.rms_norm(x.double(), (40,), weight.double(), eps)
        torch.testing.assert_close(rms_norm_oracle(x, weight, eps), expected)
    torch.testing.assert_close(rms_norm_oracle(x), F.rms_norm(x.double(), (40,), eps=2**-23))


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_eps_of_none(backend, dtype):
    """That of the type that is computed in, as in PyTorch: rows so small that it is what counts."""
    size = 1e-9 if dtype == torch.float64 else 3e-4
    x = (torch.randn(3, 40, device=DEVICE) * size).to(dtype)
    result = diglot.rms_norm(x, 40, backend=backend)
    rtol = 2 * torch.finfo(dtype).eps + 1e-6 * (dtype != torch.float64)
    atol = 1e-6 * (dtype != torch.float64)
    torch.testing.assert_close(result, F.rms_norm(x, (40,)), rtol=rtol, atol=atol)
    torch.testing.assert_close(result.double(), rms_norm_oracle(x), rtol=rtol, atol=atol)
    sums = diglot.add_rms_norm(x, torch.zeros_like(x), 40, backend=backend)
    torch.testing.assert_close(sums[0], result)


@pytest.mark.parametrize("fill", [0.0, 1.0, 1e-30, -1e4, 1e15], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_one_value(backend, fill):
    for n in (1, 3, 512, 3000):
        x = torch.full((2, n), fill, device=DEVICE)
        result = diglot.rms_norm(x, n, eps=1e-5, backend=backend)
        expected = torch.full_like(x, fill / math.sqrt(fill * fill + 1e-5))
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("n", [100, 1024, 3001])
@pytest.mark.parametrize("backend", KERNELS)
def test_gradient_is_orthogonal(backend, n):
    """To the row, since no scale of it changes anything; and not to a constant."""
    norm = Norm.draw("rms_norm", (3, n), eps=0.0).require_grad()
    (result,) = norm(backend)
    (gradient,) = torch.autograd.grad(result, norm.arrays[0], torch.randn_like(result))
    wide, x = gradient.double(), norm.arrays[0].detach().double()
    size = wide.abs().sum(1)
    assert ((wide * x).sum(1).abs() / size).max() < 1e-6
    assert (wide.sum(1).abs() / size).max() > 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_infinity(backend):
    """Leaves nothing of the rest of its row, and is NaN itself."""
    x = torch.ones(2, 700, device=DEVICE)
    x[1, 5] = -math.inf
    result = diglot.rms_norm(x, 700, backend=backend)
    assert result[1, 5].isnan() and (result[1, :5] == 0).all() and (result[1, 6:] == 0).all()
    torch.testing.assert_close(result[0], x[0])
