"""matmul: values in every layout and at every edge, shapes, special values, errors."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from backends import (
    BACKENDS,
    DEVICE,
    FLOATING,
    KERNELS,
    NEEDS_CUDA,
    SLOW_TRITON,
    mostly_slow,
    needs_cuda,
    needs_extension,
    slow_interpreted,
)
from product_cases import (
    LAYOUTS,
    assert_product,
    integers,
    laid_out,
    normal,
    operands,
    surrounded,
)

import diglot
from diglot.backends.plans import Device, plan_runs
from diglot.reference.matmul import matmul_oracle

BF16 = torch.bfloat16
HALVES = [BF16, torch.float16]
H200 = Device(90, 132, 228 << 10, True, name="NVIDIA H200")
# M, N, K: within a tile of every kernel, on its edges, and beyond.
EDGES = [(1, 1, 1), (7, 9, 5), (64, 64, 64), (128, 136, 72), (129, 65, 50), (136, 264, 104)]


def variant() -> str:
    last = diglot.last_run()
    assert last is not None and last.launcher == "matmul_forward"
    return last.variant


def test_oracle():
    a, b = normal(3, 4, dtype=torch.float32), normal(4, 5, dtype=torch.float32)
    expected = (a.double()[:, :, None] * b.double()[None]).sum(1)
    torch.testing.assert_close(matmul_oracle(a, b), expected)


OF_EDGES = list(itertools.product(FLOATING, EDGES))
# Beyond a tile, `make test` has one type of 16 bits: the other has the same code.
MOST_EDGES = [(of, sizes) for of, sizes in OF_EDGES if of != torch.float16 or sizes[0] < 65]


@pytest.mark.parametrize(("dtype", "sizes"), mostly_slow(OF_EDGES, *MOST_EDGES), ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_layouts(backend, dtype, sizes):
    # Interpreted, fused multiply-adds take long; at their widths two layouts meet both operands'.
    for layout in LAYOUTS if sizes[0] < 65 or dtype in HALVES else LAYOUTS[1:3]:
        a, b = operands(*sizes, layout, dtype)
        assert_product(diglot.matmul(a, b, backend=backend), a, b)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@needs_cuda
def test_integers_are_exact_in_both_languages(dtype):
    for sizes, layout in zip([(40, 72, 24), (33, 37, 29), (64, 40, 136)], LAYOUTS, strict=False):
        a, b = operands(*sizes, layout, dtype, integers)
        results = [diglot.matmul(a, b, backend=backend) for backend in ("cuda", "triton")]
        assert torch.equal(*results)
        assert torch.equal(results[0].double(), matmul_oracle(a, b))


# Widths of C whose plan on an H200 has each width of tile; the interpreter's 8 SMs choose others.
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("columns", [64, 96, 128, 160, 192, 224, 256])
@needs_cuda
def test_widths_of_tiles(columns, dtype):
    """Each compiled width in each layout, and C that TMA cannot store."""
    only = {"products.cuda.swap": 0, "products.cuda.turns": 1}
    with diglot.use_plans({"products.cuda.columns": columns, **only}):
        for layout, n in zip(LAYOUTS, (columns, columns + 3, 8, columns - 24), strict=True):
            # N-major B takes multiples of 8 only.
            n = n if layout[1] == "T" else -(-n // 8) * 8
            a, b = operands(72, n, 136, layout, dtype)
            assert_product(diglot.matmul(a, b, backend="cuda"), a, b)
            assert variant() == f"wgmma, tiles of 128x{columns}"


@needs_cuda
def test_blocks_have_several_tiles():
    """More tiles than SMs, and more steps than stages: the ring goes on from tile to tile."""
    a, b = operands(700, 136, 600, "NN", torch.bfloat16, integers)
    result = diglot.matmul(a, b, backend="cuda")
    assert variant().startswith("wgmma")
    assert torch.equal(result, matmul_oracle(a, b).bfloat16())


# Values of `columns` and of `cluster`, and the plan's name.
SHARING = [
    (64, 2, "128x64, in clusters of 2x1"),
    (96, 4, "128x96, in clusters of 4x1"),
    (224, 12, "128x224, in clusters of 2x2"),
    (64192, 14, "64x192, in clusters of 4x2"),
    (64160, 12, "64x160, in clusters of 2x2"),
    (80064, 14, "80x64, exchanged, in clusters of 2x2"),
    (96064, 4, "96x64, exchanged, in clusters of 4x1"),
    (64064, 14, "64x64, exchanged, in clusters of 4x2"),
    (64064, 4, "64x64, exchanged, in clusters of 4x1"),
    (64064, 11, "64x64, exchanged, in clusters of 1x2"),
    (64064, 1, "64x64, exchanged"),
]


@pytest.mark.parametrize(("columns", "cluster", "name"), SHARING)
@needs_cuda
def test_clusters_in_cuda(columns, cluster, name):
    """Blocks share tiles of both layouts. The last cluster may have tiles beyond C."""
    numbers = {"products.cuda.cluster": cluster, "products.cuda.columns": columns}
    for m, n, layout in ((400, 264, "NT"), (408, 456, "TN")):
        a, b = operands(m, n, 136, layout, torch.bfloat16, integers)
        with diglot.use_plans(numbers):
            result = diglot.matmul(a, b, backend="cuda")
        assert variant() == f"wgmma, tiles of {name}"
        assert torch.equal(result, matmul_oracle(a, b).bfloat16())


@needs_cuda
def test_clusters_of_a_batch_in_cuda():
    """Matrices of a batch and rows of a layer, of C that TMA cannot store, and an activation."""
    numbers = {"products.cuda.cluster": 14, "products.cuda.columns": 64064}
    a, b = integers(2, 3, 72, 136, dtype=BF16), integers(2, 3, 75, 136, dtype=BF16).mT
    weight, bias = integers(203, 136, dtype=BF16), integers(203, dtype=BF16)
    with diglot.use_plans(numbers):
        product = diglot.matmul(a, b, backend="cuda")
        assert variant() == "wgmma, tiles of 64x64, exchanged, in clusters of 2x2"
        layer = diglot.linear(a, weight, bias, activation="relu", backend="cuda")
    last = diglot.last_run()
    assert last is not None and last.variant.endswith("64x64, exchanged, in clusters of 4x2")
    assert torch.equal(product, matmul_oracle(a, b).bfloat16())
    expected = (a.double() @ weight.double().mT + bias.double()).relu()
    assert torch.equal(layer, expected.bfloat16())


@needs_extension
def test_clusters_need_no_more_rounds():
    """Tiles of 64 x 64 share by default, in the largest clusters that run at once on an H200, of at
    least four. Where bits must not depend on rows, no tile is of this kind."""
    found = {}
    for m, n in ((336, 1024), (128, 1024), (336, 128), (1000, 1024), (8, 1024)):
        a, b = (torch.empty(*shape, dtype=BF16, device=DEVICE) for shape in ((m, 4096), (n, 4096)))
        for is_invariant in (False, True):
            whole = {"products.cuda.columns": 64064, "products.cuda.split": 1}
            with diglot.use_plans(whole), plan_runs(H200) as runs:
                diglot.matmul(a, b.mT, backend="cuda", batch_invariant=is_invariant)
            found[m, n, is_invariant] = runs[0].plan.variant.partition("tiles of ")[2]
    assert {key: name for key, name in found.items() if "in clusters" in name} == {
        (336, 1024, False): "64x64, exchanged, in clusters of 2x2",
        (128, 1024, False): "64x64, exchanged, in clusters of 4x2",
        (336, 128, False): "64x64, exchanged, in clusters of 2x2",
    }


@pytest.mark.parametrize("wide", [False, True])
def test_programs_have_several_tiles(wide):
    """Persistent programs of Triton: the next tile's steps follow those of the last."""
    with diglot.use_plans({"products.triton.number": 1 if wide else 2}):
        a, b = operands(300, 520, 136, "NT", torch.bfloat16, integers)
        result = diglot.matmul(a, b, backend="triton")
    assert variant() == f"descriptors, tiles of 128x{256 if wide else 128}"
    assert torch.equal(result, matmul_oracle(a, b).bfloat16())


