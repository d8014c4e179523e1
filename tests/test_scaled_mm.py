"""scaled_mm: values of every pair of types, form of scales and way to add; strides; errors."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from backends import BACKENDS, CUDA, DEVICE, KERNELS, SLOW_TRITON, needs_cuda, spacing
from product_cases import laid_out, normal, surrounded

import diglot
from diglot.reference.scaled_mm import BLOCK, expected_scaled_product, scaled_mm_oracle

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)]
RESULTS = [torch.bfloat16, torch.float16, torch.float32]
IS_OLD = DEVICE == "cuda" and torch.cuda.get_device_capability() < (9, 0)
# M, N, K: within a tile of every kernel, on its edges, and beyond.
EDGES = [(1, 1, 1), (7, 9, 16), (64, 64, 128), (130, 24, 136), (24, 130, 272), (40, 24, 50)]
# Of scales of A and B.
FORMS = ["matrix", "row", "blocks", "neighbours", "blocks of A", "mixed"]


def variant() -> str:
    last = diglot.last_run()
    assert last is not None and last.launcher == "scaled_mm_forward"
    return last.variant


def blocks(size: int) -> int:
    return -(-size // BLOCK)


def shapes_of_scales(form: str, m: int, n: int, k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    steps = blocks(k)
    return {
        "matrix": ((), (1,)),
        "row": ((m, 1), (1, n)),
        "blocks": ((m, steps), (steps, blocks(n))),
        "neighbours": ((m, steps), (steps, n)),
        "blocks of A": ((blocks(m), steps), (steps, n)),
        "mixed": ((), (steps, n)),
    }[form]


def powers(*shape: int) -> torch.Tensor:
    """Scales with which a product is not rounded."""
    return torch.exp2(torch.randint(-3, 4, shape, device=DEVICE).float())


def integers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-3, 4, shape, device=DEVICE).float().to(dtype)


def operands(m, n, k, pair, form, draw=integers, scales=powers):
    """A, and B with contiguous columns, and their scales."""
    a, b = draw(m, k, dtype=pair[0]), draw(n, k, dtype=pair[1]).mT
    of_a, of_b = shapes_of_scales(form, m, n, k)
    return a, b, scales(*of_a), scales(*of_b)


def assert_right(result, a, b, scale_a, scale_b, bias=None):
    """Asserts that a result is within the rounding of its sums, which a GPU's tensor cores cut."""
    sums = math.ceil(a.shape[1] / 32) if DEVICE == "cuda" else 0
    expected = expected_scaled_product(a, b, scale_a, scale_b, bias, result.dtype, sums)
    (right,) = expected.tensors
    assert result.shape == right.shape and result.is_contiguous()
    allowed = expected.allowance + 0.5 * spacing(right, result.dtype)
    assert ((result.double() - right).abs() <= allowed).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_integers_are_exact(backend, form):
    """Both languages give the bits of the oracle: each case has its types and its way to add."""
    ways = itertools.cycle(itertools.product([False, True], PAIRS))
    for number, (m, n, k) in enumerate(EDGES):
        is_fast, pair = next(ways)
        dtype = RESULTS[number % 3]
        a, b, *scales = operands(m, n, k, pair, form)
        bias = torch.randint(-3, 4, (n,), device=DEVICE).to(dtype) if number % 2 else None
        result = diglot.scaled_mm(a, b, *scales, bias, dtype, is_fast, backend=backend)
        expected = scaled_mm_oracle(a, b, *scales, bias)
        assert torch.equal(result, expected.to(dtype)), (m, n, k)


def scales_of_numbers(*shape: int) -> torch.Tensor:
    return torch.rand(shape, device=DEVICE) + 0.5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers(backend, form):
    for pair, dtype in zip(PAIRS, RESULTS, strict=True):
        a, b, *scales = operands(40, 24, 272, pair, form, normal, scales_of_numbers)
        dense, is_fast = normal(48, dtype=dtype), dtype == torch.float16
        for bias in (dense[:24], dense[::2], dense[:1].expand(24)):
            result = diglot.scaled_mm(a, b, *scales, bias, dtype, is_fast, backend=backend)
            assert_right(result, a, b, *scales, bias)


WIDTHS = [("fast", (64, 128, 192, 256)), ("exact", (64, 128, 192)), ("blocks", (64, 128))]


