"""Products whose operands TMA cannot read: copies in scratch, when they pay, and their names."""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, KERNELS, needs_cuda
from planted.faults import NO_FAULT, Fault, plant
from planted.library import ROOT
from product_cases import LAYOUTS, assert_product, integers, laid_out, normal, operands, surrounded

import diglot
from diglot.backends.plans import Device, plan_runs
from diglot.reference.matmul import matmul_oracle

BF16 = torch.bfloat16
FIRST = {"cuda": "wgmma", "triton": "descriptors"}


def check(backend: str, copies: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Asserts a product's values, and which operands it copies."""
    assert_product(diglot.matmul(a, b, backend=backend), a, b)
    last = diglot.last_run()
    assert last is not None and last.variant.startswith(FIRST[backend]), last
    assert last.variant.partition(", cop")[2] == copies, last.variant


# Ends of lines within an access of 16 bytes, at its end, and behind a piece of a line.
@pytest.mark.parametrize("dtype", [BF16, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", KERNELS)
def test_odd_leading_dimensions(backend, dtype):
    for layout, (m, n, k) in zip(
        LAYOUTS, [(33, 67, 201), (35, 65, 1031), (131, 41, 135), (37, 129, 137)], strict=True
    ):
        check(backend, "ies of A and B", *operands(m, n, k, layout, dtype))


@pytest.mark.parametrize("backend", KERNELS)
def test_only_the_operand_that_needs_it_is_copied(backend):
    a, b = normal(40, 200, dtype=BF16), normal(200, 72, dtype=BF16)
    flat = normal(40 * 200 + 1, dtype=BF16)
    for copies, first, second in [
        ("", a, b),
        ("y of A", flat[1:].view(40, 200), b),
        ("y of B", a, surrounded(b)),
        ("ies of A and B", surrounded(a), laid_out(surrounded(b), False)[:, 1:]),
        ("y of A", normal(40, 400, dtype=BF16)[:, ::2], b),
        ("y of A", a[:1].expand(40, 200), b),
        ("y of B", a, b[:, :1].expand(200, 72)),
        ("y of A", normal(200, 37, dtype=BF16).mT, b),
    ]:
        check(backend, copies, first, second)


@pytest.mark.parametrize("backend", KERNELS)
def test_batches(backend):
    """Of odd strides. A matrix that is shared is copied once."""
    for copies, a, b in [
        ("ies of A and B", normal(3, 2, 33, 99, dtype=BF16), normal(3, 2, 99, 41, dtype=BF16)),
        ("y of B", normal(3, 2, 33, 104, dtype=BF16), normal(2, 104, 41, dtype=BF16)),
        ("y of A", normal(33, 99, dtype=BF16), normal(2, 99, 48, dtype=BF16)),
    ]:
        check(backend, copies, a, b)


@needs_cuda
def test_batches_that_are_not_one_after_the_other():
    """CUDA C++ alone copies them: lines of Triton's copies step as those of one matrix."""
    a, b = normal(3, 2, 33, 99, dtype=BF16).transpose(0, 1), normal(3, 99, 48, dtype=BF16)
    check("cuda", "y of A", a, b)
    shared = torch.empty(9, 33, 104, dtype=BF16), torch.empty(104, 41, dtype=BF16)
    with plan_runs() as runs:
        diglot.matmul(*(x.to(DEVICE) for x in shared), backend="cuda")
    assert runs[0].plan.scratch.bytes == 104 * 2 * 64


@pytest.mark.parametrize("backend", KERNELS)
def test_linear(backend):
    x, weight = normal(40 * 201 + 1, dtype=BF16)[1:].view(40, 201), normal(67, 201, dtype=BF16)
    bias = normal(67, dtype=BF16)
    assert_product(diglot.linear(x, weight, bias, backend=backend), x, weight.mT, bias)
    assert diglot.last_run().variant.endswith("copies of A and B")


@needs_cuda
@pytest.mark.parametrize("dtype", [BF16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_integers_are_exact_in_both_languages(dtype):
    for layout in LAYOUTS:
        a, b = operands(73, 45, 203, layout, dtype, integers)
        results = [diglot.matmul(a, b, backend=backend) for backend in ("cuda", "triton")]
        assert torch.equal(*results)
        assert torch.equal(results[0], matmul_oracle(a, b).to(dtype))


@pytest.mark.parametrize("backend", KERNELS)
def test_what_lies_beside_an_operand_has_no_effect(backend):
    """NaN around A and B, and in the scratch of the calls before."""
    a, b = operands(40, 72, 199, "NN", BF16)
    expected = diglot.matmul(a, b, backend=backend)
    diglot.matmul(torch.full_like(a, torch.nan), torch.full_like(b, torch.nan), backend=backend)
    result = diglot.matmul(surrounded(a), surrounded(b), backend=backend)
    assert torch.equal(result, expected) and result.isfinite().all()


@pytest.mark.parametrize("backend", KERNELS)
def test_small_products_are_not_copied(backend):
    """A copy's launch would take longer than it saves."""
    a, b = operands(16, 16, 33, "NN", BF16)
    (plan,) = diglot.explain("matmul", a, b).plans[backend]
    assert plan.scratch is None and not plan.variant.startswith(FIRST[backend])


@pytest.mark.parametrize("backend", KERNELS)
def test_the_copy_is_explained(backend):
    a, b = operands(96, 64, 301, "NN", BF16)
    (plan,) = diglot.explain("matmul", a, b).plans[backend]
    assert plan.variant.endswith(", copy of A")
    # 301 elements take five lines of 64.
    assert plan.scratch.bytes == 96 * 5 * 64 * 2 and plan.scratch.lifetime == "call"
    assert [launch.order.kernel.partition("<")[0] for launch in plan.launches] == [
        "product_copy", "matmul_wgmma" if backend == "cuda" else "matmul_descriptors"
    ]  # fmt: skip


H200, A100 = (90, 132, 228 << 10, True), (80, 108, 164 << 10, False)
# M, N, K, and whether copies pay on an H200: many multiply-adds for a byte, or few.
PAYING = [((4096, 4096, 4095), True), ((4096, 4095, 4096), True), ((128, 8192, 8191), True),
          ((64, 64, 63), False)]  # fmt: skip


@pytest.mark.skipif(DEVICE != "cpu", reason="plans of named devices")
@pytest.mark.parametrize("backend", KERNELS)
def test_plans_of_named_devices(backend):
    from diglot.backends.registry import load_interpreter
    from diglot.triton_ops import matmul
    from diglot.triton_ops.launch import launch

    def variant(device: tuple[object, ...], m: int, n: int, k: int) -> str:
        a, b, out = (torch.empty(s, dtype=BF16, device="meta") for s in ((m, k), (k, n), (m, n)))
        if backend == "triton":
            return launch.plan(matmul.matmul_forward, device, a, b, False, "ieee", out).variant
        return load_interpreter()[0].plan("matmul_forward", device, a, b, False, "ieee", out)[0]

    for sizes, pays in PAYING:
        assert ("cop" in variant(H200, *sizes)) == pays, sizes
        assert "cop" not in variant(A100, *sizes)


@pytest.mark.skipif(DEVICE != "cpu", reason="plans of named devices")
@pytest.mark.parametrize("backend", KERNELS)
def test_vectors_are_read_where_they_lie(backend):
    """A vector is one line. As a column of lines it would be copied, 128 bytes for each element."""
    a, vector = torch.empty(4096, 8192, dtype=BF16), torch.empty(8192, dtype=BF16)
    with plan_runs(Device(*H200)) as runs:
        diglot.matmul(a, vector, backend=backend)
    assert "copy" not in runs[0].plan.variant


@pytest.mark.parametrize("backend", KERNELS)
def test_single_columns(backend):
    """Columns at any step, of B and of A."""
    wide = normal(520, 264, dtype=BF16)
    for column in (wide.flatten()[:520, None], wide[:, 1:2], wide[:1, :1].expand(520, 1)):
        a = normal(136, 520, dtype=BF16)
        assert_product(diglot.matmul(a, column, backend=backend), a, column)
        row = normal(1, 72, dtype=BF16)
        assert_product(diglot.matmul(column, row, backend=backend), column, row)


@pytest.mark.skipif(DEVICE != "cpu", reason="plans of named devices")
@pytest.mark.parametrize("backend", KERNELS)
def test_long_rows_are_left_to_64_bits(backend):
    """The kernels' 32-bit numbers step past a matrix by a tile."""
    for k, is_named in ((2**31 - 1024 - 8, True), (2**31 - 8, False)):
        a = torch.empty(k, dtype=BF16).expand(2, k)[:1]  # nobody touches its memory
        with plan_runs(Device(*H200)) as runs:
            diglot.matmul(a, a.mT, backend=backend)
        fast = "wgmma" if backend == "cuda" else "descriptors"
        assert (fast in runs[0].plan.variant) == is_named, k


HEADER = ROOT / "csrc/include/diglot/products/padded_copy.cuh"
KERNEL = ROOT / "tests/planted/padded_copy.cu"
FAULTS = {
    "none": NO_FAULT,
    "the tail is not zeroed": Fault("first + e < end ? ", "true ? "),
    "accesses behind the end": Fault("(skipped > 0 ? 2 : 1) * kElements <= end", "0 <= end"),
    "bytes are not shifted": Fault("skipped * static_cast<int>(sizeof(T)))", "0)"),
    "lines behind the last": Fault("if (row >= copy.outer) return;", ""),
    "elements behind the last": Fault("if (first < copy.inner) {", "if (true) {"),
}


@needs_cuda
@pytest.mark.slow
@pytest.mark.skipif(DEVICE != "cpu", reason="it interprets kernels")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name, tmp_path):
    run = plant(FAULTS[name], [HEADER], KERNEL, tmp_path)
    values = torch.arange(1, 11 * 309 + 1, dtype=torch.int16)
    expected = torch.zeros(11, 320, dtype=torch.int16)
    expected[:, :307] = values[1:].as_strided((11, 307), (309, 1))
    # No multiple of 16 bytes lies behind the last line.
    message, out = run("11x307", values=values[: 1 + 10 * 309 + 307].view(torch.float32),
                       blocks=11 * 160)  # fmt: skip
    result = out.view(torch.int16).view(11, 320)[:, :312]
    is_right = message == "" and torch.equal(result, expected[:, :312])
    assert is_right == (name == "none"), message


@pytest.mark.skipif("triton" not in KERNELS, reason="there is no Triton")
def test_float32_along_k_is_turned():
    """In Triton, as lines along K end in one bank of shared memory."""
    for shape, layout, is_turned in [
        ((200, 200, 97), "NT", True),
        ((203, 130, 132), "TT", True),
        ((200, 200, 97), "NN", False),
        ((200, 200, 97), "TN", False),
        ((40, 40, 8), "NT", False),  # a launch takes longer
    ]:
        a, b = operands(*shape, layout, torch.float32)
        assert_product(diglot.matmul(a, b, backend="triton"), a, b)
        assert diglot.last_run().variant.endswith(", copy of B") == is_turned, (shape, layout)
    a, b = operands(200, 200, 97, "NT", torch.float32)
    for rows in (a[None].expand(2, 200, 97).contiguous(), surrounded(a)):
        assert_product(diglot.matmul(rows, surrounded(b.mT).mT, backend="triton"), rows, b)
        assert diglot.last_run().variant.endswith(", copy of B")
    batch = b.expand(2, *b.shape).clone(memory_format=torch.preserve_format)
    first = torch.stack((a, -a))
    assert_product(diglot.matmul(first, batch.mT.contiguous().mT, backend="triton"), first, batch)
    assert ", copy" not in diglot.last_run().variant  # a matrix for each: they stay where they are
