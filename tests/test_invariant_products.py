"""Products whose rows have the same bits however many there are: `batch_invariant=True`, and
`use_plans("invariant")`.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from backends import DEVICE, KERNELS
from product_cases import assert_product, laid_out, normal, surrounded

import diglot
from diglot.backends.aligned_rows import in_even_rows, lies_in_rows
from diglot.backends.plans import Device, plan_runs

MOST = 300  # rows
N, K = 8, 136
FEW = (1, 64, 17, 129)
DTYPES = [torch.bfloat16, torch.float32]
WAYS = {
    "argument": (contextlib.nullcontext, {"batch_invariant": True}),
    "context": (lambda: diglot.use_plans("invariant"), {}),
}
each_way = pytest.mark.parametrize("way", WAYS)
each_backend = pytest.mark.parametrize("backend", KERNELS)


def operands(dtype, rows=MOST, n=N, k=K):
    return normal(rows, k, dtype=dtype), normal(k, n, dtype=dtype), normal(n, dtype=dtype)


def products(b, bias):
    """Functions of rows (M, K), or of a batch of them, and whether a bias is added."""
    batch = torch.stack([b, b.flip(0)])
    return {
        "matmul": (lambda x, **how: diglot.matmul(x, b, **how), False),
        "linear": (lambda x, **how: diglot.linear(x, b.mT, bias, **how), True),
        "addmm": (lambda x, **how: diglot.addmm(bias, x, b, **how), True),
        "bmm": (lambda x, **how: diglot.bmm(pairs(x), batch, **how)[0], False),
        "baddbmm": (lambda x, **how: diglot.baddbmm(bias, pairs(x), batch, **how)[0], True),
    }


def pairs(rows):
    """Rows as a batch's first matrix. Its second one has them in another order."""
    return torch.stack([rows, rows.flip(0)])


def assert_rows(rows, dtype, backend, way):
    context, option = WAYS[way]
    a, b, bias = operands(dtype)
    option = {**option, "backend": backend}
    with context():
        for op, (function, has_bias) in products(b, bias).items():
            whole = function(a, **option)
            assert_product(whole, a, b, bias if has_bias else None)
            for m in rows:
                part = slice(MOST - m, MOST) if m % 2 else slice(m)
                assert torch.equal(function(a[part], **option), whole[part]), (op, m)