def odd_operands(dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Operands whose rows begin anywhere: each crashed somebody's kernel once."""
    a, b = normal(40, 48, dtype=dtype), normal(48, 56, dtype=dtype)
    flat = normal(40 * 48 + 1, dtype=dtype)
    return {
        "odd offset": (flat[1:].view(40, 48), b),
        "rows apart": (surrounded(a, 2, 8), surrounded(b, 1, 16)),
        "rows apart, odd": (surrounded(a), surrounded(b)),
        "every other column": (normal(40, 96, dtype=dtype)[:, ::2], b),
        "every other row": (normal(80, 48, dtype=dtype)[::2], b),
        "transposed, odd": (normal(48, 37, dtype=dtype).mT, b),
        "one row": (surrounded(a)[:1], b),
        "one column": (a, surrounded(b)[:, :1]),
        "one step": (a[:, :1], b[:1]),
        "one row for all": (a[:1].expand(40, 48), b),
        "one column for all": (a, b[:, :1].expand(48, 56)),
        "one element for all": (a[:1, :1].expand(40, 48), b),
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_strides(backend, dtype):
    for name, (a, b) in odd_operands(dtype).items():
        result = diglot.matmul(a, b, backend=backend)
        assert result.is_contiguous(), name
        assert_product(result, a, b)


BATCHES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3, 1), (2,)),
    ((), (2, 2)),
    ((2, 2), ()),
    ((1,), (3,)),
    ((2, 1, 2), (1, 3, 1)),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_batches(backend, dtype):
    for of_a, of_b in BATCHES:
        a, b = normal(*of_a, 9, 24, dtype=dtype), normal(*of_b, 24, 16, dtype=dtype)
        assert_product(diglot.matmul(a, b, backend=backend), a, b)


