"""Products of float32 in TF32, where PyTorch's switches ask for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from backends import DEVICE, KERNELS, needs_cuda
from planted.faults import NO_FAULT, Fault, plant
from planted.library import ROOT
from product_cases import LAYOUTS, assert_product, integers, normal, operands, surrounded

import diglot
from diglot.ops.products import choose_product
from diglot.reference.matmul import matmul_oracle

F32 = torch.float32
MATMUL = torch.backends.cuda.matmul


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    before = MATMUL.fp32_precision
    MATMUL.fp32_precision = name
    try:
        yield
    finally:
        MATMUL.fp32_precision = before


def cut(x: torch.Tensor) -> torch.Tensor:
    """What tensor cores read of float32: without the last 13 bits."""
    return (x.contiguous().view(torch.int32) & -(1 << 13)).view(F32)


def check(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, backend: str) -> str:
    """Asserts the values of a product in TF32; its variant."""
    with precision("tf32"):
        if bias is None:
            result = diglot.matmul(a, b, backend=backend)
        else:
            result = diglot.linear(a, b.mT, bias, backend=backend)
    assert_product(result, cut(a), cut(b), bias)
    assert not torch.equal(result.double(), matmul_oracle(a, b).to(result).double())
    return diglot.last_run().variant


# Edges of tiles, of steps of 32 along K, and rows that TMA can store and that it cannot.
@pytest.mark.parametrize("sizes", [(130, 140, 72), (33, 67, 201), (65, 200, 100)], ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_layouts(backend, sizes):
    for layout in LAYOUTS:
        a, b = operands(*sizes, layout, F32)
        assert ", TF32" in check(a, b, None, backend)


@pytest.mark.parametrize("backend", KERNELS)
def test_operands_along_k_are_not_copied(backend):
    """wgmma reads float32 along K alone, so that other layouts are transposed in a copy."""
    copies = {"NT": "", "NN": "y of B", "TT": "y of A", "TN": "ies of A and B"}
    for layout in LAYOUTS:
        a, b = operands(72, 136, 96, layout, F32)
        assert check(a, b, None, backend).partition(", cop")[2] == copies[layout]
        assert check(surrounded(a), surrounded(b), None, backend).endswith("copies of A and B")


@pytest.mark.parametrize("backend", KERNELS)
def test_bias_and_batches(backend):
    a, bias = normal(2, 70, 199, dtype=F32), normal(65, dtype=F32)
    weight = normal(65, 199, dtype=F32)
    assert ", TF32" in check(a, weight.mT, bias, backend)
    b = normal(2, 199, 68, dtype=F32)
    assert ", TF32" in check(a, b, None, backend)
    assert ", TF32" in check(normal(3, 2, 33, 199, dtype=F32).transpose(0, 1),
                             normal(3, 199, 41, dtype=F32), None, backend)  # fmt: skip


@pytest.mark.parametrize("backend", KERNELS)
def test_batches_and_added_matrices(backend):
    """bmm, addmm, baddbmm: with factors, and an input that broadcasts."""
    a, b, row = normal(2, 70, 96, dtype=F32), normal(2, 96, 72, dtype=F32), normal(72, dtype=F32)
    calls = {
        "bmm": lambda a, b: diglot.bmm(a, b, backend=backend),
        "addmm": lambda a, b: diglot.addmm(row, a[0], b[0], beta=2, alpha=0.5, backend=backend),
        "baddbmm": lambda a, b: diglot.baddbmm(row, a, b, beta=2, alpha=0.5, backend=backend),
    }
    for op, call in calls.items():
        exact = matmul_oracle(cut(a), cut(b))
        if op != "bmm":
            exact = 2 * row.double() + 0.5 * (exact[0] if op == "addmm" else exact)
        with precision("tf32"):
            result = call(a, b)
        assert diglot.last_run().launcher == f"{op}_forward"
        assert ", TF32" in diglot.last_run().variant, op
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-4)
        ieee = call(a, b)
        assert ", TF32" not in diglot.last_run().variant, op
        assert (ieee - result).abs().max() > 1e-3, op  # the last 13 bits count


@pytest.mark.parametrize("backend", KERNELS)
def test_hidden_gradient_of_mlp(backend):
    """Its launch has an input and the activation's slope."""
    x, w1, w2 = (normal(*sides, dtype=F32) for sides in ((70, 96), (104, 96), (136, 104)))
    leaf = x.clone().requires_grad_()
    with precision("tf32"), diglot.backends.record_runs() as runs:
        out = diglot.mlp(leaf, w1, None, w2, None, "relu", backend=backend)
        out.backward(torch.ones_like(out))
    assert len(runs) > 3 and all(", TF32" in run.variant for run in runs), runs
    hidden = matmul_oracle(cut(x), cut(w1).mT)
    through = w2.double().sum(0) * (hidden > 0)
    torch.testing.assert_close(leaf.grad.double(), through @ w1.double(), rtol=1e-2, atol=1e-1)


