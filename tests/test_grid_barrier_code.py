"""The grid barrier, compiled: the instructions that order memory are there, in both languages.

Running cannot tell a barrier without its release or its acquire from a whole one: what they order
is nearly always in order by itself. So the compiled code is read, and so is that of mutations which
lack the one or the other.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from apart import FILE, run_apart

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
#include "diglot/sync/grid_barrier.cuh"
__global__ void kernel(uint32_t* word, const float* in, float* data, float* out) {
  diglot::GridBarrier barrier(word);
  data[blockIdx.x] = in[blockIdx.x];
  barrier.sync();
  out[blockIdx.x] = data[gridDim.x - 1 - blockIdx.x];
}
"""


def write_replaced(source: Path, replace: tuple[str, str], to: Path) -> None:
    text = source.read_text()
    assert replace[0] in text
    to.write_text(text.replace(*replace))


def compile_cuda(folder: Path, architecture: str, replace: tuple[str, str]) -> None:
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    headers = Path(diglot.get_include()) / "diglot"
    shutil.copytree(headers, folder / "diglot")
    write_replaced(headers / "atomics.cuh", replace, folder / "diglot/atomics.cuh")
    (folder / "kernel.cu").write_text(KERNEL)
    command = [nvcc, "-std=c++17", "-O3", "-cubin", f"-arch=sm_{architecture}", f"-I{folder}"]
    subprocess.run([*command, folder / "kernel.cu", "-o", folder / "cubin"], check=True)


# One process imports what takes longest, and others fork, in which a name is that of one library.
COMPILE = """
import importlib.util, os, sys
import diglot.triton_ops.lib.types
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def kernel(word, input, data, out):
    tl.store(data + tl.program_id(0), tl.load(input + tl.program_id(0)))
    grid_barrier.sync(word)
    other = tl.load(data + tl.num_programs(0) - 1 - tl.program_id(0))
    tl.store(out + tl.program_id(0), other)

types = {"word": "*i32", "input": "*fp32", "data": "*fp32", "out": "*fp32"}
for folder, architecture in zip(sys.argv[1::2], sys.argv[2::2]):
    if os.fork() == 0:
        specification = importlib.util.spec_from_file_location("library", f"{folder}/library.py")
        grid_barrier = importlib.util.module_from_spec(specification)
        sys.modules["library"] = grid_barrier
        specification.loader.exec_module(grid_barrier)
        target = GPUTarget("cuda", int(architecture), 32)
        compiled = triton.compile(ASTSource(kernel, types), target=target)
        open(f"{folder}/cubin", "wb").write(compiled.asm["cubin"])
        os._exit(0)  # as one that forked, with nothing to tidy up
    assert os.wait()[1] == 0
"""

# The barrier as it is, and without the one or the other.
AS_IT_IS = ("acq", "acq")
MUTATIONS = {
    ("cuda", "release"): ("atom.add.acq_rel", "atom.add.acquire"),
    ("cuda", "acquire"): ("ld.acquire", "ld.relaxed"),
    ("triton", "release"): ('"acq_rel"', '"acquire"'),
    ("triton", "acquire"): ('sem="acquire"', 'sem="relaxed"'),
}


@pytest.fixture(scope="module")
def of_triton(tmp_path_factory):
    """By architecture and replacement, a folder with the cubin of Triton's kernel."""
    wanted = [(architecture, AS_IT_IS) for architecture in ARCHITECTURES]
    wanted += [("90", MUTATIONS["triton", lost]) for lost in ("release", "acquire")]
    folders = [tmp_path_factory.mktemp("triton") for _ in wanted]
    for folder, (_, replace) in zip(folders, wanted, strict=True):
        write_replaced(ROOT / "triton_ops/lib/sync/grid_barrier.py", replace, folder / "library.py")
    arguments = [a for folder, (of, _) in zip(folders, wanted, strict=True) for a in (folder, of)]
    script = tmp_path_factory.mktemp("script") / "compile.py"
    script.write_text(COMPILE)
    run_apart(FILE, str(script), *map(str, arguments)).check_returncode()
    return dict(zip(wanted, folders, strict=True))


@pytest.fixture
def sass(request, tmp_path):
    """A function: the code in a language for an architecture, with a piece of it replaced."""

    def code(language: str, architecture: str, replace: tuple[str, str]) -> str:
        if language == "triton":
            folder = request.getfixturevalue("of_triton")[architecture, replace]
        else:
            folder = tmp_path
            compile_cuda(folder, architecture, replace)
        return disassemble(folder / "cubin")

    return code


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_it_releases_and_acquires(sass, language, architecture):
    found = orders(sass(language, architecture, AS_IT_IS))
    assert found == {"release": True, "acquire": True}


@pytest.mark.parametrize(("language", "lost"), MUTATIONS)
def test_a_mutation_without_one_of_them_is_seen(sass, language, lost):
    found = orders(sass(language, "90", MUTATIONS[language, lost]))
    assert found == {"release": lost != "release", "acquire": lost != "acquire"}