@pytest.mark.parametrize("backend", KERNELS)
def test_batches_of_any_strides(backend):
    dtype = torch.bfloat16
    heads = normal(2, 9, 3, 24, dtype=dtype).transpose(1, 2)  # (batch, head, row, column)
    keys = normal(2, 16, 3, 24, dtype=dtype).permute(0, 2, 3, 1)
    assert_product(diglot.matmul(heads, keys, backend=backend), heads, keys)
    mixed = normal(2, 9, 2, 3, 24, dtype=dtype).permute(3, 0, 2, 1, 4)
    other = (
        normal(3, 2, 2, 24, 8, dtype=dtype).transpose(0, 1).transpose(1, 2).permute(2, 0, 1, 3, 4)
    )
    assert_product(diglot.matmul(mixed, other, backend=backend), mixed, other)


@pytest.mark.parametrize(
    "backend", [pytest.param("cuda", marks=[*slow_interpreted, *NEEDS_CUDA]), SLOW_TRITON]
)
def test_batches_of_more_dimensions_than_a_kernel_takes(backend):
    deep = normal(*[2] * 9, 2, 3, dtype=torch.bfloat16).permute(*reversed(range(9)), 9, 10)
    wide = normal(*[2] * 9, 3, 2, dtype=torch.bfloat16)
    assert_product(diglot.matmul(deep, wide, backend=backend), deep, wide)


