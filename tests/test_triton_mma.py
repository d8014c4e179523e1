"""Triton's products of tiles and conversions of 8-bit floats: interpreted, on a GPU, compiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from apart import run_apart
from backends import DEVICE, KERNELS

if "triton" not in KERNELS:
    pytest.skip("there is no Triton", allow_module_level=True)

import mma_kernels as kernels

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

# Conversions to 8-bit floats need sm_89.
IS_OLD = DEVICE == "cuda" and torch.cuda.get_device_capability() < (8, 9)
needs_float8 = pytest.mark.skipif(IS_OLD, reason="this GPU converts no 8-bit floats")


def every(dtype: torch.dtype) -> torch.Tensor:
    """All values of a dtype of at most 16 bits, NaN included."""
    bits = BITS[dtype.itemsize]
    values = torch.arange(1 << 8 * dtype.itemsize, dtype=torch.int32, device=DEVICE)
    return values.to(bits).view(dtype)


def converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype, device=DEVICE)
    size = min(x.numel(), 1 << 12)
    kernels.convert_all[(x.numel() // size,)](x, out, size)
    return out


def assert_same(result: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bits, except those of NaN."""
    assert result.dtype == expected.dtype
    bits = BITS[result.element_size()]
    is_nan = expected.float().isnan()
    assert torch.equal(result.float().isnan(), is_nan)
    wrong = (result.view(bits) != expected.view(bits)) & ~is_nan
    assert not wrong.any(), (int(wrong.sum()), result[wrong][:8], expected[wrong][:8])


# --- conversions ----------------------------------------------------------------------------------


@needs_float8
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("source", [E4M3, E5M2, BF16])
def test_all_values_are_widened(source, dtype):
    x = every(source)
    assert_same(converted(x, dtype), x.float().to(dtype))