@pytest.mark.skipif(IS_OLD, reason="this GPU has no wgmma")
@pytest.mark.parametrize(("mode", "columns"), [(m, c) for m, all in WIDTHS for c in all])
@needs_cuda
def test_widths_of_tiles(mode, columns):
    """Each compiled tile with each pair of types, and C that TMA cannot store."""
    form = "blocks" if mode == "blocks" else "row"
    with diglot.use_plans({"products.cuda.columns": columns}):
        for pair, n in zip(PAIRS, (columns, columns + 3, 16), strict=True):
            a, b, *scales = operands(72, n, 272, pair, form)
            result = diglot.scaled_mm(a, b, *scales, None, RESULTS[n % 2], mode == "fast",
                                      backend="cuda")  # fmt: skip
            turns = ", in turns" if (mode, columns) == ("fast", 192) else ""
            assert variant() == f"wgmma, {mode}, tiles of 128x{columns}{turns}"
            assert torch.equal(result, scaled_mm_oracle(a, b, *scales).to(result.dtype))


@pytest.mark.parametrize("form", ["row", "blocks"])
@pytest.mark.parametrize("backend", KERNELS)
def test_blocks_have_several_tiles(backend, form):
    """The ring goes on from tile to tile, and each tile has its scales."""
    a, b, *scales = operands(600, 200, 272, PAIRS[0], form)
    result = diglot.scaled_mm(a, b, *scales, backend=backend)
    assert torch.equal(result, scaled_mm_oracle(a, b, *scales).bfloat16())


@pytest.mark.skipif(IS_OLD, reason="this GPU has no wgmma")
@pytest.mark.parametrize(
    ("form", "columns"),
    [("row", 192), ("row", 256), ("blocks", 64), ("neighbours", 64), ("neighbours", 128)],
)
@needs_cuda
def test_scales_of_several_tiles(form, columns):
    """Scales of columns go through memory that stores read. Tiles have one and many steps along
    K, and a block has more than one tile, or none.
    """
    with diglot.use_plans({"products.cuda.columns": columns}):
        for m, n, k in [(300, 520, 400), (200, 2 * columns - 1, 128), (65, columns, 256)]:
            a, b, *scales = operands(m, n, k, PAIRS[0], form)
            result = diglot.scaled_mm(a, b, *scales, use_fast_accum=form == "row", backend="cuda")
            assert torch.equal(result, scaled_mm_oracle(a, b, *scales).bfloat16()), (m, n, k)


