"""Faults that are put into a copy of the sources are found by their tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from backends import DEVICE

from diglot.backends.registry import has_interpreter

ROOT = Path(__file__).parent.parent


class Fault(NamedTuple):
    """A piece of source that another one takes the place of.

    Attributes:
        file: where it stands.
        right: the piece.
        wrong: the other.
        op: whose kernels the tests run.
        tests: the file of the tests.
        chosen: which of its tests, as for pytest's -k; by default those of the language, without
            those that take both softmax and its logarithm.
    """

    file: str
    right: str
    wrong: str
    op: str
    tests: str
    chosen: str | None = None


# "merge" combines a row's parts by maxima and sums that do not fit each other. Others leave out the
# last element, take in one before the first, or count in 32 bits. "none" changes nothing: it shows
# that the tests find the faults, and not the way in which they are planted.
FAULTS = {
    ("cuda", "none"): Fault(
        "csrc/include/diglot/reduce/states.cuh", "\n", "\n", "softmax", "test_rows"
    ),
    ("triton", "none"): Fault(
        "triton_ops/lib/reduce/states.py", "\n", "\n", "softmax", "test_rows"
    ),
    ("cuda", "merge"): Fault(
        "csrc/include/diglot/reduce/states.cuh",
        "a.sum * exp_nonpositive_for<T>(a.max - shift) + b.sum",
        "a.sum + b.sum",
        "softmax",
        "test_rows",
    ),
    ("triton", "merge"): Fault(
        "triton_ops/lib/reduce/states.py",
        "scaled = states[1] * exp_nonpositive_for(states[0] - shift_of(max), T)",
        "scaled = states[1]",
        "softmax",
        "test_rows",
    ),
    ("cuda", "tail"): Fault(
        "csrc/include/diglot/rows/tile_loads.cuh",
        "return element < range.count - first",
        "return element < range.count - 1 - first",
        "softmax",
        "test_rows",
    ),
    ("cuda", "head"): Fault(
        "csrc/include/diglot/rows/tile_loads.cuh",
        "element >= range.skipped",
        "element >= 0",
        "softmax",
        "test_peeled_rows",
        "softmax and not log_softmax",
    ),
    ("triton", "tail"): Fault(
        "triton_ops/lib/rows/tile.py",
        "mask = (index < n)[None, :] & row_mask[:, None]",
        "mask = (index < n - 1)[None, :] & row_mask[:, None]",
        "softmax",
        "test_rows",
    ),
    ("cuda", "offset"): Fault(
        "csrc/include/diglot/philox.cuh",
        "= offset + ",
        "= static_cast<uint32_t>(offset) + ",
        "dropout",
        "test_dropout",
    ),
    ("cuda", "depth"): Fault(
        "csrc/include/diglot/products/cuda_cores.cuh",
        "depth_ + i * depth_step_ < depth;",
        "depth_ + i * depth_step_ < depth - 1;",
        "matmul",
        "test_matmul",
        "layouts and cuda and float32",
    ),
    ("triton", "depth"): Fault(
        "triton_ops/lib/products/pointers.py",
        "at < k, a_row",
        "at < k - 1, a_row",
        "matmul",
        "test_matmul",
        "layouts and triton and float32",
    ),
    ("cuda", "scaled step"): Fault(
        "csrc/include/diglot/products/scaled.cuh",
        "adds || k > 0",
        "true",
        "scaled_mm",
        "test_scaled_mm",
        "integers and cuda and blocks",
    ),
    ("triton", "scaled step"): Fault(
        "triton_ops/lib/products/scaled.py",
        "block = start // SCALED_DEPTH",
        "block = 0",
        "scaled_mm",
        "test_scaled_mm",
        "integers and triton and blocks",
    ),
    ("triton", "end of a group"): Fault(
        "triton_ops/lib/products/ragged.py",
        "matrix.load([RUN, end, RUN - (end - begin)",
        "matrix.load([RUN, end + 1, RUN - 1 - (end - begin)",
        "grouped_mm",
        "test_grouped_mm",
        "descriptors_in_triton",
    ),
    ("triton", "steps of a group"): Fault(
        "triton_ops/lib/products/grouped_descriptors.py",
        "tl.cdiv(depths, BK), 1)",
        "depths // BK, 1)",
        "grouped_mm",
        "test_grouped_mm",
        "descriptors_in_triton",
    ),
    ("triton", "sums of rows in parts"): Fault(
        "triton_ops/lib/products/row_sums.py",
        "tile_row * parts + part, sums), one_of",
        "part, sums), one_of",
        "linear",
        "test_linear_parameters",
        "one_launch and triton",
    ),
    ("triton", "offset"): Fault(
        "triton_ops/lib/philox.py",
        "= offset + ",
        "= offset.to(tl.uint32) + ",
        "dropout",
        "test_dropout",
    ),
}


def ring_fault(file: str, right: str, wrong: str) -> Fault:
    """In the pipeline's native engine."""
    tests = "gelu or on_the_way or before_others"
    return Fault(f"csrc/pipeline/{file}", right, wrong, "gelu", "test_pipeline_native", tests)