def rounded_to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What PyTorch rounds to, within the largest numbers; NaN stays."""
    return x.float().clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


@needs_float8
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("source", [F16, BF16, E4M3, E5M2])
def test_all_values_are_rounded(source, dtype):
    x = every(source)
    expected = x if source == dtype else rounded_to(x, dtype)
    assert_same(converted(x, dtype), expected)


def neighbours_of_ties(dtype: torch.dtype) -> torch.Tensor:
    """The float32 values between two neighbours of a dtype, and the nearest on both sides of
    each.
    """
    finite = every(dtype).float()
    finite = finite[finite.isfinite()].unique().cpu()
    ties = (finite[1:] + finite[:-1]) / 2
    return torch.cat([ties, *(ties.nextafter(torch.tensor(side)) for side in (1e9, -1e9))])


@needs_float8
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_float32_is_rounded(dtype):
    """Ties and their neighbours, values around the largest, and bits at random."""
    infinity, largest = float("inf"), LARGEST[dtype]
    beyond = [largest * factor for factor in (1, 1.03, 1.0357, 1.036, 1.07, 1.2, 1e5, infinity)]
    special = torch.tensor([0.0, 1e-45, 1e-30, float("nan"), *beyond])
    random = torch.randint(-(1 << 31), 1 << 31, (1 << 16,)).to(torch.int32).view(F32)
    near = random.view(torch.int32) & 0x07FFFFFF | 0x3B000000  # from 2^-9 to 2^7
    x = torch.cat([special, -special, neighbours_of_ties(dtype), random, near.view(F32)])
    x = torch.cat([x, x[: -x.numel() % (1 << 12)]]).to(DEVICE)
    assert_same(converted(x, dtype), rounded_to(x, dtype))


def test_float32_is_rounded_to_bfloat16():
    x = every(BF16).float()
    steps = torch.arange(x.numel(), device=DEVICE, dtype=torch.int32) * 7919 & 0xFFFF
    between = (x.view(torch.int32) | steps).view(F32)
    ties = (x.view(torch.int32) | 0x8000).view(F32)
    for values in (x, between, ties):
        assert_same(converted(values, BF16), values.to(BF16))


# --- products -------------------------------------------------------------------------------------


def product(a, b, sums=None, precision="tf32"):
    sums = torch.zeros(a.shape[0], b.shape[1], device=DEVICE) if sums is None else sums.clone()
    kernels.multiply[(1,)](a, b, sums, precision, *sums.shape, a.shape[1])
    return sums


def draw(*shape, dtype=F32):
    return torch.randn(shape, device=DEVICE).to(dtype)


def tf32(x: torch.Tensor) -> torch.Tensor:
    """As a tensor core reads float32: without the last 13 bits."""
    return (x.view(torch.int32) & -(1 << 13)).view(F32)


@pytest.mark.parametrize(
    "dtypes",
    [(BF16, BF16), (F16, F16), *(pytest.param(d, marks=needs_float8) for d in ((E4M3, E4M3),))],
)
def test_integers_are_exact(dtypes):
    """Small integers: products and sums are exact in any order."""
    a, b = (
        torch.randint(-8, 9, shape, device=DEVICE).to(dtype)
        for shape, dtype in zip(((64, 128), (128, 32)), dtypes, strict=True)
    )
    sums = torch.randint(-99, 99, (64, 32), device=DEVICE).float()
    assert torch.equal(product(a, b, sums), (a.double() @ b.double() + sums).float())


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_products(dtype):
    a, b, sums = draw(64, 64, dtype=dtype), draw(64, 32, dtype=dtype), draw(64, 32)
    torch.testing.assert_close(
        product(a, b, sums), (a.double() @ b.double() + sums).float(), rtol=0, atol=2e-5
    )


@needs_float8
@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2), (E5M2, E4M3)])
def test_products_of_8_bit_floats(dtypes):
    a, b = draw(64, 64, dtype=dtypes[0]), draw(64, 32, dtype=dtypes[1])
    expected = a.double() @ b.double()
    # A GPU keeps some 14 bits of such sums.
    near = 2e-5 if DEVICE == "cpu" else 1e-2
    torch.testing.assert_close(product(a, b), expected.float(), rtol=near, atol=10 * near)


@needs_float8
@pytest.mark.parametrize("dtype", [E4M3, E5M2, BF16, F16, F32])
def test_not_a_number_spreads_along_its_row(dtype):
    a, b = torch.ones(64, 64, device=DEVICE), torch.ones(64, 32, device=DEVICE)
    a[5, 7] = float("nan")
    result = product(a.to(dtype), b.to(dtype))
    assert result[5].isnan().all() and (result[torch.arange(64) != 5] == 64).all()


def test_precisions_of_float32():
    a, b, sums = draw(64, 64), draw(64, 32), draw(64, 32)
    exact = a.double() @ b.double() + sums
    cut = tf32(a).double() @ tf32(b).double() + sums
    errors = {}
    for precision, expected, near in (
        ("tf32", cut, 2e-5),
        ("tf32x3", exact, 1e-4),
        ("ieee", exact, 2e-5),
    ):
        result = product(a, b, sums, precision)
        torch.testing.assert_close(result, expected.float(), rtol=0, atol=near)
        errors[precision] = (result - exact).abs().max().item()
    assert errors["tf32"] > 1e-3 > 1e-4 > errors["tf32x3"]


def test_a_precision_that_does_not_exist():
    with pytest.raises(Exception) as raised:
        product(draw(64, 64), draw(64, 32), precision="tf31")
    # Triton 3.6 names the kernel's line first; the reason is in the error before.
    said, error = "", raised.value
    while error is not None:
        said, error = said + str(error), error.__cause__ or error.__context__
    assert "tf32x3" in said or "input_precision" in said


def test_the_last_13_bits_are_ignored():
    a = (torch.rand(64, 64, device=DEVICE).view(torch.int32) | 0x1FFF).view(F32)
    b = torch.eye(64, device=DEVICE)
    assert torch.equal(product(a, b), tf32(a))
    assert torch.equal(product(a, b, precision="ieee"), a)


def test_infinities_in_three_products():
    """The tail of an infinity is NaN, and must not reach the sum."""
    a, b = draw(64, 64), torch.ones(64, 32, device=DEVICE)
    a[3, 4] = float("inf")
    result = product(a, b, precision="tf32x3")
    assert (result[3] == float("inf")).all() and result[:3].isfinite().all()


def test_other_types_of_sums():
    a, b = draw(64, 64, dtype=F16), draw(64, 32, dtype=F16)
    result = product(a, b, torch.zeros(64, 32, dtype=F16, device=DEVICE))
    torch.testing.assert_close(result.double(), a.double() @ b.double(), rtol=0, atol=0.1)
    a, b = (torch.randint(-128, 128, s, device=DEVICE).to(torch.int8) for s in ((64, 64), (64, 32)))
    result = product(a, b, torch.ones(64, 32, dtype=torch.int32, device=DEVICE))
    assert torch.equal(result.double(), a.double() @ b.double() + 1)


# --- compilation ---------------------------------------------------------------------------------

COMPILED = """
import json, re, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import mma_kernels as kernels