def odd_operands() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Operands that TMA does not take along K."""
    a, b = integers(40, 48, dtype=E4M3), integers(48, 56, dtype=E4M3)
    flat = integers(40 * 48 + 1, dtype=E4M3)
    return {
        "B by rows": (a, b),
        "A by columns": (laid_out(a, True), b),
        "odd offset": (flat[1:].view(40, 48), laid_out(b, True)),
        "rows apart, odd": (surrounded(a), surrounded(b)),
        "every other column": (integers(40, 96, dtype=E4M3)[:, ::2], laid_out(b, True)),
        "one row for all": (a[:1].expand(40, 48), b),
        "one element for all": (a[:1, :1].expand(40, 48), b),
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_of_short_rows(backend):
    """One block along K, and scales of one element that have any number of dimensions."""
    a, b, scale, _ = operands(200, 24, 48, PAIRS[0], "blocks of A")
    one = powers(1, 1, 1)
    result = diglot.scaled_mm(a, b, scale, one, backend=backend)
    assert scale.shape == (2, 1)
    assert torch.equal(result, scaled_mm_oracle(a, b, scale, one).bfloat16())
    result = diglot.scaled_mm(a, b, one, one, backend=backend)
    assert torch.equal(result, scaled_mm_oracle(a, b, one, one).bfloat16())


@pytest.mark.parametrize("backend", KERNELS)
def test_strides(backend):
    for name, (a, b) in odd_operands().items():
        scales = powers(80, 1)[::2], powers(56, 3).mT[1:2]  # of any strides, too
        result = diglot.scaled_mm(a, b, *scales, backend=backend)
        assert torch.equal(result, scaled_mm_oracle(a, b, *scales).bfloat16()), name
    assert variant().startswith("fma" if backend == "cuda" else "pointers")


@pytest.mark.skipif(IS_OLD, reason="this GPU has no products of 8-bit floats along K alone")
@pytest.mark.parametrize("backend", KERNELS)
def test_copies(backend):
    """Where that pays, copies along K go to tensor cores."""
    a, b = integers(300, 333, dtype=E4M3), integers(333, 200, dtype=E4M3)
    of_a, of_b = (powers(*shape) for shape in shapes_of_scales("blocks", 300, 200, 333))
    for first, second, copies in [
        (a, laid_out(b, False), ", copies of A and B"),
        (laid_out(a, True), b[:, :192], ", copies of A and B"),
        (surrounded(a, 0, 3), laid_out(surrounded(b.mT, 0, 5), False).mT, ", copies of A and B"),
    ]:
        scales = of_a, of_b[:, : blocks(second.shape[1])]
        result = diglot.scaled_mm(first, second, *scales, backend=backend)
        assert torch.equal(result, scaled_mm_oracle(first, second, *scales).bfloat16())
        assert variant().endswith(copies)


@pytest.mark.skipif(IS_OLD, reason="this GPU has no products of 8-bit floats along K alone")
@pytest.mark.parametrize("pad", [0, 3, 16])
@pytest.mark.parametrize("layout", ["NN", "TN", "TT"])
@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
def test_copies_that_transpose(backend, layout, pad):
    """Squares of 16 x 16 inside and at the edges, where lines are aligned and where not."""
    m, n, k = 517, 300, 272
    is_along = {"A": layout[0] == "N", "B": layout[1] == "T"}
    shape_a, shape_b = (m, k) if is_along["A"] else (k, m), (n, k) if is_along["B"] else (k, n)
    a = integers(shape_a[0], shape_a[1] + pad, dtype=E4M3)[:, : shape_a[1]]
    b = integers(shape_b[0], shape_b[1] + pad, dtype=E4M3)[:, : shape_b[1]]
    a, b = a if is_along["A"] else a.mT, b.mT if is_along["B"] else b
    scales = (powers(*shape) for shape in shapes_of_scales("row", m, n, k))
    of_a, of_b = scales
    result = diglot.scaled_mm(a, b, of_a, of_b, use_fast_accum=True, backend=backend)
    assert torch.equal(result, scaled_mm_oracle(a, b, of_a, of_b).bfloat16())
    copied = [x for x in "AB" if not is_along[x] or pad % 16]
    assert variant().endswith(f"of {' and '.join(copied)}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_elements(backend):
    for m, n, k in [(0, 4, 16), (3, 0, 16), (3, 4, 0), (0, 0, 0)]:
        for form in FORMS:
            a, b, *scales = operands(m, n, k, PAIRS[0], form)
            bias = torch.arange(n, device=DEVICE).bfloat16()
            result = diglot.scaled_mm(a, b, *scales, bias, backend=backend)
            assert torch.equal(result, bias.expand(m, n))


@pytest.mark.parametrize("form", ["row", "blocks"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend, form):
    """NaN of both types, and infinities of e5m2, reach the sums that have them, and no others."""
    for pair, k in itertools.product(PAIRS[:2], (144, 150)):
        a, b, *scales = operands(40, 48, k, pair, form)
        a[3, 5], b[9, 11] = math.nan, math.inf if pair[1] == E5M2 else math.nan
        result = diglot.scaled_mm(a, b, *scales, backend=backend)
        expected = scaled_mm_oracle(a, b, *scales)
        for test in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(test(result), test(expected))
        assert expected.isfinite().any() and expected.isnan().any()


# One large product, and 511 of 1. Hopper's sums of 14 bits lose those beside the large one.
TRUNCATED = """
import torch
import diglot

a = torch.ones(1, 512)
b = a.clone()
a[0, 0], b[0, 0] = 256, 64
a, b, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).mT, torch.ones(())
for scale in (one, torch.ones(1, 4)):
    for is_fast in (True, False):
        print(int(diglot.scaled_mm(a, b, scale, one, None, torch.float32, is_fast, backend="cuda")))
"""


@pytest.mark.skipif(DEVICE != "cpu", reason="the interpreter cuts sums")
@pytest.mark.skipif("DIGLOT_TEST_INTERPRETER" in os.environ, reason="a process has its own")
@needs_cuda
def test_sums_are_promoted():
    """The fast form loses all small products. Others lose those of the large one's block alone."""
    environment = {**os.environ, "DIGLOT_INTERPRET_TRUNCATE_FP8": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TRUNCATED], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    promoted = 256 * 64 + 3 * BLOCK
    assert [int(line) for line in done.stdout.split()] == [256 * 64, *[promoted] * 3]


