"""Whole products by tensor descriptors: what they compute, and the form that is compiled."""

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

from diglot.backends.scratch import provide
from diglot.tools.machine_code import read_sass

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
IS_OLD = DEVICE == "cuda" and torch.cuda.get_device_capability() < (8, 9)
needs_float8 = pytest.mark.skipif(IS_OLD, reason="this GPU has no products of 8-bit floats")
# A warp-specialised kernel takes room for one descriptor more than it makes.
FORMS = {"plain": (8, 3), "specialised": (4, 4), "specialised flat": (4, 3)}


def draw(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Small integers, so that results are exact."""
    return torch.randint(-4, 5, (rows, columns), device=DEVICE).to(dtype)


# Edges of tiles on all sides; rows start at multiples of 16 bytes.
DTYPES = [BF16, torch.float16, torch.float32, pytest.param(E4M3, marks=needs_float8)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_descriptors_by_the_host(dtype):
    a, b = draw(136, 80, dtype), draw(80, 144, dtype)
    out = torch.full((136, 144), -1.0, device=DEVICE)
    assert kernels.multiply_by_host(a, b, out, None) == "by host"
    assert torch.equal(out.double(), a.double() @ b.double())


@pytest.mark.parametrize("form", FORMS)
def test_descriptors_by_the_programs(form):
    a, b = draw(136, 72, BF16), draw(72, 264, BF16)
    out = torch.full((136, 264), -1.0, device=DEVICE).bfloat16()
    need = kernels.multiply_persistent(a, b, form, *FORMS[form], out, None)
    scratch = provide(need, out.device)
    assert kernels.multiply_persistent(a, b, form, *FORMS[form], out, scratch) == form
    assert torch.equal(out, (a.double() @ b.double()).bfloat16())


MISCOMPILED = pytest.mark.xfail(
    DEVICE == "cuda", reason="Triton's warp-specialised form was seen to be wrong", strict=False
)


@pytest.mark.parametrize("is_causal", [False, pytest.param(True, marks=MISCOMPILED)])
def test_attention(is_causal):
    q, k, v = (torch.randn(256, 64, device=DEVICE).bfloat16() / 4 for _ in "qkv")
    out = torch.full_like(q, float("nan"))
    scratch = provide(kernels.attend(q, k, v, is_causal, out, None), out.device)
    kernels.attend(q, k, v, is_causal, out, scratch)
    scores = q.double() @ k.double().t()
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores).tril().bool(), -torch.inf)
    weights = (scores * torch.log(torch.tensor(2.0).double())).softmax(1)
    torch.testing.assert_close(out.double(), weights @ v.double(), rtol=0.02, atol=0.005)


# --- compilation ---------------------------------------------------------------------------------

COMPILED = """
import json, sys
import torch
import mma_kernels as kernels
from diglot.tools.resources import compile_stages
from diglot.triton_ops.launch import launch
from diglot.triton_ops.launch.descriptors import needs_room

H200 = (90, 132, 228 << 10, True)
answers = {}
for name in sys.argv[1:]:
    dtype, form, warps, descriptors = name.split(":")
    a, b, out = (torch.empty(512, 512, dtype=getattr(torch, dtype), device="meta") for _ in "abc")
    if form == "host":
        plan = launch.plan(kernels.multiply_by_host, H200, a, b, out)
    elif form.endswith("attention"):
        a, b, c, out = (torch.empty(512, 128, dtype=a.dtype, device="meta") for _ in "abcd")
        plan = launch.plan(kernels.attend, H200, a, b, c, form.startswith("causal"), out)
    else:
        options = form, int(warps), int(descriptors)
        plan = launch.plan(kernels.multiply_persistent, H200, a, b, *options, out)
    (made,) = plan.launches
    kernel = compile_stages(made.specialization)
    counts = dict(kernel.resources.instructions)
    answers[name] = {
        "form": kernel.resources.form,
        "specialised": kernel.resources.is_warp_specialised,
        "setmaxnreg": b"setmaxnreg" in kernel.stages["ptx"],
        "warps": kernel.resources.threads // 32,
        "bulk": ["UTMALDG" in counts, "UTMASTG" in counts],
        "products": [product for product, _ in kernel.resources.products],
        "spills": kernel.resources.spill_bytes,
    }
    if descriptors:
        from triton.backends.compiler import GPUTarget
        compiled = made.specialization.compile(GPUTarget("cuda", 90, 32))
        answers[name]["room"] = needs_room(made, compiled.metadata)
print(json.dumps(answers))
"""
HGMMA = "HGMMA.64x128x16.F32.BF16"
# By dtype, form, warps and descriptors: warps that run, and the products.
EXPECTED = {
    "bfloat16:specialised:4:4": (12, HGMMA),
    "bfloat16:host::": (8, HGMMA),
    "bfloat16:plain:8:3": (8, HGMMA),
    # Triton ignores the request, and says nothing.
    "bfloat16:specialised:8:3": (8, HGMMA),
    "bfloat16:specialised flat:4:3": (4, HGMMA),
    "float16:specialised:4:4": (12, "HGMMA.64x128x16.F32"),
    "float32:host::": (8, "HGMMA.64x128x8.F32.TF32"),
    "bfloat16:full attention:4:5": (12, HGMMA),
    "bfloat16:causal attention:4:5": (12, HGMMA),
    "float8_e4m3fn:host::": (8, "QGMMA.64x128x32.F32.E4M3.E4M3"),
}
FEW = list(EXPECTED)[:1]


@pytest.mark.ahead_of_time
@pytest.mark.parametrize("names", [FEW, pytest.param(list(EXPECTED), marks=pytest.mark.slow)])
def test_compiled_forms(names):
    done = run_apart(COMPILED, *names, environment={"PYTHONPATH": str(Path(__file__).parent)})
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)
    assert list(answers) == names
    for name, answer in answers.items():
        warps, product = EXPECTED[name]
        assert (answer["warps"], answer["products"]) == (warps, [product]), (name, answer)
        assert answer["specialised"] == answer["setmaxnreg"] == (warps == 12), name
        assert answer["bulk"] == [True, True] and answer["spills"] == 0, name
        assert answer.get("room", True), name
        said = "warp-specialised, 12 warps" if warps == 12 else f"not warp-specialised, {warps} "
        assert answer["form"].startswith(said) and product in answer["form"]


SASS = """
        Function : kernel
        /*0010*/              @!P0 USETMAXREG.DEALLOC.CTAPOOL 0x18 ;           /* 0x0 */
        /*0020*/                   UTMALDG.2D [UR8], [UR4], desc[UR6] ;        /* 0x0 */
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;  /* 0x0 */
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;  /* 0x0 */
        /*0050*/                   HMMA.16816.F32.BF16 R4, R4, R8, R12 ;       /* 0x0 */
"""


def test_products_are_counted_by_their_shape():
    code = read_sass(SASS)["kernel"]
    assert code.products == (("HGMMA.64x128x16.F32.BF16", 2), ("HMMA.16816.F32.BF16", 1))
    assert dict(code.instructions) == {"UTMALDG": 1, "USETMAXREG": 1, "HGMMA": 2, "HMMA": 1}
