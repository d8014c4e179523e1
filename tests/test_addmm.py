"""addmm: factors, an input that broadcasts, and PyTorch's hands.

baddbmm shares its operator's code: tests/test_baddbmm.py.
"""

from __future__ import annotations

import pytest
import torch
from backends import BACKENDS, DEVICE, FLOATING, KERNELS, needs_cuda, spacing
from product_cases import assert_derivatives, integers, normal, surrounded

import diglot
from diglot.ops.addmm import _addmm
from diglot.reference.addmm import addmm_oracle
from diglot.reference.matmul import expected_product

M, N, K = 40, 72, 33


def operands(dtype, draw=normal, m=M, n=N, k=K):
    return draw(m, n, dtype=dtype), draw(m, k, dtype=dtype), draw(k, n, dtype=dtype)


def assert_added(result, input, a, b, beta, alpha):
    """Within the rounding of sums, and of the result."""
    expected = addmm_oracle(input, a, b, beta, alpha)
    beside = (beta * input.double()).expand(expected.shape)
    allowed = expected_product(alpha * a.double(), b.double(), beside, result.dtype).allowance
    assert result.shape == expected.shape and result.dtype == a.dtype
    allowed = 2 * allowed + 0.5 * spacing(expected, result.dtype)
    assert ((result.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_values(backend, dtype):
    input, a, b = operands(dtype, k=40 if dtype.itemsize == 2 else K)
    for given in (input, input[:1], input[:, :1], input[0], input[0, 0], surrounded(input),
                  input.mT.contiguous().mT):  # fmt: skip
        result = diglot.addmm(given, a, b, beta=-0.5, alpha=3, backend=backend)
        assert_added(result, given, a, b, -0.5, 3)
    assert diglot.last_run().launcher == "addmm_forward"


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@needs_cuda
def test_integers_are_exact_in_both_languages(dtype):
    input, a, b = operands(dtype, integers, k=40)
    results = [
        diglot.addmm(input, a, b, beta=2, alpha=-1, backend=backend)
        for backend in ("cuda", "triton")
    ]
    assert torch.equal(*results)
    assert torch.equal(results[0].double(), addmm_oracle(input, a, b, 2, -1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_factors_and_sizes(backend):
    input, a, b = operands(torch.float32)
    nothing = torch.full_like(input, torch.nan)
    result = diglot.addmm(nothing, a, b, beta=0, alpha=2, backend=backend)
    torch.testing.assert_close(result, 2 * (a @ b))
    assert diglot.addmm(nothing, a, b, backend=backend).isnan().all()
    empty = diglot.addmm(input, a[:, :0], b[:0], beta=3, backend=backend)
    assert torch.equal(empty, 3 * input)
    assert diglot.addmm(input[:0], a[:0], b, backend=backend).shape == (0, N)


@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives(backend):
    tensors = [t.requires_grad_() for t in operands(torch.float64, m=3, n=5, k=4)]
    tensors[0] = tensors[0][:1].detach().requires_grad_()

    def own(*given):
        return diglot.addmm(*given, beta=0.5, alpha=-2, backend=backend)

    def theirs(*given):
        return torch.addmm(*given, beta=0.5, alpha=-2)

    assert_derivatives(own, theirs, tensors)
    plain = tuple(t.detach() for t in tensors)
    ways = tuple(torch.randn_like(t) for t in plain)
    torch.testing.assert_close(*(torch.func.jvp(f, plain, ways) for f in (own, theirs)))
    batched = [normal(2, *t.shape, dtype=torch.float64) for t in tensors]
    for dims in ((0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0)):
        given = [b if d == 0 else t for t, b, d in zip(tensors, batched, dims, strict=True)]
        results = (torch.vmap(f, dims)(*given) for f in (own, theirs))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pytorch_knows_the_operator(backend):
    input, a, b = operands(torch.float32, m=3, n=5, k=4)
    torch.library.opcheck(_addmm.dispatched, (a, b, input, 0.5, 2.0, None, False, None, backend))
    with torch.autocast(DEVICE, torch.bfloat16):
        assert diglot.addmm(input, a, b, backend=backend).dtype == torch.bfloat16


def test_errors():
    input, a, b = torch.ones(3, 5), torch.ones(3, 4), torch.ones(4, 5)
    for given, options, error, text in [
        ((None, a, b), {}, TypeError, "addmm: input must be a torch.Tensor"),
        ((input.double(), a, b), {}, TypeError, "must have one dtype"),
        ((input, a, b.mT), {}, ValueError, "addmm: mat1 and mat2 do not multiply"),
        ((input, a[None], b), {}, ValueError, "must be matrices"),
        ((input[:2], a, b), {}, ValueError, r"broadcast to the product's shape, \(3, 5\)"),
        ((input[None], a, b), {}, ValueError, "input must broadcast"),
        ((input, a, b), {"beta": "1"}, TypeError, "addmm: beta"),
        ((input, a, b), {"alpha": 1j}, TypeError, "addmm: alpha"),
        ((input, a.to("meta"), b), {}, ValueError, "must be on one device"),
    ]:
        with pytest.raises(error, match=text):
            diglot.addmm(*given, **options)
