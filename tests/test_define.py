"""How ops are defined: what a schema says, and what a pair makes of two."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.autograd.functional import hessian

from diglot.define.operator import Operator, Signature
from diglot.define.pair import DifferentiablePair, pointwise


def test_signature():
    """Tensors that may be absent count; lists of numbers and nested types hide no comma."""
    assert Signature.parse(
        "f(Tensor input, Tensor? other, SymInt[2] shape, ScalarType? dtype, str backend) -> "
        "(Tensor, Tensor sum, Tensor statistics)"
    ) == ("f", ("input", "other", "shape", "dtype", "backend"), ("", "sum", "statistics"), 2)
    assert Signature.parse("g(str backend) -> (Tensor output)").outputs == ("output",)


count = itertools.count()


@pytest.fixture
def cube():
    """scale · x³ and its backward pass, of PyTorch's operators."""
    name = f"cube_of_a_test_{next(count)}"
    pair = DifferentiablePair(
        f"{name}(Tensor input, float scale, str backend) -> Tensor",
        f"{name}_backward(Tensor grad_output, Tensor input, float scale, str backend) -> Tensor",
        forward=lambda x, scale, backend: scale * x**3,
        backward=lambda grad, x, scale, backend: 3 * scale * x * x * grad,
        slope=pointwise(lambda x, scale: 6 * scale * x),
    )
    assert isinstance(pair.backward, Operator)
    return pair


def test_a_pair_is_differentiable(cube):
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    function = lambda t: cube(t, 2.0, "torch")  # noqa: E731
    torch.testing.assert_close(function(x), 2 * x**3)
    torch.autograd.gradcheck(function, (x,), check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(function, (x,), check_fwd_over_rev=True)
    second = hessian(lambda t: function(t).sum(), x)
    torch.testing.assert_close(second, torch.diag(12 * x.detach()))
    torch.testing.assert_close(torch.func.vmap(function)(x), 2 * x**3)
    torch.library.opcheck(cube.dispatched, (x.detach().requires_grad_(), 2.0, "torch"))


def test_a_pair_checks_the_gradient(cube):
    """By the name of what the backward pass saved."""
    x = torch.randn(5)
    for grad in (x[:3], x.double()):
        with pytest.raises(ValueError, match=r"_backward: grad_output must have .* of input,"):
            cube.backward.dispatched(grad, x, 2.0, "torch")


def test_statistics_are_not_differentiable():
    """An output of that name: it is saved, and no gradient goes through it."""
    name = f"scaled_by_its_norm_{next(count)}"

    def forward(x, backend):
        norm = x.norm()[None]
        return x * norm, norm

    operator = Operator(
        f"{name}(Tensor input, str backend) -> (Tensor, Tensor statistics)",
        forward=forward,
        fake=lambda x, backend: (torch.empty_like(x), x.new_empty(1)),
        save=lambda ctx, inputs, output: output[1:],
        backward=lambda ctx, grad: (grad * ctx.saved_tensors[0],),
        jvp=lambda ctx, direction: direction * ctx.saved_tensors[0],
    )
    x = torch.randn(4, requires_grad=True)
    out, norm = operator(x, "torch")
    assert out.requires_grad and not norm.requires_grad
    recorded = operator.recorded(x, "torch")
    for result in (out, recorded):
        (grad,) = torch.autograd.grad(result, x, torch.ones(4))
        torch.testing.assert_close(grad, norm.expand(4))
