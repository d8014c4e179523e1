"""log_softmax: where it differs from the logarithm of softmax. test_rows.py has the rest."""

from __future__ import annotations

import pytest
import torch
from backends import BACKENDS, DEVICE, KERNELS

import diglot
from diglot.reference.log_softmax import log_softmax_oracle


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_softmax_is_zero(backend):
    """Far below the maximum a logarithm of softmax would be -inf."""
    for n in (5, 3000, 40_000):
        x = torch.zeros(2, n, device=DEVICE)
        x[0, 1] = 1000
        result = diglot.log_softmax(x, backend=backend)
        assert (result[0, 2:] == -1000).all() and result[0, 1] == 0


@pytest.mark.parametrize("backend", KERNELS)
def test_next_to_zero(backend):
    """With one great element in a row, as exact as a sum of that length next to one in float32."""
    x = torch.full((300,), -12.0, device=DEVICE)
    x[7] = 0
    error = (diglot.log_softmax(x, backend=backend).double() - log_softmax_oracle(x)).abs()
    assert error[7] < 2**-20


@pytest.mark.parametrize("backend", KERNELS)
def test_as_a_loss(backend):
    """Its main use: the gradient of a cross entropy is softmax less the target."""
    x = torch.randn(9, 1000, device=DEVICE, requires_grad=True)
    target = torch.randint(1000, (9,), device=DEVICE)
    loss = torch.nn.functional.nll_loss(
        diglot.log_softmax(x, backend=backend), target, reduction="sum"
    )
    loss.backward()
    expected = torch.softmax(x.detach().double(), 1)
    expected[torch.arange(9, device=DEVICE), target] -= 1
    torch.testing.assert_close(x.grad.double(), expected, rtol=1e-5, atol=1e-6)