def ptx(kernel, architecture, types, **constants):
    types = {**types, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(kernel, types, constants)
    compiled = triton.compile(source, GPUTarget("cuda", architecture, 32))
    text = re.sub("//.*", "", compiled.asm["ptx"])
    return text.replace(kernel.fn.__name__, "kernel")

answers = {"conversions": {}, "same": {}}
for source, to in (pair.split(">") for pair in sys.argv[1].split()):
    text = ptx(kernels.convert_all, 90, {"x": "*" + source, "out": "*" + to}, N=1024)
    answers["conversions"][f"{source}>{to}"] = sorted(set(re.findall(r"cvt[.]\\S*x2\\S*", text)))
for operand, precision in (pair.split(":") for pair in sys.argv[2].split()):
    for architecture in (90,) if operand == "fp8e4nv" else (80, 90):
        types = {"a": "*" + operand, "b": "*" + operand, "out": "*fp32"}
        texts = {
            ptx(kernel, architecture, types, PRECISION=precision, M=64, N=64, K=64)
            for kernel in (kernels.multiply, kernels.multiply_plain)
        }
        answers["same"][f"{operand}:{precision} sm_{architecture}"] = len(texts) == 1
print(json.dumps(answers))
"""
# By conversion, PTX's instructions of two values.
CONVERSIONS = {
    "fp32>fp8e4nv": ["cvt.rn.satfinite.e4m3x2.f32"],
    "fp32>fp8e5": ["cvt.rn.satfinite.e5m2x2.f32"],
    "bf16>fp8e4nv": ["cvt.rn.satfinite.e4m3x2.f32"],
    "bf16>fp8e5": ["cvt.rn.satfinite.e5m2x2.f32"],
    "fp16>fp8e4nv": ["cvt.rn.satfinite.e4m3x2.f16x2"],
    "fp16>fp8e5": ["cvt.rn.satfinite.e5m2x2.f16x2"],
    "fp8e4nv>fp8e5": ["cvt.rn.f16x2.e4m3x2", "cvt.rn.satfinite.e5m2x2.f16x2"],
    "fp8e4nv>fp32": ["cvt.rn.f16x2.e4m3x2"],
    "fp8e5>fp32": ["cvt.rn.f16x2.e5m2x2"],
    "fp8e5>bf16": ["cvt.rn.f16x2.e5m2x2"],
}
PRODUCTS = ["fp32:tf32", "bf16:tf32", "fp8e4nv:tf32", "fp32:tf32x3", "fp32:ieee"]


@pytest.mark.ahead_of_time
@pytest.mark.slow
def test_compiled_forms():
    """Conversions are the hardware's own instructions, and `dot` is `tl.dot` alone."""
    variables = {"PYTHONPATH": str(Path(__file__).parent), "TRITON_DISABLE_LINE_INFO": "1"}
    done = run_apart(COMPILED, " ".join(CONVERSIONS), " ".join(PRODUCTS), environment=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)
    assert answers["conversions"] == CONVERSIONS
    assert len(answers["same"]) == 2 * len(PRODUCTS) - 1
    assert all(answers["same"].values()), answers["same"]
