"""mlp: values, gradients by the fused launch, later derivatives, the module."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, FLOATING, KERNELS
from product_cases import assert_derivatives, normal

import diglot
from diglot.ops.mlp import _mlp
from diglot.reference.activations import ACTIVATIONS, activate
from diglot.reference.mlp import SPEC, mlp_oracle

NAMES = ("input", "weight1", "bias1", "weight2", "bias2")


def operands(dtype, rows=(3, 10), k=24, hidden=64, n=40):
    shapes = (*rows, k), (hidden, k), (hidden,), (n, hidden), (n,)
    scales = 1, k**-0.5, 1, hidden**-0.5, 1
    return [
        (scale * normal(*shape, dtype=torch.float64)).to(dtype).requires_grad_()
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def assert_expected(result, expected):
    (right,) = expected.tensors
    allowed = expected.allowance + torch.finfo(result.dtype).eps * right.abs()
    assert ((result.double() - right).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_values_and_gradients(backend, dtype):
    tensors = operands(dtype)
    with diglot.record_runs() as runs:
        result = diglot.mlp(*tensors, backend=backend)
        grad = torch.randn_like(result)
        gradients = torch.autograd.grad(result, tensors, grad)
    assert_expected(result, SPEC.forward(*tensors))
    expected = SPEC.backward(grad, *tensors)
    for name, gradient in zip(NAMES, gradients, strict=True):
        assert_expected(gradient, expected[name])
    launchers = [run.launcher for run in runs]
    assert launchers[:2] == ["linear_forward", "linear_forward"]
    assert launchers.count("linear_parameters_backward") == 2
    assert launchers.count("mlp_backward") == 1 and "linear_backward" not in launchers
    with torch.no_grad():
        assert torch.equal(diglot.mlp(*tensors, backend=backend), result)


@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives(backend, activation):
    tensors = operands(torch.float64, (3,), 4, 5, 2)

    def own(*given):
        return diglot.mlp(*given, activation, backend=backend)

    assert_derivatives(own, lambda *given: mlp_oracle(*given, activation), tensors)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend):
    tensors = [t.detach() for t in operands(torch.float64, (3,), 4, 5, 2)]

    def own(*given):
        return diglot.mlp(*given, "silu", backend=backend)

    def theirs(x, weight1, bias1, weight2, bias2):
        return F.linear(F.silu(F.linear(x, weight1, bias1)), weight2, bias2)

    batched = [normal(2, *t.shape, dtype=torch.float64) for t in tensors]
    for dims in ((0, None, None, None, None), (None, 0, 0, None, None), (0, 0, 0, 0, 0)):
        given = [b if d == 0 else t for t, b, d in zip(tensors, batched, dims, strict=True)]
        torch.testing.assert_close(*(torch.vmap(f, dims)(*given) for f in (own, theirs)))
    directions = tuple(b[0] for b in batched)
    pairs = (torch.func.jvp(f, tuple(tensors), directions) for f in (own, theirs))
    torch.testing.assert_close(*pairs)
    sums = ((lambda *t, f=f: f(*t).sin().sum()) for f in (own, theirs))
    torch.testing.assert_close(*(torch.func.grad(f)(*tensors) for f in sums))


@pytest.mark.parametrize("backend", BACKENDS)
def test_module(backend):
    layers = diglot.nn.MLP(8, 16, activation="relu", device=DEVICE, backend=backend)
    x = torch.randn(3, 8, device=DEVICE)
    expected = layers.fc2(F.relu(layers.fc1(x)))
    torch.testing.assert_close(layers(x), expected)
    torch.testing.assert_close(layers(x[0]), expected[0])
    assert diglot.last_run().backend == backend
    x, (w1, b1, w2, b2) = operands(torch.float32)[0], operands(torch.float32)[1:]
    torch.library.opcheck(_mlp.dispatched, (x, w1, w2, b1, b2, "gelu", None, backend))
    assert activate(x, "none") is x


def test_errors():
    x, w1, b1, w2, b2 = (t.detach() for t in operands(torch.float32, (3,), 4, 5, 2))
    for given, error, text in [
        ((x, w1, b1, w1, b2), ValueError, "weight2"),
        ((x, w1, b2, w2, b2), ValueError, "mlp: bias must|bias1 must"),
        ((x, w1, b1, w2, b1), ValueError, r"bias2 must have the shape \(2,\)"),
        ((x[:, :3], w1, b1, w2, b2), ValueError, "last dimensions"),
        ((x, w1, b1, w2, b2, "tanh"), ValueError, "activation must be one of"),
        ((x, w1, b1, None, b2), TypeError, "mlp: weight2 must be a torch.Tensor"),
        ((x, w1, b1.double(), w2, b2), TypeError, "one dtype"),
    ]:
        with pytest.raises(error, match=text):
            diglot.mlp(*given)
    with pytest.raises(ValueError, match="MLP: activation"):
        diglot.nn.MLP(4, 5, activation="none")