@each_way
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_backend
def test_few_numbers_of_rows(backend, dtype, way):
    assert_rows(FEW if dtype == DTYPES[0] else FEW[:1], dtype, backend, way)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["matmul", "addmm", "bmm", "baddbmm"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_backend
def test_every_number_of_rows(backend, dtype, op):
    a, b, bias = operands(dtype, k=K if op == "matmul" else 40)  # one step takes less time
    function, _ = products(b, bias)[op]
    option = {"batch_invariant": True, "backend": backend}
    whole = function(a, **option)
    for m in range(1, MOST):
        assert torch.equal(function(a[:m], **option), whole[:m]), m


@each_backend
def test_rows_of_batches(backend):
    """However many matrices there are, and however they and the input lie."""
    dtype = torch.bfloat16
    a, b = normal(3, 40, K, dtype=dtype), normal(3, K, N, dtype=dtype)
    input = normal(3, 40, N, dtype=dtype)
    option = {"batch_invariant": True, "backend": backend}
    product = diglot.bmm(a, b, **option)
    sums = diglot.baddbmm(input, a, b, beta=-2, alpha=0.5, **option)
    for matrices in (slice(1), slice(1, 3)):
        for rows in (slice(40), slice(7), slice(11, 12)):
            x, y, beside = a[matrices, rows], b[matrices], input[matrices, rows]
            for given in (x, laid_out(x, True), surrounded(x), x.repeat_interleave(2, 1)[:, ::2]):
                assert torch.equal(diglot.bmm(given, y, **option), product[matrices, rows])
                for added in (beside, laid_out(beside, True), surrounded(beside)):
                    result = diglot.baddbmm(added, given, y, beta=-2, alpha=0.5, **option)
                    assert torch.equal(result, sums[matrices, rows])
    one = diglot.addmm(input[0], a[0], b[0], beta=-2, alpha=0.5, **option)
    assert torch.equal(one, sums[0])


@pytest.mark.parametrize("k", [40, 77])
@each_backend
def test_rows_that_lie_otherwise(backend, k):
    """A row alone, with gaps, at an odd place, transposed, in a batch, or for all."""
    a, b, _ = operands(torch.bfloat16, rows=12, k=k)
    option = {"batch_invariant": True, "backend": backend}
    expected = diglot.matmul(a, b, **option)
    for name, given, rows in [
        ("apart", surrounded(a), slice(None)),
        ("transposed", laid_out(a, True), slice(None)),
        ("one, transposed", laid_out(a, True)[3:4], slice(3, 4)),
        ("one, apart", surrounded(a)[5:6], slice(5, 6)),
        ("every other", a.repeat_interleave(2, 0)[1::2], slice(None)),
    ]:
        assert torch.equal(diglot.matmul(given, b, **option), expected[rows]), name
    batch = a.view(3, 4, k)
    assert torch.equal(diglot.matmul(batch, b, **option), expected.view(3, 4, N))
    assert torch.equal(diglot.matmul(batch[:, :2], b, **option), expected.view(3, 4, N)[:, :2])
    assert torch.equal(diglot.matmul(a[2:3].expand(5, k), b, **option), expected[2:3].expand(5, N))
    assert torch.equal(diglot.matmul(a[2], b, **option), expected[2])


@each_backend
def test_gradients(backend):
    """A row of the input's gradient has the same bits too."""
    a, b, bias = operands(torch.bfloat16, rows=70)
    grad = normal(70, N, dtype=torch.bfloat16)

    def gradient(function, rows):
        leaf = a[:rows].clone().requires_grad_()
        return torch.autograd.grad(function(leaf), leaf, grad[:rows])[0]

    option = {"batch_invariant": True, "backend": backend}
    scaled = {"scaled": (lambda x, **how: diglot.addmm(bias, x, b, alpha=0.5, **how), True)}
    for product, _ in {**products(b, bias), **scaled}.values():

        def function(x, product=product):
            return product(x, **option)

        with diglot.record_runs() as runs:
            whole = gradient(function, 70)
        assert not any("exchanged" in run.variant for run in runs)
        for rows in (1, 9, 64):
            assert torch.equal(gradient(function, rows), whole[:rows])


@pytest.mark.skipif(DEVICE != "cpu", reason="plans of named devices")
@each_way
@each_backend
def test_plans_do_not_depend_on_rows(backend, way):
    """Neither the kernel nor its order of sums, where others exchange operands or split K."""
    context, option = WAYS[way]
    b, odd = (torch.empty(1024, n, dtype=torch.bfloat16) for n in (4096, 4095))
    for other in (b, odd):
        of_other = products(other, torch.empty(other.shape[1], dtype=torch.bfloat16))
        for op, (function, _) in of_other.items():
            found = set()
            for m in (1, 16, 64, 128, 300, 4096):
                a = torch.empty(m, 1024, dtype=torch.bfloat16)
                with context(), plan_runs(Device(90, 132, 228 << 10, True, "h200")) as runs:
                    function(a, **option, backend=backend)
                plan = runs[-1].plan
                found.add((plan.variant, plan.launches[-1].kernel))
            assert len(found) == 1, (op, found)
            assert "exchanged" not in plan.variant and "parts" not in plan.variant


def test_the_backend():
    """PyTorch's products promise no order, so they are no answer to the argument."""
    a, b, bias = operands(torch.float32, rows=3)
    for backend in ("torch", "auto") if DEVICE == "cpu" else ("torch",):
        for function, _ in products(b, bias).values():
            with pytest.raises(diglot.BackendUnavailable, match=r"batch.invariant"):
                function(a, batch_invariant=True, backend=backend)
    meta = torch.empty(3, K, device="meta")
    assert diglot.matmul(meta, b.to("meta"), batch_invariant=True).shape == (3, N)
    with diglot.use_plans("invariant"):
        for op, (function, has_bias) in products(b, bias).items():
            assert_product(function(a), a, b, bias if has_bias else None)
            assert diglot.last_run().backend == ("torch" if DEVICE == "cpu" else "cuda")
            assert diglot.last_run().op == op
    assert_product(diglot.matmul(a, b), a, b)
    assert diglot.last_run().backend == "torch"


@pytest.mark.slow
@each_backend
def test_compiled_graphs(backend):
    torch._dynamo.reset()
    a, b, bias = operands(torch.bfloat16, rows=20)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x):
        return diglot.linear(x, b.mT, bias, batch_invariant=True, backend=backend)

    assert torch.equal(layer(a)[3:6], layer(a[3:6]))
    torch._dynamo.reset()


def test_what_is_copied():
    a, columns = normal(6, 32, dtype=torch.bfloat16), normal(32, 8, dtype=torch.bfloat16).mT
    for given in (a, a[2:], a[:, 8:24], columns, a.view(2, 3, 32)):
        assert in_even_rows(given) is given
    for given in (a[:, 1:9], a[:, ::2], a[:1].expand(6, 32), laid_out(a, True),
                  a.view(2, 3, 32)[:, :2], normal(3, 33, dtype=a.dtype)):  # fmt: skip
        copy = in_even_rows(given)
        assert copy is not given and torch.equal(copy, given) and lies_in_rows(copy, -1)
