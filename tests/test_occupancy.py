"""Theoretical occupancy: against examples worked by hand, NVIDIA's own code, and the driver."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from backends import needs_extension

from diglot.backends.driver import driver
from diglot.tools import cuda_library, occupancy
from diglot.tools.gpus import gpus
from diglot.tools.inspect import inspect
from diglot.tools.occupancy import LIMITS, Occupancy


# Worked by hand, from the limits of the architecture and the units of allocation.
@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "shared", "expected"),
    [
        # 32 registers are 1024 for a warp: each quarter of 16384 holds 16, all four 64; 64 / 4.
        ("sm_90", 128, 32, 0, Occupancy(16, 64, 1.0, ("warps", "registers"))),
        # 33 are 1056, rounded up to 1280: 12 in a quarter, 48 in all; 48 / 4.
        ("sm_90", 128, 33, 0, Occupancy(12, 48, 0.75, ("registers",))),
        # 168 are 5376: 3 in a quarter, 12 in all, where 65536 / 5376 would be the same 12.
        ("sm_90a", 128, 168, 0, Occupancy(3, 12, 12 / 64, ("registers",))),
        # 200 are 6400: 2 in a quarter and 8 in all, where 65536 / 6400 would be 10.
        ("sm_90", 64, 200, 0, Occupancy(4, 8, 8 / 64, ("registers",))),
        # 48 KiB and 1 KiB of the system's: 4 of 49 KiB in 228 KiB.
        ("sm_90", 256, 16, 48 << 10, Occupancy(4, 32, 0.5, ("shared memory",))),
        # All that a block may have, and one byte more.
        ("sm_90", 256, 16, 227 << 10, Occupancy(1, 8, 8 / 64, ("shared memory",))),
        ("sm_90", 256, 16, (227 << 10) + 1, Occupancy(0, 0, 0.0, ("shared memory",))),
        # One byte takes 128: 1152 with the system's; 100 KiB hold 88, and 24 blocks are the limit.
        ("sm_89", 32, 16, 1, Occupancy(24, 24, 0.5, ("blocks",))),
        ("sm_86", 32, 16, 0, Occupancy(16, 16, 1 / 3, ("blocks",))),
        # 48 warps: 1024 threads are 32 of them.
        ("sm_120", 1024, 32, 0, Occupancy(1, 32, 32 / 48, ("warps",))),
        # A warp that is not full is one.
        ("sm_80", 33, 16, 0, Occupancy(32, 64, 1.0, ("warps", "blocks"))),
        # 32 warps of 72 registers, 2304 each: 73728 registers are more than there are.
        ("sm_80", 1024, 72, 0, Occupancy(0, 0, 0.0, ("registers",))),
    ],
)
def test_examples_worked_by_hand(architecture, threads, registers, shared, expected):
    assert occupancy.occupancy(architecture, threads, registers, shared) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sm_75", 128, 32, 0), "arch must be one of sm_80, .* not 'sm_75'"),
        (("hopper", 128, 32, 0), "arch must be like 'sm_90', not 'hopper'"),
        (("sm_90", 0, 32, 0), "threads must be from 1 to 1024, not 0"),
        (("sm_90", 1025, 32, 0), "threads must be from 1 to 1024, not 1025"),
    ],
)
def test_what_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        occupancy.occupancy(*arguments)


# NVIDIA's occupancy calculator, as a program: lines of numbers in, a number out for each.
CALCULATOR = """
#include <climits>
#include <cstdio>
#include <cstring>
#define __host__
#define __device__
struct cudaDeviceProp {};
struct cudaFuncAttributes {};
#include "cuda_occupancy.h"
int main() {
  int major, minor, warps, shared_of_all, threads, registers, dynamic;
  while (scanf("%d %d %d %d %d %d %d", &major, &minor, &warps, &shared_of_all, &threads, &registers,
               &dynamic) == 7) {
    cudaOccDeviceProp device;
    device.computeMajor = major;
    device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = 32 * warps;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 * 1024;
    device.sharedMemPerMultiprocessor = shared_of_all;
    device.sharedMemPerBlockOptin = shared_of_all - 1024;
    device.reservedSharedMemPerBlock = 1024;
    device.numSms = 1;
    cudaOccFuncAttributes function;
    function.maxThreadsPerBlock = 1024;
    function.numRegs = registers;
    function.sharedSizeBytes = 0;
    function.partitionedGCConfig = PARTITIONED_GC_OFF;
    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = shared_of_all;
    function.numBlockBarriers = 1;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    const cudaOccError status = cudaOccMaxActiveBlocksPerMultiprocessor(
        &result, &device, &function, &state, threads, dynamic);
    printf("%d\\n", status == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
  }
}
"""


def calculator_header() -> Path | None:
    triton = importlib.util.find_spec("triton")
    found = [Path(of) / "backends/nvidia/include" for of in triton.submodule_search_locations or []]
    found.append(Path("/usr/local/cuda/include"))
    return next((of for of in found if (of / "cuda_occupancy.h").exists()), None)


def test_as_nvidia_calculates_it(tmp_path):
    header = calculator_header()
    if header is None or shutil.which("g++") is None:
        pytest.skip("no cuda_occupancy.h, or no g++")
    (tmp_path / "calculator.cpp").write_text(CALCULATOR)
    # Not -I: beside it are headers of CUDA's runtime, which this needs nothing of.
    shutil.copy(header / "cuda_occupancy.h", tmp_path)
    command = ["g++", "-w", str(tmp_path / "calculator.cpp"), "-o", str(tmp_path / "calculator")]
    subprocess.run(command, check=True)
    number = random.Random(0)
    cases = [
        (
            name,
            threads,
            number.randint(0, 255),
            number.choice([0, 1, 5000, 49152, 100_000, 200_000]),
        )
        for name, threads in itertools.product(LIMITS, range(1, 1025, 13))
    ]
    cases += [("sm_90", 128, registers, 0) for registers in range(256)]
    cases += [("sm_90", 96, 32, shared) for shared in range(0, 232_448, 997)]
    lines = [
        f"{int(name[3:]) // 10} {int(name[3:]) % 10} {LIMITS[name].warps} "
        f"{LIMITS[name].shared_bytes} {threads} {registers} {shared}"
        for name, threads, registers, shared in cases
    ]
    answer = subprocess.run(
        [str(tmp_path / "calculator")],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = [int(line) for line in answer.stdout.split()]
    # A header knows no architectures that are newer than it is.
    known = {case[0] for case, blocks in zip(cases, theirs, strict=True) if blocks >= 0}
    assert {"sm_80", "sm_90"} <= known
    ours = [occupancy.occupancy(*case).blocks for case in cases]
    both = zip(cases, ours, theirs, strict=True)
    wrong = [(c, a, b) for c, a, b in both if a != b and c[0] in known]
    assert not wrong, f"{len(wrong)} of {len(cases)}, such as {wrong[0]}"
    assert len(set(ours)) > 20


def blocks_by_driver(cubin: bytes, symbol: str, threads: int, dynamic_bytes: int) -> int:
    """Blocks of a kernel that a multiprocessor of this GPU holds at once, as its driver says."""
    cuda, module, function = driver(), ctypes.c_void_p(), ctypes.c_void_p()
    blocks = ctypes.c_int()
    assert cuda.cuModuleLoadData(ctypes.byref(module), cubin) == 0
    try:
        assert cuda.cuModuleGetFunction(ctypes.byref(function), module, symbol.encode()) == 0
        # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        assert cuda.cuFuncSetAttribute(function, 8, ctypes.c_int(dynamic_bytes)) == 0
        status = cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks), function, ctypes.c_int(threads), ctypes.c_size_t(dynamic_bytes)
        )
        assert status == 0
    finally:
        cuda.cuModuleUnload(module)
    return blocks.value


@pytest.mark.gpu
@needs_extension
@pytest.mark.parametrize("op", ["gelu", "softmax", "layer_norm", "standardize", "clip_grad_norm_"])
def test_as_the_driver_says(op):
    """Of kernels with many registers and with few, with shared memory of both kinds and none."""
    torch.cuda.init()
    torch.zeros((), device="cuda")  # makes its context current
    architecture = "sm_{}{}".format(*torch.cuda.get_device_capability())
    found = inspect(op, architecture=architecture, stages=("cubin",))
    assert {kernel.language for kernel in found.kernels} == {"cuda", "triton"}, found.reasons
    for kernel in found.kernels:
        of, symbol = kernel.resources, kernel.name
        if kernel.language == "cuda":
            symbol = cuda_library.symbol_of(kernel.name, architecture)
        theirs = blocks_by_driver(
            kernel.stages["cubin"], symbol, of.threads, of.dynamic_shared_bytes
        )
        assert kernel.occupancy.blocks == theirs, of


@pytest.mark.gpu
def test_limits_are_those_of_this_gpu():
    torch.cuda.init()
    limits = occupancy.find_limits("sm_{}{}".format(*torch.cuda.get_device_capability()))
    value = ctypes.c_int()
    # CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_, _MAX_SHARED_MEMORY_PER_, _MAX_BLOCKS_PER_MULTIPROCESSOR,
    # _RESERVED_SHARED_MEMORY_PER_BLOCK and _MAX_REGISTERS_PER_MULTIPROCESSOR
    for attribute, expected in (
        (39, 32 * limits.warps),
        (81, limits.shared_bytes),
        (106, limits.blocks),
        (111, occupancy.RESERVED_SHARED_BYTES),
        (82, occupancy.REGISTERS),
    ):
        assert driver().cuDeviceGetAttribute(ctypes.byref(value), attribute, 0) == 0
        assert value.value == expected, attribute


def test_shared_memory_is_that_of_the_data_sheets():
    known = {f"sm_{gpu.compute_capability.replace('.', '')}": gpu for gpu in gpus()}
    assert len(known.keys() & LIMITS.keys()) >= 5
    for name in known.keys() & LIMITS.keys():
        sheet, limits = known[name], LIMITS[name]
        assert sheet.shared_kb_per_multiprocessor << 10 == limits.shared_bytes
        assert sheet.shared_kb_per_block + 1 == sheet.shared_kb_per_multiprocessor