@needs_cuda
def test_integers_are_exact_in_both_languages():
    for layout in LAYOUTS:
        a, b = operands(73, 141, 203, layout, F32, integers)
        with precision("tf32"):
            results = [diglot.matmul(a, b, backend=backend) for backend in ("cuda", "triton")]
        assert torch.equal(*results)
        assert torch.equal(results[0].double(), matmul_oracle(a, b))


@needs_cuda
@pytest.mark.parametrize("columns", [64, 96, 128, 160, 192, 224, 256])
def test_widths_of_tiles(columns):
    with diglot.use_plans({"products.cuda.columns": columns}):
        for layout, n in zip(("NT", "TN"), (columns, columns + 3), strict=True):
            variant = check(*operands(72, n, 104, layout, F32), None, "cuda")
            assert variant.startswith(f"wgmma, tiles of 128x{columns}, TF32")


@pytest.mark.parametrize("backend", KERNELS)
def test_parts_of_k(backend):
    a, b = operands(40, 72, 700, "NT", F32)
    with diglot.use_plans({f"products.{backend}.split": 3, "products.cuda.split_in_cluster": 1}):
        assert "K in 3 parts, TF32" in check(a, b, None, backend)


@needs_cuda
@pytest.mark.parametrize("columns", [64, 160, 224])
def test_parts_of_k_in_clusters(columns):
    """As many parts in scratch have the same bits."""
    a, b = operands(70, columns - 8, 700, "NT", F32)
    numbers = {"products.cuda.split": 3, "products.cuda.columns": columns}
    results = []
    for where, name in ((2, " of a cluster"), (1, "")):
        with diglot.use_plans({**numbers, "products.cuda.split_in_cluster": where}):
            variant = check(a, b, normal(columns - 8, dtype=F32), "cuda")
            assert variant == f"wgmma, tiles of 128x{columns}, K in 3 parts{name}, TF32"
            with precision("tf32"):
                results.append(diglot.matmul(a, b, backend="cuda"))
    assert torch.equal(*results)


def switches() -> Iterator[tuple[object, object]]:
    """What turns TF32 on, and what turns it off again."""
    yield (
        lambda: setattr(MATMUL, "allow_tf32", True),
        lambda: setattr(MATMUL, "allow_tf32", False),
    )
    yield (lambda: torch.set_float32_matmul_precision("high"),
           lambda: torch.set_float32_matmul_precision("highest"))  # fmt: skip
    yield (lambda: setattr(MATMUL, "fp32_precision", "tf32"),
           lambda: setattr(MATMUL, "fp32_precision", "ieee"))  # fmt: skip


@pytest.mark.parametrize("backend", KERNELS)
def test_a_switch_changes_the_next_call(backend):
    """Calls keep their plans, but those of the other precision are other plans."""
    a, b = operands(40, 72, 96, "NT", F32)
    for on, off in switches():
        results = []
        for switch in (on, off):
            switch()
            results.append(diglot.matmul(a, b, backend=backend))
            assert (", TF32" in diglot.last_run().variant) == (switch is on)
        assert_product(results[0], cut(a), cut(b))
        assert_product(results[1], a, b)
    with precision("tf32"):
        for dtype in (torch.bfloat16, torch.float64):
            diglot.matmul(a.to(dtype), b.to(dtype), backend=backend)
            assert ", TF32" not in diglot.last_run().variant


