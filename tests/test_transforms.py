"""Ops under torch.func's transforms: vmap, grad, jvp and what they are composed to."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE

import diglot


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend):
    x = torch.randn(4, 5, device=DEVICE)

    def gelu(t):
        return diglot.gelu(t, "tanh", backend=backend)

    def expected(t):
        return F.gelu(t, approximate="tanh")

    torch.testing.assert_close(torch.func.vmap(gelu)(x), expected(x))
    torch.testing.assert_close(torch.func.vmap(gelu, in_dims=1, out_dims=1)(x), expected(x))
    own, theirs = (
        torch.func.vmap(torch.func.grad(lambda t, f=f: f(t).sum()))(x) for f in (gelu, expected)
    )
    torch.testing.assert_close(own, theirs)
    own, theirs = (torch.func.jvp(f, (x,), (x.cos(),)) for f in (gelu, expected))
    torch.testing.assert_close(own, theirs)
    own, theirs = (torch.func.jacrev(f)(x[0]) for f in (gelu, expected))
    torch.testing.assert_close(own, theirs)
    own, theirs = (torch.func.hessian(lambda t, f=f: f(t).sum())(x[0]) for f in (gelu, expected))
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_of_add(backend):
    x, y = torch.randn(4, 5, device=DEVICE), torch.randn(5, device=DEVICE)

    def add(a, b):
        return diglot.add(a, b, alpha=3, backend=backend)

    torch.testing.assert_close(torch.func.vmap(add, in_dims=(0, None))(x, y), x + 3 * y)
    batched = torch.func.vmap(add, in_dims=(1, None), out_dims=1)(x[:, :4], y[:4])
    torch.testing.assert_close(batched, x[:, :4] + 3 * y[:4, None])
    # Not of the sum alone, whose gradient is no batch.
    grads = torch.func.vmap(
        torch.func.grad(lambda a, b: add(a, b).square().sum(), argnums=(0, 1)), in_dims=(0, None)
    )
    for other in (y, y[:1], y[0]):
        of_x, of_other = grads(x, other)
        outer = 2 * (x + 3 * other)
        torch.testing.assert_close(of_x, outer)
        expected = 3 * outer
        if other.numel() == 1:
            expected = expected.sum(1).reshape(4, *other.shape)
        torch.testing.assert_close(of_other, expected)


@pytest.mark.parametrize("second", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_tangents_of_broadcast_operands(backend, second):
    """Of both operands and of either alone, forward and of a gradient."""
    # Small whole numbers: PyTorch rounds in between.
    x, t = torch.randint(-8, 9, (2, 4, 1), device=DEVICE).float()
    y, s = torch.randint(-8, 9, (2, 5), device=DEVICE).to(second)
    ours = functools.partial(diglot.add, alpha=3, backend=backend)
    theirs = functools.partial(torch.add, alpha=3)
    results = []
    for add in (ours, theirs):
        jvp, grad = torch.func.jvp, torch.func.grad
        of_x = grad(lambda a, b, add=add: add(a, b).square().sum(), argnums=0)
        of_y = grad(lambda a, b, add=add: add(a, b).square().sum(), argnums=1)
        results.append(
            [
                jvp(add, (x, y), (t, s)),
                jvp(lambda a, add=add: add(a, y), (x,), (t,)),
                jvp(lambda b, add=add: add(x, b), (y,), (s,)),
                jvp(of_x, (x, y), (t, s)),
                jvp(of_y, (x, y), (t, s)),
            ]
        )
    torch.testing.assert_close(*results)


def check_batched(function, dims, *tensors):
    """Compares a function under vmap with the stack of its results."""
    count = next(t.shape[d] for t, d in zip(tensors, dims, strict=True) if d is not None)
    expected = [
        function(*(t if d is None else t.select(d, i) for t, d in zip(tensors, dims, strict=True)))
        for i in range(count)
    ]
    torch.testing.assert_close(torch.func.vmap(function, dims)(*tensors), torch.stack(expected))


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 1), (2, 2), (None, 2)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_registered_operators_under_vmap(backend, dims):
    """Called by name; shapes of gradients, which autograd would set right, were they wrong."""
    ops = torch.ops.diglot
    batched = max(d for d in dims if d is not None)
    x, y = (
        t if d is not None else t.select(batched, 0)
        for t, d in zip(torch.randn(2, 3, 4, 5, device=DEVICE), dims, strict=True)
    )
    check_batched(lambda a, b: ops.gelu_backward(a, b, "tanh", backend), dims, x, y)
    check_batched(lambda a, b: ops.gaussian_pdf_backward(a, b, 0.5, 2.0, 3, backend), dims, x, y)
    check_batched(lambda a, b: ops.add(a, b, 2, backend), dims, x, y)
    if dims[0] is None:
        return
    one, sample = dims[:1], x.select(dims[0], 0).shape
    check_batched(lambda a: ops.gelu(a, "none", backend), one, x)
    check_batched(lambda a: ops.gaussian_pdf(a, 0.5, 2.0, 3, backend), one, x)
    check_batched(lambda a: ops.add(a, None, 2, backend), one, x)
    for shape in ([], [1], sample[1:], [sample[0], 1], sample):
        backward = functools.partial(ops.add_backward, shape=list(shape), dtype=torch.float32)
        check_batched(lambda a, f=backward: f(a, alpha=2, backend=backend), one, x)


@pytest.mark.parametrize(
    ("shapes", "in_dims"),
    [
        (((3,), ()), (0, None)),
        (((), (3,)), (None, 0)),
        (((3,), (3,)), (0, 0)),
        (((3,), (4,)), (0, None)),
        (((4, 3), (3,)), (1, 0)),
        (((3, 4), ()), (0, None)),
        (((3,), (3, 4, 2)), (0, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_batched_operands_promote_by_their_own_ranks(backend, shapes, in_dims):
    dtypes = (torch.float32, torch.float16, torch.float64, torch.int8, torch.int64, torch.bool)
    for pair in itertools.product(dtypes, repeat=2):
        x, y = (
            (torch.rand(shape, device=DEVICE) * 10).to(d)
            for shape, d in zip(shapes, pair, strict=True)
        )
        own = torch.func.vmap(lambda a, b: diglot.add(a, b, backend=backend), in_dims)(x, y)
        expected = torch.func.vmap(torch.add, in_dims)(x, y)
        assert own.dtype == expected.dtype, pair
        torch.testing.assert_close(own, expected)