@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors(backend):
    dtype = torch.float32
    vector, matrix = normal(24, dtype=dtype), normal(24, 8, dtype=dtype)
    batch = normal(3, 5, 24, dtype=dtype)
    for a, b in [
        (vector, vector.flip(0)),
        (vector, matrix),
        (matrix.mT, vector),
        (batch, vector),
        (vector, batch.mT),
    ]:
        result = diglot.matmul(a, b, backend=backend)
        expected = torch.matmul(a.double(), b.double())
        assert result.shape == expected.shape
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_elements(backend, dtype):
    for of_a, of_b in [((0, 4), (4, 3)), ((3, 4), (4, 0)), ((0, 2, 3), (3, 2)), ((0,), (0,)),
                       ((3, 0), (0, 5)), ((2, 3, 0), (0, 1)), ((0, 0), (0, 0))]:  # fmt: skip
        a, b = (
            torch.ones(of_a, device=DEVICE, dtype=dtype),
            torch.ones(of_b, device=DEVICE, dtype=dtype),
        )
        result = diglot.matmul(a, b, backend=backend)
        assert torch.equal(
            result, torch.zeros(torch.matmul(a, b).shape, dtype=dtype, device=DEVICE)
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend, dtype):
    """They reach the elements of C whose sums have them, and no others."""
    a, b = normal(40, 72, dtype=dtype), normal(72, 48, dtype=dtype)
    a[3, 5], a[7, 71], b[9, 11] = math.nan, math.inf, -math.inf
    result = diglot.matmul(a, b, backend=backend)
    expected = torch.matmul(a.double(), b.double())
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(test(result), test(expected))
    assert expected.isfinite().any() and expected.isnan().any() and expected.isinf().any()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_sums_are_wide(backend, dtype):
    """Sums are in float32: one in 16 bits would stand still."""
    a, b = (
        torch.ones(8, 4096, device=DEVICE, dtype=dtype),
        torch.ones(4096, 8, device=DEVICE, dtype=dtype),
    )
    assert torch.equal(diglot.matmul(a, b, backend=backend), torch.full((8, 8), 4096.0).to(a))


@pytest.mark.parametrize("backend", KERNELS)
def test_float32_is_no_tf32(backend):
    a = torch.full((16, 16), 1 + 2**-20, device=DEVICE)
    result = diglot.matmul(a, torch.eye(16, device=DEVICE), backend=backend)
    assert torch.equal(result, a)


@needs_cuda
def test_vectors_of_float32():
    """Where both operands have aligned vectors, and only there, threads load four at once."""
    for layout, (m, n, k) in itertools.product(LAYOUTS, [(68, 72, 20), (132, 516, 12)]):
        a, b = operands(m, n, k, layout, torch.float32)
        for first, second, has_vectors in [(a, b, True), (a, surrounded(b), False)]:
            assert_product(diglot.matmul(first, second, backend="cuda"), first, second)
            (plan,) = diglot.explain("matmul", first, second).plans["cuda"]
            side = 4 if m < 132 else 8
            kernel = f"matmul_fma<float, {side}, {str(has_vectors).lower()}>"
            assert plan.launches[0].order.kernel == kernel or DEVICE == "cuda"
    batch = normal(3, 40, 24, dtype=torch.float32), normal(3, 24, 20, dtype=torch.float32)
    assert_product(diglot.matmul(*batch, backend="cuda"), *batch)


def test_errors():
    x = torch.ones(3, 4)
    for input, other, error, text in [
        (x, [1.0], TypeError, "other must be a torch.Tensor"),
        (x.int(), x.int().mT, TypeError, "input must have one of the dtypes"),
        (x, x.mT.double(), TypeError, "must have one dtype"),
        (x, x, ValueError, r"do not multiply: \(3, 4\) and \(3, 4\)"),
        (x, torch.ones(5), ValueError, "do not multiply"),
        (x[0, 0], x, ValueError, "input must have at least one dimension"),
        (x, x[0, 0], ValueError, "other must have at least one dimension"),
        (torch.ones(2, 3, 4), torch.ones(3, 4, 3), ValueError, "batches .* do not broadcast"),
        (x, x.mT.to("meta"), ValueError, "must be on one device"),
        (x.to_sparse(), x.mT, TypeError, "dense tensor"),
    ]:
        with pytest.raises(error, match=text):
            diglot.matmul(input, other)
    with pytest.raises(ValueError, match="backend must be one of"):
        diglot.matmul(x, x.mT, backend="cublas")


