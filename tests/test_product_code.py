"""The machine code of products: tensor cores, bulk copies, moved registers, and nothing spilled."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from apart import run_apart
from backends import DEVICE, needs_cuda
from planted.library import ROOT, find_nvcc

from diglot.tools.machine_code import dump

WIDTHS, FULL_WIDTHS = (64, 96, 128, 160, 192, 224, 256), (64, 128, 192, 256)
TF32_COLUMNS = tuple(sorted(WIDTHS + FULL_WIDTHS))
# Of 16 bits: plain tiles, also exchanged ones and those of other heights; tiles with all that may
# follow the sums. Consumers that take turns have both forms, and one between them: an activation.
PLAIN, FULL = (*WIDTHS, 16, 32, 64, 80, 96, 160, 256), (*FULL_WIDTHS, 16, 32, 64)
OTHERS, TURNS = (96, 128, 160, 192, 128, 192), (128, 128, 128)
COLUMNS = tuple(sorted(PLAIN + FULL + OTHERS + TURNS))
NAMES = ("UTMALDG.4D", "UTMASTG.4D", "USETMAXREG")
FAST, EXACT = "0", "1"  # ways to add in scaled.cuh
MOST_SYNCS = 18  # of a warp: more of them are loops over its threads, around TMA's instructions
FLOAT8_PAIRS = ("E4M3.E4M3", "E4M3.E5M2", "E5M2.E4M3")


def compiled(source: str, kernels: int, folder: Path) -> list[str]:
    """The machine code for sm_90a of a file's kernels; none spills."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    cubin = folder / "kernels.cubin"
    command = [nvcc, "-std=c++17", "-arch=sm_90a", "-cubin", "--expt-relaxed-constexpr"]
    command += ["-fmad=false", "-DDIGLOT_FEW_TYPES", f"-I{ROOT / 'csrc/include'}", "-Xptxas=-v"]
    command += [str(ROOT / "csrc/ops" / source), "-o", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert spills == [("0", "0")] * kernels
    assert not re.search("C75[0-9][0-9]", done.stderr), done.stderr  # serialised products
    functions = dump("-sass", str(cubin)).split("Function : ")[1:]
    assert len(functions) == kernels
    return functions


@pytest.mark.slow
def test_cuda(tmp_path):
    """Each kernel has a main loop for each layout, of four products a step, or of eight in turns.
    TF32 has one layout.
    """
    kernels = len(COLUMNS) + len(TF32_COLUMNS)
    found: dict[str, list[int]] = {"16.F32.BF16": [], "8.F32.TF32": []}
    for code in compiled("sm_90a/matmul.cu", kernels, tmp_path):
        ((columns, form),) = set(re.findall(r"HGMMA\.64x(\d+)x(\d+\.F32\.\w+)", code))
        found[form].append(int(columns))
        is_tf32 = "TF32" in form
        halves = 2 if re.match(r"\w*Li128ELb0ELb[01]ELb1ELb[01]EE", code) else 1
        assert len(re.findall(r"\bHGMMA\.", code)) == (4 if is_tf32 else 4 * 4 * halves)
        assert ("STSM" in code) != is_tf32
        # A single consumer needs no registers of the producer.
        is_alone = re.match(r"\w*Li64ELi\d+ELb", code)
        for name in NAMES[:2] if is_alone else NAMES:
            assert name in code, (columns, name)
        assert len(re.findall(r"\bWARPSYNC\b", code)) <= MOST_SYNCS, columns
        assert not re.search(r"\b(LDL|STL)\b", code), columns
    assert [tuple(sorted(columns)) for columns in found.values()] == [COLUMNS, TF32_COLUMNS]


@pytest.mark.slow
def test_scaled_in_cuda(tmp_path):
    """Nine tiles for each of two types of C: a main loop for each pair of types, of four products a
    step. In turns, a consumer has both halves of the rows. Exact sums of 128 columns have two
    loops, of two steps and of one; those of 192 have halves of the columns.
    """
    tiles = set()
    for code in compiled("sm_90a/scaled_mm.cu", 2 * 9, tmp_path):
        found = re.findall(r"QGMMA\.64x(\d+)x32\.F32\.(E\dM\d\.E\dM\d)", code)
        kernel = re.match(r"\w*Li(\d+)E\w*AccumulationE(\d)", code)
        assert kernel is not None
        products = {("192", FAST): 8, ("128", EXACT): 12, ("192", EXACT): 8}.get(kernel.groups(), 4)
        assert Counter(pair for _, pair in found) == dict.fromkeys(FLOAT8_PAIRS, products)
        tiles.add(int(kernel[1]))
        stores = "UTMASTG.4D" in code, "STSM" in code
        assert stores in ((True, True), (False, False))  # threads store float32
        assert "UTMALDG.4D" in code and not re.search(r"\b(LDL|STL)\b", code)
    assert tiles == {64, 128, 192, 256}


@pytest.mark.slow
def test_groups_in_cuda(tmp_path):
    """A kernel for groups of rows, and one for those of K: a main loop for each width of products
    and each layout.
    """
    found = []
    for code in compiled("sm_90a/grouped_mm.cu", 2, tmp_path):
        counts = Counter(re.findall(r"\bHGMMA\.64x(\d+)x16\.F32\.BF16", code))
        assert set(counts.values()) == {4 * 4}
        found.append(sorted(map(int, counts)))
        assert all(name in code for name in (*NAMES, "STSM"))
        assert not re.search(r"\b(LDL|STL)\b", code)
    assert sorted(found) == [[16, 32, 64, 128, 256], [64, 128, 256]]


@pytest.mark.slow
def test_sums_of_rows_in_cuda(tmp_path):
    """Two main loops of one layout. In that of the first column of tiles, ones follow each product,
    and nothing waits for one of the two.
    """
    (code,) = compiled("sm_90a/linear.cu", 1, tmp_path)
    found = re.findall(r"\bHGMMA\.64x(\d+)x16\.F32\.BF16", code)
    assert sorted(found) == ["256"] * 8 + ["8"] * 4
    assert all(name in code for name in (*NAMES, "STSM")) and not re.search(r"\b(LDL|STL)\b", code)


@pytest.mark.slow
def test_copies_in_cuda(tmp_path):
    """A lane moves 16 bytes at once, except at the ends of lines. It loads the lines of a square,
    aligned ones or those that two accesses hold, before it stores one.
    """
    for code in compiled("sm_90a/padded_copy.cu", 3, tmp_path):
        kernel = code.partition("\n")[0]
        loads, stores = (
            len(re.findall(rf"{name}\.E\.(?:EF\.)?128", code)) for name in ("LDG", "STG")
        )
        side = 16 if "copyIh" in kernel else 4 if "copyIj" in kernel else 0  # of a square
        edges = 1 + (side > 0)  # loops of a piece at an edge
        assert (loads, stores) == (3 * side + 8 + 2 * edges, side + 4 + edges), kernel


FMA = """
#include "diglot/products/cuda_cores.cuh"
using namespace diglot;
__global__ void __launch_bounds__(256, 2)
    multiply(const float* a, const float* b, float* c, const __grid_constant__ FmaProduct product) {
  float sums[8][8] = {};
  const int64_t row = blockIdx.x * 128, column = blockIdx.y * 128;
  sum_products<FmaShape<8, true>>(sums, a, b, product, row, column, [](int) {});
  for (int i = 0; i < 64; ++i) c[i * 256 + threadIdx.x] = sums[i / 8][i % 8];
}
"""


@pytest.mark.slow
def test_fused_multiply_adds_in_cuda(tmp_path):
    """A step of eight along K: all loads have 16 bytes, before the loop and in it."""
    source = tmp_path / "multiply.cu"
    source.write_text(FMA)
    (code,) = compiled(str(source), 1, tmp_path)
    counts = {name: len(re.findall(rf"{name} ", code)) for name in ("LDG.E.128", "LDS.128", "FFMA")}
    assert counts == {"LDG.E.128": 4, "LDS.128": 4 * 8, "FFMA": 64 * 8}


COMPILED = """
import json, sys
import torch
from diglot.tools.resources import compile_stages
from diglot.triton_ops import linear, matmul
from diglot.triton_ops.launch import launch

H200 = (90, 132, 228 << 10, True)
answers = []
for case in json.loads(sys.argv[1]):
    m, n, k, layout, dtype, has_bias = case
    precision, dtype = ("tf32", "float32") if dtype == "tf32" else ("ieee", dtype)
    dtype = getattr(torch, dtype)
    a, b, out = (torch.empty(s, dtype=dtype, device="meta") for s in ((m, k), (k, n), (m, n)))
    a = a if layout[0] == "N" else a.new_empty(k, m).mT
    b = b if layout[1] == "N" else b.new_empty(n, k).mT
    if has_bias:
        around = a.new_empty(n), None, "none", False, precision, None
        plan = launch.plan(linear.linear_forward, H200, a, b.mT, *around, out)
    else:
        plan = launch.plan(matmul.matmul_forward, H200, a, b, False, precision, out)
    *_, made = plan.launches
    code = compile_stages(made.specialization).resources
    counts = dict(code.instructions)
    answers.append([plan.variant, "UTMALDG" in counts, "UTMASTG" in counts, code.spill_bytes,
                    [product for product, _ in code.products]])
print(json.dumps(answers))
"""
WIDE, BF16 = "HGMMA.64x256x16.F32.BF16", "bfloat16"
# M, N, K, layout, dtype, bias: the plan, bulk loads, bulk stores, spilled bytes, products.
EXPECTED = {
    (4096, 4096, 4096, "NT", BF16, True): ["descriptors, tiles of 128x256", True, True, 0, [WIDE]],
    (4096, 4096, 4096, "NN", BF16, False): ["descriptors, tiles of 128x256", True, True, 0, [WIDE]],
    (4096, 4096, 4096, "TN", BF16, False): ["descriptors, tiles of 128x256", True, True, 0, [WIDE]],
    (4096, 4096, 4096, "TT", BF16, False): ["descriptors, tiles of 128x256", True, True, 0, [WIDE]],
    (16, 8192, 8192, "NT", BF16, True): [
        "descriptors, tiles of 16x64, exchanged", True, True, 0, ["HGMMA.64x16x16.F32.BF16"]],
    (16, 2048, 16384, "NN", BF16, False): [
        "descriptors, tiles of 16x64, exchanged, K in 4 parts", True, True, 0,
        ["HGMMA.64x16x16.F32.BF16"]],
    (128, 8192, 8192, "TT", BF16, False): [
        "descriptors, tiles of 64x128", True, True, 0, ["HGMMA.64x128x16.F32.BF16"]],
    (4096, 4095, 4096, "NT", BF16, True): [
        "descriptors, tiles of 128x128", True, False, 0, ["HGMMA.64x128x16.F32.BF16"]],
    (4096, 4096, 4095, "NN", BF16, False): [
        "descriptors, tiles of 128x256, copy of A", True, True, 0, [WIDE]],
    (64, 64, 63, "NN", BF16, False): [
        "pointers, tiles of 128x128", False, False, 0, ["HGMMA.64x128x16.F32.BF16"]],
    (4096, 4096, 4096, "NT", "tf32", True): [
        "descriptors, tiles of 128x256, TF32", True, True, 0, ["HGMMA.64x256x8.F32.TF32"]],
    (4096, 4096, 4096, "TN", "tf32", False): [
        "descriptors, tiles of 128x256, TF32, copies of A and B", True, True, 0,
        ["HGMMA.64x256x8.F32.TF32"]],
    (64, 64, 63, "NN", "tf32", False): [
        "pointers, tiles of 64x64, TF32", False, False, 0, ["HGMMA.64x32x8.F32.TF32"]],
    (4096, 4096, 4096, "NN", "float32", False): ["pointers, tiles of 64x64", False, False, 0, []],
    (1024, 1024, 1024, "NN", "float64", False): [
        "pointers, tiles of 64x64", False, False, 0, ["DMMA.16x8x16"]],
}  # fmt: skip
CASES = list(EXPECTED)


def answers(program: str, cases: list) -> list:
    """What a program that compiles prints of some cases."""
    done = run_apart(program, json.dumps(cases))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.ahead_of_time
@pytest.mark.parametrize("cases", [CASES[:1], pytest.param(CASES, marks=pytest.mark.slow)])
def test_triton(cases):
    assert answers(COMPILED, cases) == [EXPECTED[case] for case in cases]


ROW_SUMS = """
import json, sys
import torch
import diglot
from diglot.tools.resources import compile_stages
from diglot.triton_ops import linear
from diglot.triton_ops.launch import launch

H200 = (90, 132, 228 << 10, True)
answers = []
for number, parts, dtype in json.loads(sys.argv[1]):
    numbers = {"products.both.row_sums": 1, "products.triton.number": number}
    like = torch.empty(0, dtype=getattr(torch, dtype), device="meta")
    grad, x = like.new_empty(8192, 768), like.new_empty(8192, 3072)
    outs = x.new_empty(768, 3072), x.new_empty(768)
    with diglot.use_plans({**numbers, "products.triton.split": parts}):
        plan = launch.plan(
            linear.linear_parameters_backward, H200, grad.mT, x, False, "ieee", *outs
        )
    (made,) = plan.launches
    code = compile_stages(made.specialization)
    products = [product.split(".")[1] for product, _ in code.resources.products]
    lines = code.stages["ttgir"].decode().splitlines()
    dots = ["isAsync = true" in line for line in lines if "ttng.warp_group_dot %" in line]
    is_overlapped = len(dots) >= 2 and all(dots)
    answers.append([plan.variant, code.resources.spill_bytes, products[-1:], is_overlapped])
print(json.dumps(answers))
"""
SUMMED = [(n, parts, BF16) for parts in (1, 3) for n in range(1, 7)] + [(1, 1, "float16")]


@pytest.mark.ahead_of_time
@pytest.mark.parametrize("cases", [SUMMED[:1], pytest.param(SUMMED, marks=pytest.mark.slow)])
def test_sums_of_rows_in_triton(cases):
    """They spill nothing, and their products run beside the others: none is awaited at once."""
    for case, (variant, *found) in zip(cases, answers(ROW_SUMS, cases), strict=True):
        assert variant.endswith("sums of rows") and found == [0, ["64x16x16"], True], (case, found)


# What may lie around a product of 4096 columns. The input is a matrix, one row for all, or odd
# rows. Beside it: the bias, `before`, the activation, its slope, odd rows of C, and factors.
AROUND = {
    "product": {},
    "linear": {"bias": True, "before": True, "activation": "gelu"},
    "residual": {"bias": True, "input": "rows", "before": True, "activation": "gelu"},
    "slope": {"input": "rows", "activation": "gelu", "is_slope": True},
    "addmm": {"input": "rows", "is_scaled": True},
    "one row": {"input": "row", "is_scaled": True},
    "odd input": {"bias": True, "input": "odd rows", "activation": "gelu"},
    "odd rows": {"bias": True, "input": "rows", "before": True, "is_odd": True},
}
ROOM = """
import json, sys
import torch
from diglot.backends.choosing import use_plans
from diglot.tools.resources import read_compiled
from diglot.triton_ops import matmul
from diglot.triton_ops.launch.plan import Device, Operand
from diglot.triton_ops.launch.products import Around, product_of
from triton.backends.compiler import GPUTarget

H200 = Device(90, 132, 228 << 10, True, "h200")
answers = []
for m, number, dtype, is_tf32, around in json.loads(sys.argv[1]):
    n, k, dtype = 4096, 4096, getattr(torch, dtype)
    def operand(place, shape, strides):
        return Operand(place, dtype, shape, strides, 0, H200)
    row = n + around.pop("is_odd", 0)
    c = operand(9, (m, n), (row, 1))
    strides = {"rows": (n, 1), "row": (0, 1), "odd rows": (n + 1, 1)}.get(around.pop("input", ""))
    around = Around(
        operand(2, (n,), (1,)) if around.pop("bias", False) else None,
        strides and operand(3, (m, n), strides),
        operand(4, (m, n), (row, 1)) if around.pop("before", False) else None,
        **around,
    )
    a, b = operand(0, (m, k), (k, 1)), operand(1, (k, n), (1, k))
    product = product_of(a, b, c, around).with_precision("tf32" if is_tf32 else "ieee")
    with use_plans({"products.triton.number": number}):
        H200.choose("", ())
        made = matmul.plan_product(product).launches[-1]
    compiled = made.specialization.compile(GPUTarget("cuda", 90, 32))
    code = read_compiled(compiled).resources
    answers.append([compiled.metadata.shared <= 227 << 10, code.spill_bytes, made.num_stages])
print(json.dumps(answers))
"""


def room_cases(types: list[tuple[str, bool]], arounds: list[str]) -> list[list]:
    """Each tile of Triton, with these things around the product."""
    return [
        [m, number, *type_, AROUND[name]]
        for m in (64, 4096)
        for number in range(1, 8 if m == 4096 else 7)
        for type_ in types
        for name in arounds
        if m == 4096 or not type_[1]
    ]


@pytest.mark.ahead_of_time
@pytest.mark.parametrize(
    "cases",
    [
        [[4096, 1, BF16, False, AROUND[name]] for name in ("addmm", "slope")],
        pytest.param(room_cases([(BF16, False)], list(AROUND)), marks=pytest.mark.slow),
        pytest.param(
            room_cases(
                [("float16", False), ("float32", True)], ["product", "residual", "odd input"]
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["few", "bfloat16", "others"],
)
def test_room_of_triton(cases):
    """Whatever follows the sums, shared memory and registers suffice."""
    for case, (fits, spills, stages) in zip(cases, answers(ROOM, cases), strict=True):
        assert fits and spills == 0 and stages >= 3, (case, fits, spills, stages)


SCALED = """
import json, sys
import torch
from diglot.tools.resources import compile_stages
from diglot.triton_ops import scaled_mm
from diglot.triton_ops.launch import launch

GPUS = {"sm_90": (90, 132, 228 << 10, True), "sm_80": (80, 108, 164 << 10, False)}
SCALES = {"matrix": ((), ()), "row": ((4096, 1), (1, 4096)), "blocks": ((4096, 32), (32, 32))}
answers = []
for architecture, types, scales, is_fast, dtype in json.loads(sys.argv[1]):
    a, b = (torch.empty(4096, 4096, dtype=getattr(torch, t), device="meta") for t in types)
    of_a, of_b = (torch.empty(shape, device="meta") for shape in SCALES[scales])
    out = torch.empty(4096, 4096, dtype=getattr(torch, dtype), device="meta")
    operands = a, b.mT, of_a, of_b, out.new_empty(4096), is_fast, False, out
    plan = launch.plan(scaled_mm.scaled_mm_forward, GPUS[architecture], *operands)
    (made,) = plan.launches
    code = compile_stages(made.specialization, architecture).resources
    products = [product for product, _ in code.products]
    answers.append([plan.variant, code.spill_bytes, products])
print(json.dumps(answers))
"""
SCALED_EXPECTED = {
    ("sm_90", ("float8_e4m3fn", "float8_e4m3fn"), "matrix", True, BF16): [
        "descriptors, fast, tiles of 128x256", 0, ["QGMMA.64x256x32.F32.E4M3.E4M3"]],
    ("sm_90", ("float8_e4m3fn", "float8_e4m3fn"), "row", True, BF16): [
        "descriptors, fast, tiles of 128x256", 0, ["QGMMA.64x256x32.F32.E4M3.E4M3"]],
    ("sm_90", ("float8_e4m3fn", "float8_e5m2"), "row", False, BF16): [
        "descriptors, exact, tiles of 128x256", 0, ["QGMMA.64x128x32.F32.E4M3.E5M2"]],
    ("sm_90", ("float8_e4m3fn", "float8_e4m3fn"), "matrix", False, BF16): [
        "descriptors, exact, tiles of 128x256", 0, ["QGMMA.64x128x32.F32.E4M3.E4M3"]],
    ("sm_90", ("float8_e5m2", "float8_e4m3fn"), "blocks", False, "float32"): [
        "descriptors, blocks, tiles of 128x128", 0, ["QGMMA.64x128x32.F32.E5M2.E4M3"]],
    ("sm_80", ("float8_e4m3fn", "float8_e5m2"), "row", True, BF16): [
        "pointers, exact, tiles of 128x64", 0, ["HMMA.16816.F32"]],
    ("sm_80", ("float8_e4m3fn", "float8_e4m3fn"), "blocks", False, BF16): [
        "pointers, blocks, tiles of 128x64", 0, ["HMMA.16816.F32"]],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.ahead_of_time
def test_scaled_in_triton():
    cases = list(SCALED_EXPECTED)
    assert answers(SCALED, cases) == list(SCALED_EXPECTED.values())


@needs_cuda
@pytest.mark.skipif(DEVICE != "cpu", reason="plans of named devices")
def test_plans_have_an_order():
    """The order of sums is a value, in both languages."""
    import diglot
    from diglot.backends.plans import plan_runs

    a = torch.empty(256, 256, dtype=torch.bfloat16)
    for backend in ("cuda", "triton"):
        with plan_runs() as runs:
            diglot.matmul(a, a, backend=backend)
        (order,) = runs[0].plan.order
        assert order.kernel.startswith("matmul_") and order.grid
