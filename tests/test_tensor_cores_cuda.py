"""examples/tensor_cores, the CUDA half: the product is right, short, and made of what it claims."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from backends import DEVICE, NEEDS_CUDA
from planted.library import ROOT, build_for_gpu, build_interpreted, find_nvcc, runner

from diglot.tools.machine_code import dump

EXAMPLE = ROOT / "examples/tensor_cores"
KERNELS = ROOT / "tests/planted/example_product.cu"
SIZES = [(8, 8, 8), (128, 128, 64), (136, 264, 200), (64, 72, 1024)]
pytestmark = NEEDS_CUDA
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 50))]


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    """product(a, b), and what the interpreter says."""
    if DEVICE == "cpu":
        run = runner(build_interpreted(KERNELS))
    elif find_nvcc() is None:
        pytest.skip("no nvcc")
    else:
        run = runner(build_for_gpu(tmp_path_factory.mktemp("product"), kernels=KERNELS))

    def call(a: torch.Tensor, b: torch.Tensor, **options) -> tuple[str, torch.Tensor]:
        (m, k), n = a.shape, b.shape[1]
        values = torch.cat([a.flatten(), b.flatten()]).view(torch.float32)
        message, out = run(f"{m}x{n}x{k}", values=values, blocks=m * n // 2, **options)
        return message, out.view(torch.bfloat16).view(m, n)

    return call


def integers(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Small ones, whose products and sums are exact in any order; and the product."""
    a, b = torch.randint(-4, 5, (m, k)).bfloat16(), torch.randint(-4, 5, (k, n)).bfloat16()
    return a, b, (a.double() @ b.double()).bfloat16()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_product_is_exact(product, sizes, seed):
    a, b, expected = integers(*sizes)
    message, c = product(a, b, seed=seed)
    assert message == ""
    assert torch.equal(c, expected)


def test_speed(product):
    """512 x 512 x 512 within 1.5 s, and within 5 times that with race checks."""
    if DEVICE != "cpu":
        pytest.skip("the interpreter's speed")
    a, b, expected = integers(512, 512, 512)
    product(a, b)
    for races, limit in ((False, 1.5), (True, 7.5)):
        begin = time.process_time()
        message, c = product(a, b, races=races)
        assert message == ""
        assert torch.equal(c, expected)
        assert time.process_time() - begin <= limit


def test_the_example_is_short():
    assert len((EXAMPLE / "product.cu").read_text().splitlines()) <= 150


@pytest.mark.compiled
def test_machine_code(tmp_path):
    """TMA, wgmma and moved registers, and nothing spilled."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    cubin = tmp_path / "product.cubin"
    command = [nvcc, "-std=c++17", "-arch=sm_90a", "-cubin", f"-I{ROOT / 'csrc/include'}"]
    command += [str(EXAMPLE / "product.cu"), "-o", str(cubin), "-Xptxas=-v"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr
    assert not re.search("C75[0-9][0-9]", done.stderr), done.stderr
    code = dump("-sass", str(cubin))
    for name in ("HGMMA.64x128x16.F32.BF16", "UTMALDG.2D", "UTMASTG.2D", "STSM", "USETMAXREG"):
        assert name in code, name
    assert not re.search(r"\b(LDL|STL)\b", code)


@pytest.mark.gpu if DEVICE == "cuda" else pytest.mark.slow
def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, EXAMPLE / "run_cuda.py"], capture_output=True, text=True, cwd=Path.cwd()
    )
    assert done.returncode == 0, done.stderr
    assert "exact" in done.stdout
