"""layer_norm: the mean and the variance, and what follows of them. test_norms.py has the rest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, KERNELS
from norms import Norm

import diglot
from diglot.reference.layer_norm import layer_norm_oracle


def test_oracle():
    """By PyTorch's own in float64."""
    x, weight, bias = (torch.randn(s, device=DEVICE) for s in ((7, 40), 40, 40))
    for parameters in ((None, None), (weight, None), (weight, bias), (None, bias)):
        wide = [None if p is None else p.double() for p in parameters]
        expected = F.layer_norm(x.double(), (40,), *wide)
        torch.testing.assert_close(layer_norm_oracle(x, *parameters), expected)


@pytest.mark.parametrize("fill", [0.0, 1.0, 1e-30, -1e4], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_one_value(backend, fill):
    """Without a variance: next to the bias, and not NaN."""
    for n in (1, 3, 512, 3000):
        bias = torch.randn(n, device=DEVICE)
        x = torch.full((2, n), fill, device=DEVICE)
        result = diglot.layer_norm(x, n, None, bias, backend=backend)
        atol = abs(fill) * 2**-23 / 1e-5**0.5  # of the mean's own rounding eps makes this
        torch.testing.assert_close(result, bias.expand(2, n), rtol=1e-6, atol=atol)


@pytest.mark.parametrize("backend", KERNELS)
def test_rows_far_from_zero(backend):
    """Their variance does not cancel: a mean of squares would leave nothing of it."""
    for n in (64, 1000, 5000):
        x = torch.randn(3, n, device=DEVICE) + 4096
        result, oracle = diglot.layer_norm(x, n, backend=backend), layer_norm_oracle(x)
        torch.testing.assert_close(result.double(), oracle, rtol=0, atol=4096 * 2**-22)
        y, (mean, rstd) = torch.ops.diglot.layer_norm(x, None, None, 1, 1e-5, backend)
        variance, center = torch.var_mean(x.double(), 1, correction=0)
        torch.testing.assert_close(mean.double(), center, rtol=2e-7, atol=0)
        torch.testing.assert_close(rstd.double(), variance.rsqrt(), rtol=5e-4, atol=0)
        assert torch.equal(y, result)


@pytest.mark.parametrize("n", [100, 1024, 3001])
@pytest.mark.parametrize("backend", KERNELS)
def test_gradient_is_orthogonal(backend, n):
    """To a constant and to the output: neither a shift nor a scale of a row changes anything."""
    norm = Norm.draw("layer_norm", (3, n), eps=0.0).require_grad()
    (result,) = norm(backend)
    (gradient,) = torch.autograd.grad(result, norm.arrays[0], torch.randn_like(result))
    wide = gradient.double()
    size = wide.abs().sum(1)
    x = norm.arrays[0].detach().double()
    assert (wide.sum(1).abs() / size).max() < 1e-6
    assert ((wide * x).sum(1).abs() / size).max() < 1e-6


@pytest.mark.parametrize("backend", KERNELS)
def test_sums_of_integers_are_exact(backend):
    """The gradient of the bias, and that of the weight of rows of 1 and -1: whatever the order."""
    for shape in ((50, 96), (9, 1000)):
        signs = torch.ones(shape, device=DEVICE)
        signs[:, ::2] = -1
        signs = signs[:, torch.randperm(shape[1], device=DEVICE)].contiguous()
        weight, bias = (torch.zeros(shape[1], device=DEVICE, requires_grad=True) for _ in range(2))
        result = diglot.layer_norm(signs, shape[1], weight, bias, 0.0, backend=backend)
        grad = torch.randint(-100, 100, shape, device=DEVICE).float()
        result.backward(grad)
        assert torch.equal(bias.grad, grad.sum(0))
        torch.testing.assert_close(weight.grad, (grad * signs).sum(0), rtol=1e-6, atol=1e-3)
