"""add_layer_norm: the sum beside its norm. test_norms.py has the rest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, FLOATING

import diglot


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sum_is_rounded_first(backend, dtype):
    """Its norm is that of the rounded sum: where the addend is too small, that of the input."""
    x = torch.ones(2, 64, device=DEVICE, dtype=dtype)
    x[:, ::2] = -1
    small = torch.rand(2, 64, device=DEVICE).to(dtype) * torch.finfo(dtype).eps / 5
    out, total = diglot.add_layer_norm(x, small, 64, backend=backend)
    assert torch.equal(total, x)
    alone = diglot.layer_norm(x, 64, backend=backend)
    torch.testing.assert_close(out, alone, rtol=0, atol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_added_to_itself(backend):
    """Its gradient is that of both places."""
    x = torch.randn(5, 40, device=DEVICE, requires_grad=True)
    out, total = diglot.add_layer_norm(x, x, 40, eps=1e-5, backend=backend)
    expected = F.layer_norm(x + x, (40,), eps=1e-5)
    torch.testing.assert_close(out, expected)
    grads = torch.randn(2, 5, 40, device=DEVICE)
    (own,) = torch.autograd.grad([out, total], x, list(grads))
    (theirs,) = torch.autograd.grad([expected, x + x], x, list(grads))
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_residual_stream(backend):
    """Layers that hand their sums on, as in a transformer; gradients come back through both."""
    n, layers = 24, 3
    x = torch.randn(4, n, device=DEVICE, requires_grad=True)
    parameters = [
        [torch.randn(s, device=DEVICE, requires_grad=True) for s in ((n, n), n, n)]
        for _ in range(layers)
    ]

    def run(norm):
        hidden, stream = torch.zeros_like(x), x
        for matrix, weight, bias in parameters:
            out, stream = norm(hidden, stream, (weight, bias))
            hidden = torch.tanh(out @ matrix.T / n**0.5) + bias
        return hidden + stream

    def own(hidden, stream, given):
        return diglot.add_layer_norm(hidden, stream, n, *given, eps=1e-5, backend=backend)

    def theirs(hidden, stream, given):
        total = hidden + stream
        return F.layer_norm(total, (n,), *given, eps=1e-5), total

    leaves = [x, *(p for layer in parameters for p in layer)]
    results = [run(norm) for norm in (own, theirs)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(x)
    pair = [torch.autograd.grad(result, leaves, grad, allow_unused=True) for result in results]
    torch.testing.assert_close(*pair, rtol=1e-3, atol=1e-4)
