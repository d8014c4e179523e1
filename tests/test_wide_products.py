"""`out_dtype` of products: float32 results of 16-bit operands, as PyTorch has on GPUs."""

from __future__ import annotations

import pytest
import torch
from backends import BACKENDS, DEVICE, KERNELS, needs_cuda, needs_extension
from product_cases import LAYOUTS, integers, laid_out, normal, operands, surrounded

import diglot
from diglot.backends.plans import Device, plan_runs
from diglot.ops.addmm import _addmm
from diglot.ops.bmm import _bmm
from diglot.ops.products import matmul_operator
from diglot.reference.matmul import expected_product

F32, BF16 = torch.float32, torch.bfloat16
WIDE = {"out_dtype": F32}
each_backend = pytest.mark.parametrize("backend", KERNELS)
each_half = pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)


def assert_wide(result, a, b, beside=None, beta=1.0, alpha=1.0):
    """Asserts that nothing was rounded to 16 bits: errors are those of sums in float32."""
    a = alpha * a.double()
    right = a @ b.double()
    added = torch.zeros_like(right) if beside is None else beta * beside.double()
    allowed = 2 * expected_product(a, b, added, F32).allowance
    assert result.dtype == F32 and result.shape == right.shape and result.is_contiguous()
    error = (result.double() - right - added).abs()
    assert (error <= allowed).all(), (error - allowed).max()


# Edges of tiles and of steps along K, a single row, few columns.
@pytest.mark.parametrize(
    "sizes", [(130, 140, 72), (33, 268, 200), (1, 64, 64), (70, 8, 24)], ids=str
)
@each_half
@each_backend
def test_layouts(backend, dtype, sizes):
    for layout in LAYOUTS:
        a, b = operands(*sizes, layout, dtype)
        assert_wide(diglot.matmul(a, b, **WIDE, backend=backend), a, b)


@each_half
@each_backend
def test_tensor_cores_take_them(backend, dtype):
    """What TMA cannot read is copied, and threads store what it cannot."""
    a, b = normal(2, 72, 136, dtype=dtype), normal(2, 136, 88, dtype=dtype)
    for x, y, text in [
        (a, b, ""),
        (laid_out(a, True), laid_out(b, True), ""),
        (a[0], b[0, :, :45], ""),
        (a[:1].expand_as(a), b, ""),
        (surrounded(a[0]), surrounded(b[0]), "copies of A and B"),
    ]:
        assert_wide(diglot.matmul(x, y, **WIDE, backend=backend), x, y)
        variant = diglot.last_run().variant
        assert variant.startswith(("wgmma", "descriptors")) and text in variant


@each_half
@each_backend
def test_all_others(backend, dtype):
    """Without tensor cores in CUDA C++, and by addresses in Triton."""
    a, b = normal(2, 3, 1, 37, 9, dtype=dtype).transpose(0, 1), normal(1, 2, 5, 9, 21, dtype=dtype)
    assert_wide(diglot.matmul(a, b, **WIDE, backend=backend), a, b)
    assert diglot.last_run().variant.startswith(("fma", "pointers"))
    a, b = normal(7, 5, dtype=dtype), normal(5, 3, dtype=dtype)
    assert_wide(diglot.matmul(a, b, **WIDE, backend=backend), a, b)
    assert diglot.matmul(a[:, :0], b[:0], **WIDE, backend=backend).eq(0).all()
    assert diglot.matmul(a[:0], b, **WIDE, backend=backend).shape == (0, 3)
    assert_wide(diglot.matmul(a[0], b[:, 0], **WIDE, backend=backend)[None, None], a[:1], b[:, :1])


@pytest.mark.parametrize("k", [96, 5])
@each_backend
def test_added_matrices(backend, k):
    """The input has either dtype, and broadcasts. A factor of 0 hides NaN."""
    a, b = normal(2, 70, k, dtype=BF16), normal(2, k, 72, dtype=BF16)
    numbers, how = {"beta": -2, "alpha": 0.5}, {**WIDE, "backend": backend}
    nothing = torch.full((72,), torch.nan, device=DEVICE)
    for dtype in (F32, BF16):
        for shape in ((72,), (70, 72), (70, 1)):
            input = normal(*shape, dtype=dtype)
            added = diglot.addmm(input, a[0], b[0], **numbers, **how)
            assert_wide(added, a[0], b[0], input.expand(70, 72), **numbers)
            added = diglot.baddbmm(input, a, b, **numbers, **how)
            assert_wide(added, a, b, input.expand(2, 70, 72), **numbers)
        assert_wide(diglot.addmm(nothing.to(dtype), a[0], b[0], beta=0, **how), a[0], b[0])
    assert_wide(diglot.bmm(a, b, **how), a, b)