@pytest.mark.parametrize("form", ["row", "blocks"])
@pytest.mark.parametrize("backend", KERNELS)
def test_rows_of_any_number(backend, form):
    """With `batch_invariant` a row's bits do not depend on M, nor on where rows begin."""
    a, b, of_a, of_b = operands(140, 24, 136, PAIRS[0], form, normal, scales_of_numbers)
    how = {"batch_invariant": True, "backend": backend}
    whole = diglot.scaled_mm(a, b, of_a, of_b, **how)
    for m in (1, 17, 129):
        rows = surrounded(a[:m]) if m == 17 else a[:m]
        assert torch.equal(diglot.scaled_mm(rows, b, of_a[:m], of_b, **how), whole[:m])


def test_errors():
    a, b, one = integers(3, 32, dtype=E4M3), integers(8, 32, dtype=E4M3).mT, powers()
    bias = torch.ones(8, device=DEVICE)
    for arguments, error, text in [
        ((a.float(), b, one, one), TypeError, "mat_a must have one of the dtypes float8_e4m3fn, "),
        ((a, b.bfloat16(), one, one), TypeError, "mat_b must have one of the dtypes"),
        ((a.to(E5M2), b.to(E5M2), one, one), TypeError, "must not both be float8_e5m2"),
        ((a, b, one.double(), one), TypeError, "scale_a must have one of the dtypes float32"),
        ((a, b, 1.0, one), TypeError, "scale_a must be a torch.Tensor"),
        ((a, b, one, one, bias), TypeError, "bias must have the dtype torch.bfloat16"),
        ((a, b, one, one, bias.bfloat16(), E4M3), TypeError, "out_dtype must be one of"),
        ((a, b.mT, one, one), ValueError, r"\(M, K\) and \(K, N\), not \(3, 32\) and \(8, 32\)"),
        ((a[None], b, one, one), ValueError, "must be matrices"),
        ((a, b, powers(3), one), ValueError, r"scale_a must have one element, or the shape \(3, 1"),
        ((a, b, one, powers(8, 1)), ValueError, r"scale_b must .* \(1, 8\).*not \(8, 1\)"),
        ((a, b, one, one, bias[:7].bfloat16()), ValueError, r"bias must have the shape \(8,\)"),
        ((a, b.to("meta"), one, one), ValueError, "mat_a and mat_b must be on one device"),
        ((a, b, one, one.to("meta")), ValueError, "mat_a and scale_b must be on one device"),
    ]:
        with pytest.raises(error, match=text):
            diglot.scaled_mm(*arguments)
    with pytest.raises(ValueError, match="backend must be one of"):
        diglot.scaled_mm(a, b, one, one, backend="cublas")


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_has_no_gradient(backend):
    """As PyTorch's: a result that somebody differentiates raises an error."""
    a, b, *scales = operands(3, 8, 32, PAIRS[0], "matrix")
    bias = torch.ones(8, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    result = diglot.scaled_mm(a, b, *scales, bias, backend=backend)
    with pytest.raises(RuntimeError, match="it has no gradient"):
        result.sum().backward()


@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON, "torch"])
def test_vmap(backend):
    a, b, *scales = operands(16, 24, 48, PAIRS[1], "row")
    expected = diglot.scaled_mm(a, b, *scales, backend=backend)
    both = torch.stack([a.view(torch.uint8)] * 2).view(E4M3)
    mapped = torch.vmap(lambda x: diglot.scaled_mm(x, b, *scales, backend=backend))
    assert torch.equal(mapped(both), torch.stack([expected] * 2))


@pytest.mark.parametrize(
    "backend", [CUDA, SLOW_TRITON, pytest.param("torch", marks=pytest.mark.slow)]
)
def test_compile(backend):
    """A compiled graph has the operator whole."""
    torch._dynamo.reset()
    compiled = torch.compile(diglot.scaled_mm, backend="aot_eager", fullgraph=True)
    for m in (16, 24):
        a, b, *scales = operands(m, 24, 48, PAIRS[1], "row")
        expected = diglot.scaled_mm(a, b, *scales, backend=backend)
        assert torch.equal(compiled(a, b, *scales, backend=backend), expected)


