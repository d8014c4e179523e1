"""The grid barrier, compiled: the instructions that order memory are there, in both languages.

Running cannot tell a barrier without its release or its acquire from a whole one: what they order
is nearly always in order by itself. So the compiled code is read, and so is that of mutations which
lack the one or the other.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import diglot
from diglot.tools.machine_code import find_cuobjdump

ROOT = Path(__file__).parent.parent
ARCHITECTURES = ["80", "90"]

# SASS: a release is a fence before the addition; an acquire invalidates, after a load that goes to
# the L2 cache, what the multiprocessor's own cache holds.
ADDITION = re.compile(r"\bATOMG?\.E\.ADD\.STRONG\.GPU")
POLL = re.compile(r"\bLDG?\.E\.STRONG\.GPU")
FENCE = re.compile(r"\bMEMBAR\.(ALL|SC)\.GPU")
INVALIDATION = re.compile(r"\bCCTL\.IVALL")
OTHER_ACCESS = re.compile(r"\b(LDG|LD|STG|ST|ATOMG?|RED)\.E|\bBAR\.SYNC")


def orders(sass: str) -> dict[str, bool]:
    """Whether additions release, and polls acquire."""
    code = [line for line in sass.splitlines() if "/*" in line and ";" in line]
    additions = [i for i, line in enumerate(code) if ADDITION.search(line)]
    polls = [i for i, line in enumerate(code) if POLL.search(line)]
    assert additions and polls, "this is no grid barrier"

    def first(lines: list[str], of: re.Pattern[str]) -> int:
        return next((i for i, line in enumerate(lines) if of.search(line)), len(lines))

    # The nearest fence is nearer than any other access.
    release = all(
        first(code[i - 1 :: -1], FENCE) < first(code[i - 1 :: -1], OTHER_ACCESS) for i in additions
    )
    acquire = all(
        first(code[i + 1 :], INVALIDATION) < first(code[i + 1 :], OTHER_ACCESS) for i in polls
    )
    return {"release": release, "acquire": acquire}


def disassemble(cubin: Path) -> str:
    command = [str(find_cuobjdump()), "-sass", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


KERNEL = """
#include "diglot/grid_barrier.cuh"
__global__ void kernel(uint32_t* word, const float* in, float* data, float* out) {
  diglot::GridBarrier barrier(word);
  data[blockIdx.x] = in[blockIdx.x];
  barrier.sync();
  out[blockIdx.x] = data[gridDim.x - 1 - blockIdx.x];
}
"""


def cuda_code(folder: Path, architecture: str, replace: tuple[str, str]) -> str:
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    headers = folder / "diglot"
    shutil.copytree(Path(diglot.get_include()) / "diglot", headers)
    atomics = headers / "atomics.cuh"
    text = atomics.read_text()
    assert replace[0] in text
    atomics.write_text(text.replace(*replace))
    (folder / "kernel.cu").write_text(KERNEL)
    cubin = folder / "kernel.cubin"
    command = [nvcc, "-std=c++17", "-O3", "-cubin", f"-arch=sm_{architecture}", f"-I{folder}"]
    subprocess.run([*command, str(folder / "kernel.cu"), "-o", str(cubin)], check=True)
    return disassemble(cubin)


COMPILE = """
import importlib.util, sys
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

library, architecture, cubin = sys.argv[1:]
specification = importlib.util.spec_from_file_location("library", library)
grid_barrier = importlib.util.module_from_spec(specification)
sys.modules["library"] = grid_barrier
specification.loader.exec_module(grid_barrier)

@triton.jit
def kernel(word, input, data, out):
    tl.store(data + tl.program_id(0), tl.load(input + tl.program_id(0)))
    grid_barrier.sync(word)
    other = tl.load(data + tl.num_programs(0) - 1 - tl.program_id(0))
    tl.store(out + tl.program_id(0), other)

types = {"word": "*i32", "input": "*fp32", "data": "*fp32", "out": "*fp32"}
target = GPUTarget("cuda", int(architecture), 32)
compiled = triton.compile(ASTSource(kernel, types), target=target)
open(cubin, "wb").write(compiled.asm["cubin"])
"""


def triton_code(folder: Path, architecture: str, replace: tuple[str, str]) -> str:
    text = (ROOT / "triton_ops/lib/grid_barrier.py").read_text()
    assert replace[0] in text
    library, script, cubin = (folder / name for name in ("library.py", "script.py", "cubin"))
    library.write_text(text.replace(*replace))
    script.write_text(COMPILE)
    command = [sys.executable, str(script), str(library), architecture, str(cubin)]
    # Compiling and interpreting exclude each other in one process.
    environment = {"TRITON_INTERPRET": "0", "DIGLOT_INTERPRET": "0"}
    subprocess.run(["env", *(f"{k}={v}" for k, v in environment.items()), *command], check=True)
    return disassemble(cubin)


CODE = {"cuda": cuda_code, "triton": triton_code}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("language", CODE)
def test_it_releases_and_acquires(tmp_path, language, architecture):
    found = orders(CODE[language](tmp_path, architecture, ("acq", "acq")))
    assert found == {"release": True, "acquire": True}


MUTATIONS = {
    ("cuda", "release"): ("atom.add.acq_rel", "atom.add.acquire"),
    ("cuda", "acquire"): ("ld.acquire", "ld.relaxed"),
    ("triton", "release"): ('"acq_rel"', '"acquire"'),
    ("triton", "acquire"): ('sem="acquire"', 'sem="relaxed"'),
}


@pytest.mark.parametrize(("language", "lost"), MUTATIONS)
def test_a_mutation_without_one_of_them_is_seen(tmp_path, language, lost):
    found = orders(CODE[language](tmp_path, "90", MUTATIONS[language, lost]))
    assert found == {"release": lost != "release", "acquire": lost != "acquire"}
