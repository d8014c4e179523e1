"""baddbmm: batches of matrices and an input that broadcasts. Its code is shared with addmm:
tests/test_addmm.py has the rest.
"""

from __future__ import annotations

import pytest
import torch
from backends import BACKENDS, FLOATING, KERNELS
from product_cases import assert_derivatives, normal
from test_addmm import assert_added

import diglot


def operands(dtype, batch=3, m=40, n=24, k=16):
    shapes = (batch, m, n), (batch, m, k), (batch, k, n)
    return [normal(*shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_values(backend, dtype):
    input, a, b = operands(dtype)
    for given in (input, input[:1], input[:, :1], input[0], input[0, 0], input[:, :, :1]):
        result = diglot.baddbmm(given, a, b, beta=2, alpha=-0.5, backend=backend)
        assert_added(result, given, a, b, 2, -0.5)
    assert diglot.last_run().launcher == "baddbmm_forward"


@pytest.mark.parametrize("backend", KERNELS)
def test_matrices_that_lie_apart(backend):
    """Slices whose matrices and rows lie apart, exchanged dimensions, one matrix for all."""
    input, a, b = operands(torch.bfloat16, batch=6)
    shared = b[:1].expand(3, -1, -1)
    for x, left, right in (
        (input[::2], a[::2], b[1::2]),
        (input[::2], a[::2], shared),
        (input[0].expand(3, -1, -1), a[::2], shared),
        (input[::2], a.movedim(0, 1).contiguous().movedim(1, 0)[:3], b[:3]),
    ):
        result = diglot.baddbmm(x, left, right, beta=0.5, backend=backend)
        assert_added(result, x, left, right, 0.5, 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives(backend):
    tensors = [t.requires_grad_() for t in operands(torch.float64, 2, 3, 5, 4)]
    tensors[0] = tensors[0][0].detach().requires_grad_()

    def own(*given):
        return diglot.baddbmm(*given, beta=0.5, alpha=-2, backend=backend)

    def theirs(*given):
        return torch.baddbmm(*given, beta=0.5, alpha=-2)

    assert_derivatives(own, theirs, tensors)
    batched = [normal(2, *t.shape, dtype=torch.float64) for t in tensors]
    for dims in ((0, 0, 0), (0, None, None), (None, 0, None)):
        given = [b if d == 0 else t for t, b, d in zip(tensors, batched, dims, strict=True)]
        torch.testing.assert_close(*(torch.vmap(f, dims)(*given) for f in (own, theirs)))


def test_errors():
    input, a, b = torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    for given, text in [
        ((input, a[0], b), "batch1 and batch2 must be batches of as many matrices"),
        ((input, a[:1], b), "batches of as many matrices"),
        ((input, a, b[:, :3]), "baddbmm: batch1 and batch2 do not multiply"),
        ((input[:, :2], a, b), "input must broadcast"),
    ]:
        with pytest.raises(ValueError, match=text):
            diglot.baddbmm(*given)