@each_backend
def test_parts_of_k(backend):
    a, b = operands(40, 72, 2000, "NT", BF16)
    with diglot.use_plans({f"products.{backend}.split": 3}):
        assert_wide(diglot.matmul(a, b, **WIDE, backend=backend), a, b)
        assert "K in 3 parts" in diglot.last_run().variant


@needs_cuda
@pytest.mark.parametrize("columns", [64, 128, 256])
def test_widths_of_tiles(columns):
    with diglot.use_plans({"products.cuda.columns": columns}):
        for layout, n in zip(("NT", "TN"), (columns, columns + 8), strict=True):
            a, b = operands(200, n, 104, layout, BF16)
            assert_wide(diglot.matmul(a, b, **WIDE, backend="cuda"), a, b)
            assert f"tiles of 128x{columns}" in diglot.last_run().variant


@needs_cuda
def test_integers_are_exact_in_both_languages():
    """Also above 256, which bfloat16 does not hold."""
    for layout in LAYOUTS:
        a, b = (5 * x for x in operands(73, 141, 203, layout, BF16, integers))
        x, y = (diglot.matmul(a, b, **WIDE, backend=backend) for backend in ("cuda", "triton"))
        assert torch.equal(x, y) and torch.equal(x.double(), a.double() @ b.double())
    assert x.abs().max() > 256 and not torch.equal(x, x.bfloat16().float())