@pytest.mark.parametrize("backend", KERNELS)
def test_gradients(backend):
    """Those of integers are exact, and made in TF32 too."""
    a, b = integers(200, 232, dtype=F32).requires_grad_(), integers(232, 216, dtype=F32)
    b.requires_grad_()
    with precision("tf32"), diglot.backends.record_runs() as runs:
        product = diglot.matmul(a, b, backend=backend)
        product.backward(torch.ones_like(product))
    assert torch.equal(a.grad, b.detach().sum(1).expand(200, 232))
    assert torch.equal(b.grad, a.detach().sum(0)[:, None].expand(232, 216))
    assert len(runs) == 3 and all(", TF32" in run.variant for run in runs)


def calls(m=72, n=80, k=96):
    """Products of a (m, k), b (k, n) and a row, as functions of options."""
    a, b, row = normal(m, k, dtype=F32), normal(k, n, dtype=F32), normal(n, dtype=F32)
    more = normal(k, n, dtype=F32)
    return (a, b, row), {
        "matmul": lambda a, b, row, **how: diglot.matmul(a, b, **how),
        "linear": lambda a, b, row, **how: diglot.linear(a, b.mT, row, **how),
        "addmm": lambda a, b, row, **how: diglot.addmm(row, a, b, alpha=0.5, **how),
        "bmm": lambda a, b, row, **how: diglot.bmm(a[None], b[None], **how),
        "baddbmm": lambda a, b, row, **how: diglot.baddbmm(row, a[None], b[None], **how),
        "mlp": lambda a, b, row, **how: diglot.mlp(a, b.mT, row, more, None, "relu", **how),
    }


@pytest.mark.parametrize("backend", KERNELS)
def test_precision_of_a_call(backend):
    """It outweighs the switch, in the gradients too, even if the switch has changed by then."""
    given, functions = calls(104, 96, 112)  # worth the copies
    for op, function in functions.items():
        for asked, switched in (("tf32", "ieee"), ("ieee", "tf32")):
            leaves = [t.clone().requires_grad_() for t in given]
            with precision(switched), diglot.backends.record_runs() as runs:
                result = function(*leaves, precision=asked, backend=backend)
                torch.autograd.grad(result.square().sum(), leaves[:2])
            variants = [run.variant for run in runs if run.launcher.endswith(
                ("mm_forward", "matmul_forward", "linear_forward", "linear_parameters_backward",
                 "mlp_backward"))]  # fmt: skip
            assert len(variants) >= 3, op
            assert all((", TF32" in variant) == (asked == "tf32") for variant in variants), op


@pytest.mark.parametrize("backend", KERNELS)
def test_precision_of_modules(backend):
    x = normal(70, 96, dtype=F32)
    for module in (diglot.nn.Linear(96, 72, precision="tf32", backend=backend),
                   diglot.nn.MLP(96, 80, precision="tf32", backend=backend)):  # fmt: skip
        module = module.to(DEVICE)
        assert "precision='tf32'" in repr(module)
        module(x)
        assert ", TF32" in diglot.last_run().variant
        module.precision = None
        module(x)
        assert ", TF32" not in diglot.last_run().variant
    for make in (diglot.nn.Linear, diglot.nn.MLP):
        with pytest.raises(
            ValueError, match=r"precision must be None or one of \('ieee', 'tf32'\)"
        ):
            make(2, 3, precision="TF32")


@pytest.mark.parametrize("backend", KERNELS)
def test_compiled_precision(backend):
    torch._dynamo.reset()
    given, functions = calls()
    for op in ("linear", "baddbmm"):
        function = functions[op]
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for asked in ("tf32", "ieee"):
            how = {"precision": asked, "backend": backend}
            assert torch.equal(compiled(*given, **how), function(*given, **how))
    torch._dynamo.reset()


