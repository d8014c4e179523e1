"""Kernels of wgmma, ldmatrix and stmatrix, interpreted; and what nvcc makes of them.

Kernels with a bug each, in tests/planted/wgmma.cu, and their right versions; test_planted_table.py
has others of them. Operands are small integers, so that products are exact; the kernels count
wrong sums.
"""

from __future__ import annotations

import re
import subprocess

import pytest
import torch
from backends import DEVICE, NEEDS_CUDA
from planted.library import ROOT, build_interpreted, find_nvcc, runner

from diglot.tools.machine_code import find_cuobjdump

KERNELS = ROOT / "tests/planted/wgmma.cu"
pytestmark = NEEDS_CUDA
VALUES = torch.randint(-8, 9, (80_000,), generator=torch.Generator().manual_seed(0)).float()


@pytest.fixture(scope="module")
def interpret():
    if DEVICE != "cpu":
        pytest.skip("interprets kernels")
    run = runner(build_interpreted(KERNELS))

    def call(kernel, *, threads=128, seed=0, races=False, values=VALUES):
        message, out = run(
            kernel, values=values, blocks=1, threads=threads, shared=1 << 17, seed=seed, races=races
        )
        return message, out.item()

    return call


RIGHT = {
    "right": 128,
    "bf16": 128,
    "tf32": 128,
    "e4m3": 128,
    "mixed": 128,
    "fp16_mn": 128,
    "bf16_none": 128,
    "bf16_wide": 128,
    "registers": 128,
    "overlap": 256,
    "matrices_1": 32,
    "matrices_2": 32,
    "matrices_4": 32,
}


SEEDS = pytest.mark.parametrize("seeds", [8, pytest.param(200, marks=pytest.mark.slow)])


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("kernel", RIGHT)
def test_right_kernels(interpret, kernel, races):
    assert interpret(kernel, threads=RIGHT[kernel], races=races) == ("", 0)


@SEEDS
@pytest.mark.parametrize("kernel", ["overlap", "registers"])
def test_right_kernels_under_many_seeds(interpret, kernel, seeds):
    for seed in range(seeds):
        assert interpret(kernel, threads=RIGHT[kernel], seed=seed, races=True) == ("", 0)


def test_groups_that_were_waited_for_take_no_memory(interpret):
    message, held = interpret("commit_often")
    assert message == ""
    assert held < 1 << 20


# The message, under every seed.
PLANTED = {
    "touched_after_fence": "touched at .*, with no wgmma_fence\\(\\) after that",
    "commit_missing": "accumulators are touched before the wgmma_wait\\(\\) that covers",
    "wait_missing": "the thread ends with no wgmma_wait\\(\\) that covers",
    "beyond_shared": "wgmma.m64n32k16 of .*: 16 bytes out of bounds are read",
    "not_encoded": "a matrix descriptor with reserved bits that are not 0",
    "other_shape": "wgmma of another shape than the one before into the same accumulators",
    "unwritten": "wgmma.m64n32k16 of .*: shared memory is read that no thread",
    "matrices_misaligned": "a row of a matrix whose address is no multiple of 16 bytes",
}


@SEEDS
@pytest.mark.parametrize("kernel", PLANTED)
def test_planted_bugs_are_named(interpret, kernel, seeds):
    for seed in range(seeds):
        threads = 32 if kernel.startswith("matrices") else 128
        message, _ = interpret(kernel, threads=threads, seed=seed)
        assert re.search(PLANTED[kernel], message)
        assert "wgmma.cu:" in message


@pytest.mark.parametrize(("threads", "last"), [(96, 96), (160, 32), (385, 1)])
def test_a_warpgroup_has_128_threads(interpret, threads, last):
    message, _ = interpret("right", threads=threads)
    assert f"wgmma in a warpgroup of {last} threads: the block has {threads}" in message


def test_products_happen_late(interpret):
    """Under some seeds as late as the wait: then a tile that is overwritten before it is wrong."""
    wrong = [interpret("overwritten_early", seed=seed) for seed in range(12)]
    assert all(message == "" for message, _ in wrong)
    assert {count > 0 for _, count in wrong} == {False, True}


def test_truncated_sums(interpret):
    """Of 64 and 2^-10, the sum of 14 bits keeps the 64 alone."""
    values = torch.where(VALUES > 0, 8.0, 2.0**-5)
    assert interpret("e4m3", values=values) == ("", 0)
    message, wrong = interpret("e4m3_truncated", values=values)
    assert message == ""
    assert wrong > 0


def compile_for(architecture, folder):
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    cubin = folder / "wgmma.cubin"
    command = [nvcc, "-std=c++17", "-O2", "--expt-relaxed-constexpr", f"-arch={architecture}"]
    command += [
        "-Xptxas=-v",
        f"-I{ROOT / 'csrc/include'}",
        "-cubin",
        str(KERNELS),
        "-o",
        str(cubin),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return cubin, done.stderr


@pytest.mark.compiled
def test_compiled_for_hopper(tmp_path):
    """The instructions are there, and no register is spilled. ptxas mends nothing but bugs."""
    cubin, said = compile_for("sm_90a", tmp_path)
    assert "warning" not in said
    mended = re.findall(r"\(C75\d\d\).*FaultE(\d+)E", said)
    assert len(mended) == said.count("(C75")
    assert "0" not in mended
    usage = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said)
    assert usage
    assert set(usage) == {("0", "0")}
    command = [str(find_cuobjdump()), "-sass", str(cubin)]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for instruction in [
        "HGMMA.64x64x16.F32.BF16",
        "HGMMA.64x96x16.F32",
        "HGMMA.64x64x8.F32.TF32",
        "HGMMA.64x256x16.F32.BF16",
        "QGMMA.64x64x32.F32.E4M3.E4M3",
        "QGMMA.64x8x32.F32.E5M2.E4M3",
        "LDSM.16.M88.4",
        "LDSM.16.MT88.2",
        "STSM.16.MT88",
    ]:
        assert instruction in code


@pytest.mark.slow
def test_compiled_for_others(tmp_path):
    """A file of such kernels compiles for all architectures; there the products trap."""
    cubin, said = compile_for("sm_80", tmp_path)
    assert "warning" not in said
    command = [str(find_cuobjdump()), "-sass", str(cubin)]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "BPT.TRAP" in code