@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives(backend):
    """Those of the same product that is rounded to 16 bits: its gradient has 16 bits too."""
    a, b = normal(2, 6, 8, dtype=BF16), normal(2, 8, 5, dtype=BF16)
    row, grad = normal(5, dtype=F32), normal(2, 6, 5, dtype=BF16).float()
    for function, given in [
        (lambda x, y, **how: diglot.matmul(x, y, **how), (a, b)),
        (lambda x, y, **how: diglot.matmul(x, y, **how), (a, b[0])),
        (lambda x, y, **how: diglot.bmm(x, y, **how), (a, b)),
        (lambda x, y, **how: diglot.baddbmm(row.to(how.get("out_dtype", BF16)), x, y, beta=2,
                                            alpha=-0.5, **how), (a, b)),
    ]:  # fmt: skip
        results = []
        for how in (WIDE, {}):
            leaves = [t.detach().requires_grad_() for t in given]
            result = function(*leaves, **how, backend=backend)
            grads = torch.autograd.grad(result, leaves, grad.to(result), create_graph=True)
            total = sum(g.float().square().sum() for g in grads)
            results.append((*grads, *torch.autograd.grad(total, leaves)))
            assert all(g.dtype == BF16 for g in results[-1])
        assert all(map(torch.equal, *results))
    ways = a.sin(), b.cos()
    made = torch.func.jvp(lambda x, y: diglot.bmm(x, y, **WIDE, backend=backend), (a, b), ways)
    assert_wide(made[0], a, b)
    right = ways[0].double() @ b.double() + a.double() @ ways[1].double()
    assert made[1].dtype == F32
    torch.testing.assert_close(made[1].double(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_the_input(backend):
    """It is not rounded to the operands' 16 bits."""
    a, b = normal(6, 8, dtype=BF16), normal(8, 5, dtype=BF16)
    input, grad = normal(5, dtype=F32).requires_grad_(), normal(6, 5, dtype=F32)
    result = diglot.addmm(input, a, b, beta=3, **WIDE, backend=backend)
    (of_input,) = torch.autograd.grad(result, input, grad)
    torch.testing.assert_close(of_input, 3 * grad.sum(0))
    ahead = torch.func.jvp(
        lambda x: diglot.addmm(x, a, b, beta=3, **WIDE, backend=backend),
        (input.detach(),), (grad[0],),
    )[1]  # fmt: skip
    torch.testing.assert_close(ahead, 3 * grad[0].expand(6, 5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_pytorch_knows_the_operators(backend):
    a, b = (normal(*s, dtype=BF16).requires_grad_() for s in ((2, 3, 8), (2, 8, 5)))
    how = F32, False, None, backend
    checks = "test_schema", "test_faketensor", "test_autograd_registration"
    for operator, given in [
        (matmul_operator, (a, b)),
        (_bmm, (a, b)),
        (_addmm, (a[0], b[0], normal(5, dtype=F32), 0.5, 2.0)),
    ]:
        torch.library.opcheck(operator.dispatched, (*given, *how), test_utils=checks)

    def own(a, b):
        return diglot.bmm(a, b, **WIDE, backend=backend)

    a, b = a.detach(), b.detach()
    assert_wide(torch.vmap(own)(a[None], b[None])[0], a, b)
    meta = own(a.to("meta"), b.to("meta")) if backend == "torch" else torch.empty(2, 3, 5)
    assert meta.shape == (2, 3, 5) and meta.dtype == F32


@pytest.mark.parametrize("backend", BACKENDS)
def test_compile(backend):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def block(row, a, b):
        sums = diglot.addmm(row, a, b, **WIDE, backend=backend)
        return diglot.matmul(sums.bfloat16(), b.mT, **WIDE, backend=backend)

    for rows in (3, 6):
        row, a, b = normal(16, dtype=F32), normal(rows, 8, dtype=BF16), normal(8, 16, dtype=BF16)
        a.requires_grad_()
        result = block(row, a, b)
        sums = diglot.addmm(row, a, b, **WIDE, backend=backend)
        eager = diglot.matmul(sums.bfloat16(), b.mT, **WIDE, backend=backend)
        torch.testing.assert_close(result, eager)
        own, theirs = (torch.autograd.grad(r.sum(), a)[0] for r in (result, eager))
        torch.testing.assert_close(own, theirs)
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_leaves_them_alone(backend):
    """As it leaves PyTorch's."""
    a, b = normal(3, 8, dtype=F32), normal(8, 8, dtype=F32)
    with torch.autocast(DEVICE, dtype=BF16):
        for _ in range(2):  # a kind is met for the first time, and again
            assert_wide(diglot.matmul(a, b, **WIDE, backend=backend), a, b)
            assert_wide(diglot.addmm(b[0], a, b, **WIDE, backend=backend), a, b, b[:1].expand(3, 8))
            for function in (
                diglot.matmul,
                diglot.bmm,
                lambda *t, **how: diglot.addmm(b[0], *t, **how),
            ):
                given = (
                    (a[None], b[None].bfloat16()) if function is diglot.bmm else (a, b.bfloat16())
                )
                with pytest.raises(TypeError, match="autocast casts no operands"):
                    function(*given, **WIDE, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_its_own_dtype(backend):
    for dtype in (BF16, F32, torch.float64):
        a, b = normal(3, 8, dtype=dtype), normal(8, 8, dtype=dtype)
        same = diglot.matmul(a, b, out_dtype=dtype, backend=backend)
        assert torch.equal(same, diglot.matmul(a, b, backend=backend))


@each_backend
def test_rows_have_the_same_bits(backend):
    a, b = normal(140, 72, dtype=BF16), normal(72, 8, dtype=BF16)
    how = {**WIDE, "batch_invariant": True, "backend": backend}
    whole = diglot.matmul(a, b, **how)
    assert_wide(whole, a, b)
    for rows in (1, 17, 64, 129):
        assert torch.equal(diglot.matmul(a[:rows], b, **how), whole[:rows])


@needs_extension
@pytest.mark.skipif(DEVICE != "cpu", reason="plans of a named device")
@each_backend
def test_plans(backend):
    """Large tiles for large products, and several parts of K where tiles are few."""
    h200 = Device(90, 132, 228 << 10, True, "h200")
    found = []
    for m, n, k in [(8192, 8192, 8192), (64, 256, 8192)]:
        with plan_runs(h200) as runs:
            diglot.matmul(torch.empty(m, k, dtype=BF16), torch.empty(k, n, dtype=BF16), **WIDE,
                          backend=backend)  # fmt: skip
        found.append(runs[0].plan)
    assert "256" in found[0].variant or "192" in found[0].variant
    assert "parts" in found[1].variant and found[1].scratch.zeroed


def test_errors():
    a, b = torch.ones(3, 4, dtype=BF16), torch.ones(4, 5, dtype=BF16)
    row = torch.ones(5, dtype=BF16)
    for call in (
        lambda dtype: diglot.matmul(a, b, out_dtype=dtype),
        lambda dtype: diglot.bmm(a[None], b[None], out_dtype=dtype),
        lambda dtype: diglot.addmm(row, a, b, out_dtype=dtype),
        lambda dtype: diglot.baddbmm(row, a[None], b[None], out_dtype=dtype),
    ):
        for dtype in (torch.float16, torch.float64, torch.int32, "float32"):
            with pytest.raises(TypeError, match=r"out_dtype must be torch.bfloat16, the operands'"):
                call(dtype)
    with pytest.raises(TypeError, match=r"out_dtype must be torch\.float64"):
        diglot.matmul(a.double(), b.double(), out_dtype=F32)
    with pytest.raises(
        TypeError, match=r"mat1 and input must have one dtype, or input torch\.float32"
    ):
        diglot.addmm(row.double(), a, b, out_dtype=F32)
    with pytest.raises(TypeError, match="mat1 and input must have one dtype, not"):
        diglot.addmm(row.float(), a, b)
    with pytest.raises(ValueError, match="mat1 and input must be on one device"):
        diglot.addmm(row.to("meta"), a, b, out_dtype=F32)