def test_precision_on_other_backends():
    """PyTorch's products on a GPU know only switches. On a CPU there is no TF32 to forbid."""
    given, functions = calls()
    for op, function in functions.items():
        with pytest.raises(ValueError, match=f"{op}: precision must be None or one of"):
            function(*given, precision="highest")
        if DEVICE == "cuda":
            function(*given, precision="ieee")
            assert diglot.last_run().backend in ("cuda", "triton")
            with pytest.raises(diglot.BackendUnavailable, match="products know only switches"):
                function(*given, precision="ieee", backend="torch")
            halves = [t.bfloat16() for t in given]
            if op != "mlp":  # it has a matrix of its own
                function(*halves, precision="tf32", backend="torch")
        else:
            result = function(*given, precision="tf32", backend="torch")
            assert torch.equal(result, function(*given, backend="torch"))
            on_gpu = torch.device("cuda", 0)
            with pytest.raises(diglot.BackendUnavailable):
                choose_product(op, F32, on_gpu, "torch", "ieee")


HEADER = ROOT / "csrc/include/diglot/products/padded_copy.cuh"
KERNEL = ROOT / "tests/planted/padded_copy.cu"
# Copies that transpose, by planted kernels: rows and columns of the source, the step between its
# rows, the pitch of the copy.
FLOATS, BYTES = ("floats, aligned", "floats"), ("bytes, aligned", "bytes")
COPIES = {
    "floats, aligned": (41, 37, 40, 64),
    "floats": (41, 37, 39, 64),
    "bytes, aligned": (154, 70, 80, 256),
    "bytes": (160, 70, 79, 256),
}
# Faults, and the kernels that show them.
FAULTS = {
    "none": (NO_FAULT, ()),
    "lines behind the last": (Fault(" && i < left", ""), FLOATS + BYTES),
    "elements behind the last": (Fault(" || column >= copy.inner", ""), FLOATS + BYTES),
    "squares behind the last line": (Fault("is_aligned ? left >= kSide", "is_aligned ? true"),
                                     (FLOATS[0], BYTES[0])),
    "accesses behind the last line": (Fault("left >= 2 * kSide", "left >= kSide"), (BYTES[1],)),
    "squares behind the end of lines": (Fault("column + kSide > copy.inner", "false"),
                                        (*FLOATS, BYTES[0])),
    "all are aligned": (Fault("step % kSide == 0", "true"), (FLOATS[1], BYTES[1])),
    "bytes are not shifted": (Fault("skipped % 4 * 0x1111", "0"), (BYTES[1],)),
    "not transposed": (Fault("result[word][line] =", "result[line][word] ="), FLOATS),
    "other words": (Fault("result[4 * word + i][line] =", "result[4 * line + i][word] ="), BYTES),
    "bytes are not transposed": (Fault("        transpose_bytes(bytes);", ""), BYTES),
}  # fmt: skip


@needs_cuda
@pytest.mark.slow
@pytest.mark.skipif(DEVICE != "cpu", reason="it interprets kernels")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name, tmp_path):
    """The interpreter finds reads behind the source's last word."""
    fault, shown_by = FAULTS[name]
    run = plant(fault, [HEADER], KERNEL, tmp_path)
    found = []
    for kernel, (rows, columns, step, pitch) in COPIES.items():
        dtype = torch.int32 if kernel in FLOATS else torch.uint8
        size = 4 // dtype.itemsize  # elements of a word
        elements = -(-((rows - 1) * step + columns) // size) * size
        values = torch.randint(1, 256, (elements,)).to(dtype)
        message, out = run(
            kernel, values=values.view(torch.float32), blocks=columns * pitch // size
        )
        expected = torch.full(out.shape, -1.0).view(dtype).view(columns, pitch)  # as it was
        unit = 4 * size  # elements of an access
        expected[:, : -(-rows // unit) * unit] = 0
        expected[:, :rows] = values.as_strided((rows, columns), (step, 1)).T
        if message or not torch.equal(out.view(dtype).view(columns, pitch), expected):
            found.append(kernel)
    assert tuple(found) == shown_by
