"""linear: the bias, the shapes of torch.nn.functional.linear, and the module."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, FLOATING, KERNELS, needs_cuda
from product_cases import (
    assert_derivatives,
    assert_product,
    integers,
    laid_out,
    normal,
    surrounded,
)

import diglot
from diglot.reference.activations import ACTIVATIONS, activate, approximate_of
from diglot.reference.gelu import gelu_oracle
from diglot.reference.linear import linear_oracle
from diglot.reference.matmul import expected_product


def test_oracle():
    x, weight, bias = (normal(*shape, dtype=torch.float32) for shape in ((3, 4), (5, 4), (5,)))
    expected = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(linear_oracle(x, weight, bias), expected)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_values(backend, dtype):
    for shape, n, k in [((40,), 24, 16), ((3, 22), 72, 40), ((65,), 65, 33), ((2, 2, 1), 8, 8)]:
        x, weight, bias = (
            normal(*shape, k, dtype=dtype),
            normal(n, k, dtype=dtype),
            normal(n, dtype=dtype),
        )
        for given in (None, bias, surrounded(bias[None, :])[0], bias[:1]):
            result = diglot.linear(x, weight, given, backend=backend)
            assert_product(result, x, weight.mT, given)
        transposed = laid_out(weight, True)
        assert_product(diglot.linear(x, transposed, bias, backend=backend), x, weight.mT, bias)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_torch_is_pytorchs_own(dtype):
    x, weight, bias = (normal(*s, dtype=dtype) for s in ((3, 50, 40), (72, 40), (72,)))
    result = diglot.linear(x, weight, bias, backend="torch")
    assert torch.equal(result.view(150, 72), torch.addmm(bias, x.view(150, 40), weight.mT))
    product = diglot.linear(x, weight, backend="torch")
    assert torch.equal(product.view(150, 72), x.view(150, 40) @ weight.mT)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@needs_cuda
def test_integers_are_exact_in_both_languages(dtype):
    x, weight, bias = (integers(*s, dtype=dtype) for s in ((50, 72), (40, 72), (40,)))
    results = [diglot.linear(x, weight, bias, backend=backend) for backend in ("cuda", "triton")]
    assert torch.equal(*results)
    assert torch.equal(results[0].double(), linear_oracle(x, weight, bias))


@pytest.mark.parametrize("backend", KERNELS)
def test_the_bias_is_added_before_the_rounding(backend):
    """256 + 1 is no bfloat16, and 257 - 256 is 1 if nothing was rounded."""
    x = torch.ones(8, 16, device=DEVICE, dtype=torch.bfloat16)
    weight = torch.full((8, 16), 257 / 16, dtype=torch.float64).to(DEVICE, torch.float32)
    weight = torch.cat([torch.full((8, 1), 1.0), torch.full((8, 1), 256.0), torch.zeros(8, 14)], 1)
    weight = weight.to(DEVICE, torch.bfloat16)
    bias = torch.full((8,), -256.0, device=DEVICE, dtype=torch.bfloat16)
    assert torch.equal(diglot.linear(x, weight, bias, backend=backend), torch.ones_like(x[:, :8]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_activation_and_residual(backend, dtype, activation):
    """Against the rounded activation of the exact sum. Its slope is at most 1.13."""
    x, weight, bias = (normal(*s, dtype=dtype) for s in ((2, 33, 40), (72, 40), (72,)))
    whole = normal(2, 33, 72, dtype=dtype)
    for residual in (whole, whole[0, :1], surrounded(whole), whole[:, :, :1], None):
        result = diglot.linear(
            x, weight, bias, activation=activation, residual=residual, backend=backend
        )
        beside = bias if residual is None else bias.double() + residual.double()
        expected = expected_product(x, weight.mT, beside, dtype)
        right = activate_exactly(expected.tensors[0], activation)
        error = (result.double() - right).abs()
        bound = 1.13 * 2 * expected.allowance + 2 * torch.finfo(dtype).eps * right.abs()
        assert (error <= bound + torch.finfo(dtype).tiny).all()


@pytest.mark.parametrize("columns", [16, 32, 64, 128, 192, 256])
@needs_cuda
def test_all_that_follows_sums_in_each_width(columns):
    """A bias and a residual by words and by single elements, beside tiles of each width that has
    more than a bias.
    """
    exchanged = {16, 32} & {columns}
    swap = {"products.cuda.swap": 256 if exchanged else 0}
    with diglot.use_plans({"products.cuda.columns": columns} | swap):
        for n, rows in ((columns + 24, 72), (columns - 8, 7)):
            m, n = (columns - 3, n) if exchanged else (rows, n)
            x, weight = (normal(side, 72, dtype=torch.bfloat16) for side in (m, n))
            whole, bias = (
                normal(m, n + 1, dtype=torch.bfloat16),
                normal(n + 1, dtype=torch.bfloat16),
            )
            for start, residual in (
                (0, whole[:, 1:].clone()),
                (1, whole[:, 1:]),
                (0, whole.mT.contiguous().mT[:, :n]),
            ):
                beside = bias[start : start + n], residual
                result = diglot.linear(
                    x, weight, beside[0], activation="relu", residual=residual, backend="cuda"
                )
                last = diglot.last_run()
                assert last is not None and f"{columns}" in last.variant and "wgmma" in last.variant
                expected = linear_oracle(x, weight) + beside[0].double() + residual.double()
                torch.testing.assert_close(result.double(), expected.relu(), rtol=2**-7, atol=2**-7)


def activate_exactly(x, activation):
    """In float64, also where the textbook formula of GELU cancels."""
    if activation.startswith("gelu"):
        return gelu_oracle(x, approximate_of(activation))
    return activate(x, activation)


@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives_with_an_activation(backend, activation):
    shapes = (3, 4), (5, 4), (5,), (3, 1)
    tensors = [normal(*s, dtype=torch.float64).requires_grad_() for s in shapes]

    def own(x, weight, bias, residual):
        return diglot.linear(
            x, weight, bias, activation=activation, residual=residual, backend=backend
        )

    def theirs(x, weight, bias, residual):
        return activate(F.linear(x, weight, bias) + residual, activation or "none")

    assert_derivatives(own, theirs, tensors)
    plain = tuple(t.detach() for t in tensors)
    directions = tuple(torch.randn_like(t) for t in plain)
    torch.testing.assert_close(*(torch.func.jvp(f, plain, directions) for f in (own, theirs)))
    batched = [normal(2, *s, dtype=torch.float64) for s in shapes]
    for dims in ((0, None, None, 0), (None, None, None, 0), (None, 0, 0, None)):
        given = [b if d == 0 else t for t, b, d in zip(plain, batched, dims, strict=True)]
        torch.testing.assert_close(*(torch.vmap(f, dims)(*given) for f in (own, theirs)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend):
    """ReLU keeps NaN, and its derivative at zero is zero, as PyTorch's."""
    x = torch.tensor([[torch.nan], [0.0], [-1.0], [2.0]], device=DEVICE, requires_grad=True)
    one = torch.ones(1, 1, device=DEVICE)
    y = diglot.linear(x, one, activation="relu", backend=backend)
    torch.testing.assert_close(y, F.relu(x), equal_nan=True)
    y.sum().backward()
    assert x.grad.flatten()[1:].tolist() == [0, 0, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_elements(backend):
    bias = normal(5, dtype=torch.float32)
    x, weight = torch.ones(3, 0, device=DEVICE), torch.ones(5, 0, device=DEVICE)
    assert torch.equal(diglot.linear(x, weight, bias, backend=backend), bias.expand(3, 5))
    assert diglot.linear(x, weight, backend=backend).eq(0).all()
    empty = torch.ones(0, 4, device=DEVICE)
    assert diglot.linear(empty, torch.ones(5, 4, device=DEVICE), bias, backend=backend).shape == (
        0,
        5,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors(backend):
    x, weight, bias = (
        normal(4, dtype=torch.float32),
        normal(5, 4, dtype=torch.float32),
        normal(5, dtype=torch.float32),
    )
    for given in ((x, weight, bias), (x, weight), (x[None], weight[0]), (x, weight[0]),
                  (x[None], weight[0], bias[0]), (x, weight[0], bias[0])):  # fmt: skip
        result = diglot.linear(*given, backend=backend)
        product = torch.matmul(given[0], given[1].T)  # PyTorch adds no bias to such a product
        expected = product + given[2] if len(given) == 3 else product
        assert result.shape == expected.shape
        torch.testing.assert_close(result, expected)


def test_errors():
    x, weight, bias = torch.ones(3, 4), torch.ones(5, 4), torch.ones(5)
    for given, error, text in [
        ((x, None), TypeError, "weight must be a torch.Tensor"),
        ((x, weight, bias.double()), TypeError, "must have one dtype"),
        ((x, weight[:, :3]), ValueError, r"last dimensions of input \(3, 4\) and weight \(5, 3\)"),
        ((x, weight[None]), ValueError, "weight one or two"),
        ((x[0, 0], weight), ValueError, "at least one dimension"),
        ((x, weight, bias[:4]), ValueError, r"bias must have the shape \(5,\), not \(4,\)"),
        ((x, weight, bias[None]), ValueError, "bias must have the shape"),
        ((x, weight, bias.to("meta")), ValueError, "must be on one device"),
    ]:
        with pytest.raises(error, match=text):
            diglot.linear(*given)
    with pytest.raises(ValueError, match="activation must be None or one of"):
        diglot.linear(x, weight, activation="tanh")
    with pytest.raises(
        ValueError, match=r"residual must broadcast to the result's shape, \(3, 5\)"
    ):
        diglot.linear(x, weight, residual=x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_module(backend):
    torch.manual_seed(5)
    own = diglot.nn.Linear(8, 16, device=DEVICE, backend=backend)
    torch.manual_seed(5)
    theirs = torch.nn.Linear(8, 16, device=DEVICE)
    assert list(own.state_dict()) == list(theirs.state_dict())
    assert torch.equal(own.weight, theirs.weight)
    x = normal(3, 8, dtype=torch.float32)
    torch.testing.assert_close(own(x), theirs(x))
    assert diglot.last_run().launcher == "linear_forward"
    assert diglot.last_run().backend == backend
    copy = pickle.loads(pickle.dumps(own))
    assert torch.equal(copy(x), own(x))
    assert str(own).startswith("diglot.nn.Linear(in_features=8")
    assert diglot.nn.Linear(8, 4, bias=False).bias is None