def test_auto_takes_torch():
    """Until products are measured."""
    x = normal(8, 8, dtype=torch.float32)
    assert diglot.explain("matmul", x, x).chosen == "torch"
    diglot.matmul(x, x)
    assert diglot.last_run().backend == "torch"


def test_explanation_names_the_way():
    """What TMA cannot take, and is too small for a copy, goes another way; the plan says so."""
    a, b = operands(16, 16, 16, "NN", torch.bfloat16)
    plans = diglot.explain(diglot.matmul, a, b).plans
    assert plans["triton"][0].variant.startswith("descriptors")
    odd = diglot.explain(diglot.matmul, surrounded(a), b).plans
    assert odd["triton"][0].variant.startswith("pointers")
    if "cuda" in plans:
        assert plans["cuda"][0].variant.startswith("wgmma")
        assert odd["cuda"][0].variant.startswith("fma")


@needs_cuda
@pytest.mark.skipif(DEVICE != "cpu", reason="plans of named devices")
def test_plans_of_named_devices():
    from diglot.backends.registry import load_interpreter

    launchers, reason = load_interpreter()
    if launchers is None:
        pytest.skip(reason)
    h200, a100 = (90, 132, 228 << 10, True), (80, 108, 164 << 10, False)

    def plan(device, m, n, k, dtype=torch.bfloat16):
        a, b = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((m, k), (k, n)))
        out = torch.empty(m, n, dtype=dtype, device="meta")
        variant, steps, _, _ = launchers.plan("matmul_forward", device, a, b, False, "ieee", out)
        return variant, steps[-1][1][0]

    assert plan(h200, 4096, 4096, 4096) == ("wgmma, tiles of 128x256", 132)
    assert plan(h200, 4096, 1792, 4096) == ("wgmma, tiles of 128x224", 132)
    assert plan(h200, 16, 8192, 8192) == ("wgmma, tiles of 16x64, exchanged", 128)
    parts = ("wgmma, tiles of 16x64, exchanged, K in 3 parts of a cluster", 96)
    assert plan(h200, 16, 2048, 8192) == parts
    assert plan(h200, 512, 5120, 5120) == ("wgmma, tiles of 128x160", 128)
    assert plan(h200, 8192, 4096, 1024) == ("wgmma, tiles of 128x128, in turns", 132)
    assert plan(h200, 4096, 4095, 4096) == ("wgmma, tiles of 128x256, copy of B", 132)
    assert plan(h200, 64, 64, 64, torch.float32) == ("fma, tiles of 64x64", 1)
    assert plan(a100, 4096, 4096, 4096) == ("fma, tiles of 128x128", 1024)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_large(backend):
    """More than 2^31 elements of A, and of C; sums of many steps."""
    a = torch.randint(-1, 2, (1 << 16, (1 << 15) + 64), device=DEVICE).to(torch.bfloat16)
    b = torch.randint(-1, 2, (a.shape[1], 64), device=DEVICE).to(torch.bfloat16)
    result = diglot.matmul(a, b, backend=backend)
    rows = torch.tensor([0, 1, 12345, (1 << 16) - 1], device=DEVICE)
    assert torch.equal(result[rows].double(), (a[rows].double() @ b.double()).bfloat16().double())
    wide = diglot.matmul(
        a[:, :64], laid_out(a[:, 64:128].mT, True)[:, : (1 << 15) + 512], backend=backend
    )
    assert torch.equal(
        wide[-1].double(), (a[-1:, :64].double() @ a[: (1 << 15) + 512, 64:128].mT.double())[0]
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_full_size(backend, dtype):
    """Shapes of the benchmark against float64, in every layout, and ragged ones beside them."""
    for (m, n, k), layout in itertools.product(
        [(4096, 4096, 4096), (4096, 1792, 4096), (4000, 1000, 4072), (128, 8192, 8192)], LAYOUTS
    ):
        a, b = operands(m, n, k, layout, dtype)
        assert_product(diglot.matmul(a, b, backend=backend), a, b)
