"""Bulk copies, compiled: each function of the device library is its instruction, and no other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from async_code import read
from planted.library import ROOT, find_nvcc

from diglot.tools.machine_code import dump

# Its name in machine code (SASS), by the function's call.
CALLS = {
    "tma_load(map, tile, full, {1})": "UTMALDG.1D",
    "tma_load(map, tile, full, {1, 2})": "UTMALDG.2D",
    "tma_load(map, tile, full, {1, 2, 3})": "UTMALDG.3D",
    "tma_load(map, tile, full, {1, 2, 3, 4})": "UTMALDG.4D",
    "tma_load(map, tile, full, {1, 2, 3, 4, 5})": "UTMALDG.5D",
    "tma_load_multicast(map, tile, full, {1, 2}, 3)": "UTMALDG.2D.MULTICAST",
    "tma_store(map, tile, {1, 2, 3})": "UTMASTG.3D",
    "tma_reduce<Reduction::kAdd>(map, tile, {1})": "UTMAREDG.1D.ADD",
    "tma_reduce<Reduction::kMin>(map, tile, {1, 2})": "UTMAREDG.2D.MIN",
    "tma_reduce<Reduction::kMax>(map, tile, {1, 2, 3})": "UTMAREDG.3D.MAX",
    "tma_reduce<Reduction::kAnd>(map, tile, {1, 2, 3, 4})": "UTMAREDG.4D.AND",
    "tma_reduce<Reduction::kOr>(map, tile, {1, 2, 3, 4, 5})": "UTMAREDG.5D.OR",
    "tma_reduce<Reduction::kXor>(map, tile, {1})": "UTMAREDG.1D.XOR",
    "tma_prefetch(map, {1, 2})": "UTMAPF.L2.2D",
    "tma_prefetch_map(map)": "UTMACCTL.PF",
    "bulk_load(tile, global, 64, full)": "UBLKCP.S.G",
    "bulk_load_multicast(tile, global, 64, full, 3)": "UBLKCP.S.G.MULTICAST",
    "bulk_send(1024, tile, 64, 2048)": "UBLKCP.S.S",
    "bulk_store(global, tile, 64)": "UBLKCP.G.S",
    "bulk_prefetch(global, 64)": "UBLKPF.L2",
    "commit_bulk_group()": "UTMACMDFLUSH",
    "fence_tensor_map_acquire(map)": "UTMACCTL.IV",
}
KERNEL = """
__global__ void kernel_{}(const __grid_constant__ TensorMap map, char* global) {{
  extern __shared__ __align__(1024) char tile[];
  __shared__ Mbarrier full;
  {};
}}
"""


def listings(folder: Path, architecture: str) -> dict[str, list[str]]:
    """By call, the names of the instructions of bulk copies."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    kernels = "".join(KERNEL.format(i, call) for i, call in enumerate(CALLS))
    source, cubin = folder / "calls.cu", folder / "calls.cubin"
    source.write_text(f'#include "diglot/mma/tma.cuh"\nusing namespace diglot;\n{kernels}')
    include = f"-I{ROOT / 'csrc/include'}"
    command = [nvcc, "-std=c++17", f"-arch={architecture}", "-cubin", include, source, "-o", cubin]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {}
    for part in dump("-sass", str(cubin)).split("Function : ")[1:]:
        number = int(part.split("kernel_")[1].partition("N6diglot")[0])
        instructions = read(part)
        assert not any(one.name in ("LDL", "STL") for one in instructions)
        found[list(CALLS)[number]] = [one.name + one.suffixes for one in instructions]
    assert len(found) == len(CALLS)
    return found


@pytest.mark.compiled
def test_instructions(tmp_path):
    for call, names in listings(tmp_path, "sm_90a").items():
        copies = [name for name in names if name.startswith(("UTMA", "UBLK"))]
        assert copies == [CALLS[call]], call


@pytest.mark.compiled
def test_older_devices_refuse(tmp_path):
    """They compile the same file. Hints are left out there."""
    for call, names in listings(tmp_path, "sm_80").items():
        is_hint = call.startswith(("bulk_prefetch", "fence"))
        assert ("BPT.TRAP" in names) != is_hint, call
