"""examples/tensor_cores, the Triton half: products in several forms are right, and short."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backends import DEVICE, KERNELS

if "triton" not in KERNELS:
    pytest.skip("there is no Triton", allow_module_level=True)

import triton

EXAMPLE = Path(__file__).parent.parent / "examples/tensor_cores"
NAMES = ["descriptors", "pointers", "block pointers", "warp-specialised"]
pytestmark = pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated:UserWarning")


@pytest.fixture(scope="module")
def forms():
    """The example's modules, with its folder on the path, as Python itself would have it."""
    sys.path.insert(0, str(EXAMPLE))
    if DEVICE == "cuda":
        triton.set_allocator(
            lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=DEVICE)
        )
    yield importlib.import_module("forms_triton")
    sys.path.remove(str(EXAMPLE))


@pytest.fixture
def product(forms):
    return importlib.import_module("product_triton")


def integers(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-4, 5, (rows, columns), device=DEVICE).to(dtype)


# On edges of tiles, of a single tile, and of several; rows start at multiples of 16 bytes.
SIZES = [(136, 264, 200), (8, 8, 8), (128, 128, 64)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_forms(forms, name, sizes, dtype):
    """Integers: the same bits in every form, in every order of the sums."""
    if name not in forms.FORMS:
        pytest.skip("this Triton has no block pointers")
    if (DEVICE, name, dtype) == ("cuda", "warp-specialised", torch.float32):
        major, minor = map(int, triton.__version__.split(".")[:2])
        if (major, minor) < (3, 7):
            pytest.skip("Triton 3.6 cannot compile warp-specialised products of float32")
    m, n, k = sizes
    a, b = integers(m, k, dtype), integers(k, n, dtype)
    out = torch.full((m, n), float("nan"), device=DEVICE, dtype=dtype)
    forms.FORMS[name](a, b, out).run()
    assert torch.equal(out, (a.double() @ b.double()).to(dtype))


def test_the_smallest_product(product):
    a, b = integers(136, 200, torch.bfloat16), integers(200, 264, torch.bfloat16)
    assert torch.equal(product.product(a, b), (a.double() @ b.double()).bfloat16())
    lines = inspect.getsource(product.product_kernel.fn).splitlines()
    assert len(lines) < 25


def test_tf32_against_ieee(product):
    a, b = torch.randn(2, 128, 128, device=DEVICE)
    exact = a.double() @ b.double()
    tf32, ieee = (
        ((product.product(a, b, precision) - exact).norm() / exact.norm()).item()
        for precision in ("tf32", "ieee")
    )
    assert ieee < 1e-6 < 1e-4 < tf32 < 3e-3


@pytest.mark.parametrize("change", ["address", "stride", "transposed"])
def test_what_no_descriptor_takes(product, change):
    """An error of the call, before anything runs."""
    a, b = integers(64, 72, torch.bfloat16), integers(64, 72, torch.bfloat16).t().contiguous()
    wrong = {"address": a[:, 1:65], "stride": a[:, :68].contiguous(), "transposed": b.t()}
    with pytest.raises(AssertionError):
        product.product(wrong[change], b[: wrong[change].shape[1]])


def run_example(*arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_INTERPRET")}
    done = subprocess.run(
        [sys.executable, EXAMPLE / "run_triton.py", *arguments],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_run(forms):
    """Every form is exact, and the form that was compiled is told."""
    text = run_example()
    for name in forms.FORMS:
        assert f"bf16, {name}: exact" in text
    errors = {
        precision: float(error)
        for precision, error in re.findall(r"(\w+): relative error (\S+)", text)
    }
    # Errors of float32 sums grow with their length: 136 interpreted, 4096 on a GPU.
    assert errors["ieee"] < (4e-6 if DEVICE == "cuda" else 1e-6) < 1e-4 < errors["tf32"]
    assert text.count("    warp-specialised, 12 warps") == 1
    assert text.count("not warp-specialised, 8 warps") == len(forms.FORMS) + 1
    assert text.count("HGMMA.64x128x16.F32.BF16") == len(forms.FORMS)
    assert text.count("no tensor cores") == 1 and "F32.TF32" in text
    assert text.count(" 0 bytes spilled") == len(forms.FORMS) + 2