def test_meta():
    a, b, *scales = (t.to("meta") for t in operands(16, 24, 48, PAIRS[0], "row"))
    result = diglot.scaled_mm(a, b, *scales, out_dtype=torch.float16)
    assert (result.shape, result.dtype) == ((16, 24), torch.float16) and result.is_meta


def test_auto_takes_torch():
    """Until products are measured."""
    a, b, *scales = operands(16, 16, 16, PAIRS[0], "matrix")
    assert diglot.explain("scaled_mm", a, b, *scales).chosen == "torch"


@needs_cuda
@pytest.mark.skipif(IS_OLD, reason="this GPU has no wgmma")
def test_explanation_names_the_way():
    """What tensor cores do not take goes another way, and the plan says so."""
    a, b, *scales = operands(16, 16, 16, PAIRS[0], "matrix")
    ways = {backend: [] for backend in ("cuda", "triton")}
    for arguments in ((a, b), (a, b.contiguous()), (a[:, :15], b[:15])):
        plans = diglot.explain(diglot.scaled_mm, *arguments, *scales).plans
        for backend, found in ways.items():
            found.append(plans[backend][0].variant.partition(",")[0])
    assert ways == {
        "cuda": ["wgmma", "fma", "wgmma"],
        "triton": ["descriptors", "pointers", "descriptors"],
    }


@needs_cuda
@pytest.mark.skipif(DEVICE != "cpu", reason="plans of named devices")
def test_plans_of_named_devices():
    from diglot.backends.registry import load_interpreter

    launchers, reason = load_interpreter()
    if launchers is None:
        pytest.skip(reason)
    h200, a100 = (90, 132, 228 << 10, True), (80, 108, 164 << 10, False)

    def plan(device, m, n, k, form="matrix", is_fast=False):
        a, b = (torch.empty(s, dtype=E4M3, device="meta") for s in ((m, k), (n, k)))
        of_a, of_b = (torch.empty(s, device="meta") for s in shapes_of_scales(form, m, n, k))
        out = torch.empty(m, n, dtype=torch.bfloat16, device="meta")
        arguments = a, b.mT, of_a, of_b, None, is_fast, False, out
        variant, steps, _, _ = launchers.plan("scaled_mm_forward", device, *arguments)
        return variant, steps[-1][1][0]

    assert plan(h200, 4096, 4096, 4096, is_fast=True) == ("wgmma, fast, tiles of 128x256", 132)
    turns = "wgmma, fast, tiles of 128x192, in turns"
    assert plan(h200, 8192, 8192, 8192, is_fast=True) == (turns, 132)
    assert plan(h200, 4096, 4096, 4096) == ("wgmma, exact, tiles of 128x128", 132)
    assert plan(h200, 2048, 1536, 4096) == ("wgmma, exact, tiles of 128x192", 128)
    assert plan(h200, 4096, 4096, 4096, "blocks") == ("wgmma, blocks, tiles of 128x128", 132)
    assert plan(h200, 16, 8192, 8192, "row") == ("wgmma, exact, tiles of 128x64", 128)
    copied = "wgmma, exact, tiles of 128x128, copies of A and B"
    assert plan(h200, 4096, 4096, 4095) == (copied, 132)
    assert plan(h200, 64, 64, 63) == ("fma, tiles of 64x64", 1)
    assert plan(a100, 4096, 4096, 4096) == ("fma, tiles of 64x64", 4096)


@pytest.mark.gpu
@pytest.mark.skipif(IS_OLD, reason="this GPU has no products of 8-bit floats")
@pytest.mark.parametrize("backend", KERNELS)
def test_full_size(backend):
    """Shapes of the benchmark against float64, and ragged ones beside them."""
    for (m, n, k), form in itertools.product([(4096, 4096, 4096), (4000, 1000, 4080)], FORMS):
        for pair in PAIRS:
            a, b, *scales = operands(m, n, k, pair, form, normal, scales_of_numbers)
            for is_fast in (False, True):
                result = diglot.scaled_mm(a, b, *scales, None, use_fast_accum=is_fast,
                                          backend=backend)  # fmt: skip
                assert_right(result, a, b, *scales)