DRAINED = "drain(chunk - depth_ + 1);"

# In the ring every wait is left out in turn: what it keeps apart is said.
RING_FAULTS = {
    "the last chunk is dropped": ring_fault(
        "ring.h", "(rows + chunk_rows - 1) / chunk_rows", "rows / chunk_rows"
    ),
    "its last row is dropped": ring_fault(
        "ring.h", "std::min(begin + chunk_rows, rows)", "std::min(begin + chunk_rows, rows - 1)"
    ),
    "a slot and the chunk before": ring_fault(
        "ring.cpp",
        "if (chunk >= plan_.slots) loading.wait(this->passage(chunk - plan_.slots).stored);",
        "",
    ),
    "compute and its copy to the device": ring_fault(
        "ring.cpp", "computing.wait(passage.loaded);", ""
    ),
    "compute and the copy of its results": ring_fault(
        "ring.cpp", "storing.wait(passage.computed);", ""
    ),
    "a pinned input and the chunk before": ring_fault(
        "ring.cpp", "passage(chunk).loaded.synchronize();", ""
    ),
    "a pinned output and its copy": ring_fault("ring.cpp", "runtime_.wait(passage.stored);", ""),
    "a pinned output and the chunk before": ring_fault("ring.cpp", DRAINED, ""),
    "a pinned output and one chunk more": ring_fault(
        "ring.cpp", DRAINED, DRAINED.replace(" + 1", "")
    ),
    "a failed chunk and those after": ring_fault("ring.cpp", "if (drained_ < failed) ", ""),
    "none": ring_fault("ring.cpp", "\n", "\n"),
}


def copy_of_sources(folder: Path) -> dict[str, Path]:
    """Imported and compiled files, by the names of their folders in the repository."""
    left_out = shutil.ignore_patterns("*.so", "__pycache__")
    places = {
        "configs": folder / "python/diglot/configs",
        "csrc": folder / "csrc",
        "python/diglot": folder / "python/diglot",
        "triton_ops": folder / "python/diglot/triton_ops",
        "tests": folder / "tests",
    }
    for name, place in places.items():
        shutil.copytree(ROOT / name, place, ignore=left_out, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return places


def failure(folder: Path, fault: Fault, language: str) -> str:
    """What the first test says that fails of those of the op, with the sources of a folder."""
    path = os.pathsep.join([str(folder / "python"), str(ROOT)])  # the latter for bench
    environment = {**os.environ, "PYTHONPATH": path}
    if language == "cuda":
        kernels = folder / "csrc/ops"
        for source in (*kernels.glob("*.cu"), *kernels.glob("distributed/*.cu")):
            if source.stem != fault.op:
                source.unlink()
        library = folder / "_interpreter.abi3.so"
        build = (
            "import sys; from pathlib import Path; import build; "
            f"build.build_extension(Path({str(library)!r}), Path({str(folder / 'build')!r}))"
        )
        subprocess.run([sys.executable, "-c", build], cwd=folder / "csrc/interpreter", check=True)
        environment["DIGLOT_TEST_INTERPRETER"] = str(library)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    chosen = fault.chosen or f"{language} and not log_softmax and not properties and not modules"
    done = subprocess.run(
        [*command, "-k", chosen, f"tests/{fault.tests}.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode in (0, 1), said
    return said if done.returncode == 1 else ""


def assert_found(
    folder: Path, places: dict[str, Path], fault: Fault, language: str, *, is_none: bool
) -> None:
    """Asserts that tests fail with a fault in a copy of the sources, and pass with none."""
    name = next(name for name in places if fault.file.startswith(f"{name}/"))
    path = places[name] / Path(fault.file).relative_to(name)
    text = path.read_text()
    assert is_none or text.count(fault.right) == 1
    path.write_text(text.replace(fault.right, fault.wrong))
    try:
        said = failure(folder, fault, language)
    finally:
        path.write_text(text)
    assert bool(said) != is_none, said


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE == "cuda", reason="kernels are compiled here, not interpreted"),
    pytest.mark.skipif(not has_interpreter(), reason="it builds the interpreter of CUDA kernels"),
]


@pytest.mark.parametrize(("language", "fault"), FAULTS)
def test_a_fault_is_found(tmp_path, language, fault):
    places = copy_of_sources(tmp_path)
    assert_found(tmp_path, places, FAULTS[language, fault], language, is_none=fault == "none")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A folder with a copy of the sources, in which only what changes is compiled again."""
    folder = tmp_path_factory.mktemp("ring")
    return folder, copy_of_sources(folder)


@pytest.mark.parametrize("fault", RING_FAULTS)
def test_a_fault_of_the_ring_is_found(copy, fault):
    assert_found(*copy, RING_FAULTS[fault], "cuda", is_none=fault == "none")
