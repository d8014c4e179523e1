"""matmul and linear in PyTorch's hands: derivatives, transforms, compilation, autocast."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, KERNELS
from product_cases import assert_product, normal

import diglot
from diglot.ops.linear import linear_operator
from diglot.ops.products import matmul_operator

WIDE = torch.float64
SHAPES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 2)),
    ((4,), (4, 3)),
    ((3, 4), (4,)),
    ((4,), (4,)),
]


def leaves(*shapes, dtype=WIDE):
    return [normal(*shape, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_matmul(backend):
    for shapes in SHAPES:
        a, b = leaves(*shapes)
        with diglot.record_runs() as runs:
            result = diglot.matmul(a, b, backend=backend)
            grad = torch.randn_like(result)
            own = torch.autograd.grad(result, (a, b), grad)
        assert {run.backend for run in runs} == {backend}
        expected = torch.autograd.grad(torch.matmul(a, b), (a, b), grad)
        torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_linear(backend):
    for shape, has_bias in [((3, 4), True), ((2, 3, 4), True), ((4,), True), ((3, 4), False)]:
        x, weight, bias = leaves(shape, (5, 4), (5,))
        given = (x, weight, bias) if has_bias else (x, weight)
        with diglot.record_runs() as runs:
            result = diglot.linear(*given, backend=backend)
            grad = torch.randn_like(result)
            own = torch.autograd.grad(result, given, grad)
        assert {run.backend for run in runs} == {backend}
        torch.testing.assert_close(own, torch.autograd.grad(F.linear(*given), given, grad))


@pytest.mark.parametrize("backend", KERNELS)
def test_gradcheck(backend):
    a, b = leaves((2, 2), (2, 1))
    x, weight, bias = leaves((1, 2), (2, 2), (2,))
    for function, given in (
        (lambda *t: diglot.matmul(*t, backend=backend), (a, b)),
        (lambda *t: diglot.linear(*t, backend=backend), (x, weight, bias)),
    ):
        assert torch.autograd.gradcheck(function, given, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, given, fast_mode=True)


@pytest.mark.parametrize("backend", KERNELS)
def test_gradients_in_16_bits(backend):
    """Each is rounded once; one launcher makes those of weight and bias."""
    dtype = torch.bfloat16
    x, weight, bias = leaves((2, 40, 24), (16, 24), (16,), dtype=dtype)
    result = diglot.linear(x, weight, bias, backend=backend)
    grad = normal(2, 40, 16, dtype=dtype)
    with diglot.record_runs() as runs:
        of_x, of_weight, of_bias = torch.autograd.grad(result, (x, weight, bias), grad)
    launchers = [run.launcher for run in runs]
    assert sorted(launchers) == ["linear_parameters_backward", "matmul_forward"]
    assert_product(of_x, grad, weight)
    assert_product(of_weight, grad.reshape(80, 16).mT, x.reshape(80, 24))
    ones = torch.ones(1, 80, dtype=dtype, device=DEVICE)
    assert_product(of_bias[None], ones, grad.reshape(80, 16))


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend):
    a, b = normal(2, 3, 4, dtype=WIDE), normal(2, 4, 5, dtype=WIDE)

    def matmul(a, b):
        return diglot.matmul(a, b, backend=backend)

    vmap = torch.func.vmap
    torch.testing.assert_close(vmap(matmul)(a, b), a @ b)
    torch.testing.assert_close(vmap(matmul, (0, None))(a, b[0]), a @ b[0])
    last = normal(4, 5, 3, dtype=WIDE)
    torch.testing.assert_close(
        vmap(matmul, (None, 2))(a, last), torch.stack([a @ c for c in last.unbind(2)])
    )
    torch.testing.assert_close(vmap(matmul)(a[:, 0], b), vmap(torch.matmul)(a[:, 0], b))
    own, theirs = (
        vmap(torch.func.grad(lambda a, b, f=f: f(a, b).square().sum(), (0, 1)))(a, b)
        for f in (matmul, torch.matmul)
    )
    torch.testing.assert_close(own, theirs)
    own, theirs = (torch.func.jvp(f, (a, b), (a.cos(), b.sin())) for f in (matmul, torch.matmul))
    torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_of_linear(backend):
    x, weight, bias = (
        normal(2, 3, 4, dtype=WIDE),
        normal(2, 5, 4, dtype=WIDE),
        normal(2, 5, dtype=WIDE),
    )

    def linear(x, weight, bias=None):
        return diglot.linear(x, weight, bias, backend=backend)

    vmap = torch.func.vmap
    for dims, given in [
        ((0, 0, 0), (x, weight, bias)),
        ((0, None, None), (x, weight[0], bias[0])),
        ((None, 0, None), (x, weight, bias[0])),
        ((None, None, 0), (x, weight[0], bias)),
        ((0, None, 0), (x[:, 0], weight[0], bias)),
        ((0, 0), (x, weight)),
        ((None, 0), (x[0, 0], weight)),
    ]:
        torch.testing.assert_close(vmap(linear, dims)(*given), vmap(F.linear, dims)(*given))
    given = x, weight[0], bias[0]
    for chosen in (
        (True, True, True),
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ):
        tangents = tuple(
            t.cos() if c else torch.zeros_like(t) for t, c in zip(given, chosen, strict=True)
        )
        own, theirs = (torch.func.jvp(f, given, tangents) for f in (linear, F.linear))
        torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_pass_opcheck(backend):
    a, b = leaves((2, 3, 4), (4, 5))
    x, weight, bias = leaves((2, 3, 4), (5, 4), (5,))
    torch.library.opcheck(matmul_operator.dispatched, (a, b, None, False, None, backend))
    arguments = x, weight, bias, None, "none", False, None, backend
    torch.library.opcheck(linear_operator.dispatched, arguments)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compile(backend):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def block(x, weight, bias):
        y = diglot.linear(x, weight, bias, backend=backend)
        return diglot.matmul(y, y.mT, backend=backend)

    for rows in (3, 6):
        x, weight, bias = leaves((rows, 4), (5, 4), (5,))
        y = F.linear(x, weight, bias)
        own, theirs = block(x, weight, bias), y @ y.mT
        torch.testing.assert_close(own, theirs)
        own, theirs = (torch.autograd.grad(r.sum(), (x, weight, bias)) for r in (own, theirs))
        torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast(backend):
    """Dtypes are those of PyTorch's products."""
    x, weight, bias = normal(3, 8, dtype=torch.float32), normal(8, 8, dtype=torch.float32), None
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        for _ in range(2):  # a kind is met for the first time, and again
            result = diglot.matmul(x, weight, backend=backend)
            assert result.dtype == torch.matmul(x, weight).dtype == torch.bfloat16
            assert_product(result, x.bfloat16(), weight.bfloat16())
            mixed = diglot.linear(x.bfloat16(), weight, bias, backend=backend)
            assert mixed.dtype == torch.bfloat16
        assert diglot.matmul(x.double(), weight.double(), backend=backend).dtype == torch.float64
        with pytest.raises(TypeError, match="float64 mixes with no other dtype"):
            diglot.matmul(x.double(), weight, backend=backend)
    assert diglot.matmul(x, weight, backend=backend).dtype == torch.float32


def test_fake_and_meta_tensors():
    a, b = (torch.empty(shape, device="meta") for shape in ((7, 2, 3, 4), (2, 4, 5)))
    assert diglot.matmul(a, b).shape == (7, 2, 3, 5)
    assert diglot.linear(a, b[0].mT, b[0, 0]).shape == (7, 2, 3, 5)
