"""Products of float64 on tensor cores in CUDA C++: values, faults, machine code."""

from __future__ import annotations

import re
import subprocess

import pytest
import torch
from backends import DEVICE, needs_cuda
from planted.faults import NO_FAULT, Fault, plant
from planted.library import ROOT, build_interpreted, find_nvcc, runner
from product_cases import LAYOUTS, assert_product, integers, operands, surrounded

import diglot
from diglot.reference.matmul import matmul_oracle
from diglot.tools.machine_code import dump

HEADER = ROOT / "csrc/include/diglot/products/dmma.cuh"
KERNELS = ROOT / "tests/planted/dmma.cu"
F64 = torch.float64
interprets = pytest.mark.skipif(DEVICE != "cpu", reason="it interprets kernels")


@needs_cuda
@pytest.mark.parametrize(("sizes", "tile"), [((65, 70, 49), 64), ((300, 270, 35), 128)])
def test_edges_of_tiles(sizes, tile):
    """Both tiles, in two layouts that meet both operands' loads; steps beyond K."""
    for layout in LAYOUTS[1:3]:
        a, b = operands(*sizes, layout, F64)
        assert_product(diglot.matmul(surrounded(a), surrounded(b), backend="cuda"), a, b)
        if DEVICE == "cpu":  # of eight SMs
            assert diglot.last_run().variant == f"dmma, tiles of {tile}x{tile}"


@needs_cuda
def test_batches_and_bias():
    a, b = integers(3, 9, 40, dtype=F64), integers(3, 40, 17, dtype=F64)
    assert torch.equal(diglot.matmul(a, b, backend="cuda"), matmul_oracle(a, b))
    weight, bias = integers(17, 40, dtype=F64), integers(17, dtype=F64)
    expected = matmul_oracle(a, weight.mT) + bias
    assert torch.equal(diglot.linear(a, weight, bias, backend="cuda"), expected)


@needs_cuda
@interprets
def test_large_tiles_need_shared_memory():
    """Some GPUs of compute capability 8.x have 100 KB."""
    from diglot.backends.registry import load_interpreter

    a = torch.empty(4096, 4096, dtype=F64, device="meta")
    for device, tile in [((80, 108, 164 << 10, False), 128), ((86, 84, 100 << 10, False), 64)]:
        variant = load_interpreter()[0].plan("matmul_forward", device, a, a, False, "ieee", a)[0]
        assert variant == f"dmma, tiles of {tile}x{tile}"


FAULTS = {
    "none": NO_FAULT,
    "K's tail": Fault("depth_ + down < depth)", "true)"),
    "the last step": Fault("step < product.steps; ++step", "step + 1 < product.steps; ++step"),
    "rows behind the last": Fault("side_ + side < left_ && ", ""),
    "no wait for copies": Fault("wait_for_copies_before(Shape::kStages - 2);", ""),
    "a wait for too few": Fault("Shape::kStages - 2);", "Shape::kStages - 1);"),
    "no barrier": Fault("    __syncthreads();", "    "),
    "a stage too early": Fault("load(step + Shape::kStages - 1);", "load(step + Shape::kStages);"),
    "groups uncounted": Fault("    group_copies();", "    if (step < 5) group_copies();"),
}


@needs_cuda
@pytest.mark.slow
@interprets
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name, tmp_path):
    run = plant(FAULTS[name], [HEADER], KERNELS, tmp_path)
    a, b = integers(70, 90, dtype=F64), integers(90, 67, dtype=F64)
    values = torch.cat([a.flatten(), b.flatten()]).view(torch.float32)
    found = []
    for seed in range(3):
        message, out = run("70x67x90", values=values, blocks=2 * 70 * 67, seed=seed, seconds=60)
        right = torch.equal(out.view(F64).view(70, 67), a @ b)
        found.append(message or ("" if right else "another product"))
    assert any(found) != (name == "none"), found


@needs_cuda
@pytest.mark.slow
@interprets
def test_all_lanes_multiply():
    run = runner(build_interpreted(KERNELS))
    message, _ = run("half_a_warp", blocks=1, threads=32)
    assert "fewer than 32 lanes" in message, message


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "product", "count"),
                         [("sm_90a", "DMMA.16x8x16", 4), ("sm_80", "DMMA.884", 32)])  # fmt: skip
def test_machine_code(architecture, product, count, tmp_path):
    """A product is one instruction on Hopper, and eight before it."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    cubin = tmp_path / "kernels.cubin"
    command = [nvcc, "-std=c++17", f"-arch={architecture}", "-cubin", "--expt-relaxed-constexpr"]
    command += ["-fmad=false", f"-I{ROOT / 'csrc/include'}", "-Xptxas=-v", str(KERNELS)]
    done = subprocess.run([*command, "-o", str(cubin)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"(\d+) bytes spill", done.stderr)) == {"0"}
    codes = dump("-sass", str(cubin)).split("Function : ")[1:]
    (code,) = [code for code in codes if "multiply" in code.partition("\n")[0]]
    assert set(re.findall(r"DMMA\.\w+", code)) == {product}
    assert len(re.findall(rf"{re.escape(product)} ", code)) == count
    assert "LDGSTS.E.64" in code and not re.search(r"\b(LDL|STL)\b", code)
