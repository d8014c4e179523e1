"""The ladder of examples/tensor_cores: every step is right, of what it claims, and no less."""

from __future__ import annotations

import ctypes
import importlib
import json
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from backends import DEVICE, INTERPRETS_CUDA
from planted.library import ROOT, build_interpreted, find_nvcc, runner

from diglot.bench import ladder, reports, result_files
from diglot.tools import measure
from diglot.tools.gpus import find_gpu
from diglot.tools.machine_code import dump

STEPS = ROOT / "examples/tensor_cores/steps"
KERNELS = ROOT / "tests/planted/ladder.cu"
FILES = {int(path.name[0]): path for path in sorted(STEPS.glob("[0-9]_*.cu"))}
# One element of each tile; edges of a tile; of a tile and a ring; odd rows of tiles, several for
# each of the interpreter's eight SMs.
SIZES = ((8, 8, 8), (136, 264, 72), (64, 72, 616), (520, 776, 136))
LARGE = SIZES[-1]


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Small integers, A and then B, and their product: exact, in any order."""
    a, b = torch.randint(-4, 5, (m, k)).bfloat16(), torch.randint(-4, 5, (k, n)).bfloat16()
    given = torch.cat([a.flatten(), b.flatten()]).view(torch.float32)
    return given, (a.double() @ b.double()).bfloat16()


def fault(run, name, sizes, **options) -> str:
    """The fault of a kernel: the interpreter's message, "another product", or ""."""
    m, n, k = sizes
    given, expected = operands(m, n, k)
    message, out = run(
        f"{name} {m}x{n}x{k}", values=given, blocks=m * n // 2, seconds=60, **options
    )
    right = torch.equal(out.view(torch.bfloat16).view(m, n), expected)
    return message or ("" if right else "another product")


class Work(ctypes.Structure):
    """As in csrc/interpreter/work.h."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("loaded", "stored", "multiply_adds"))

    def figures(self) -> list[int]:
        return [getattr(self, name) for name, _ in self._fields_]


@pytest.fixture(scope="module")
def run():
    return runner(build_interpreted(KERNELS))


class TestCuda:
    pytestmark = INTERPRETS_CUDA
    SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 30)))

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("step", FILES)
    def test_a_step_is_right(self, run, step, seed):
        for sizes in SIZES:
            if step > 5 or sizes != LARGE or seed > 0:  # only these compute several tiles
                assert fault(run, step, sizes, seed=seed) == ""


def test_a_step_asks_for_what_the_model_says():
    """Whole tiles: TMA loads the bytes that the floors count, and every product is needed."""
    if DEVICE != "cpu":
        pytest.skip("the interpreter counts")
    path, (m, n, k) = build_interpreted(KERNELS), (512, 512, 128)
    run, library = runner(path), ctypes.CDLL(str(path))
    library.work.restype = Work
    for step in ladder.STEPS:
        if step.language == "cuda" and step.number > 2:
            before = library.work().figures()
            assert fault(run, step.number, (m, n, k), races=False) == ""
            after = library.work().figures()
            stored = 2 * m * n
            loaded = ladder.l2_bytes(step, (m, n, k)) - stored
            asked = [now - then for now, then in zip(after, before, strict=True)]
            assert asked == [loaded, stored if step.name == "epilogue" else 0, m * n * k]


# --- faults --------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A piece of a step or of steps.h, and what takes its place."""

    step: int
    right: str
    wrong: str
    times: int = 1  # that the piece is there


FULL, EMPTY = "full[stage].wait(round % 2);", "empty[stage].wait((round + 1) % 2);"
SPEAKER = "if (threadIdx.x % kWarpgroupThreads == 0) "
FAULTS = {
    "2, reads before the tiles are there": Fault(2, "__syncthreads();  // the tiles are there", ""),
    "2, tiles written while they are read": Fault(2, "__syncthreads();  // all have", "// all"),
    "3, no wait for the tiles": Fault(3, "full.wait(step % 2);", ""),
    "3, phase": Fault(3, "full.wait(step % 2)", "full.wait(0)"),
    "3, tiles loaded while they are read": Fault(3, "__syncthreads();  // all", "// all"),
    "3, no wait for the products": Fault(3, "wgmma_wait<0>();", ""),
    "3, barrier not visible to TMA": Fault(3, "fence_mbarrier_init();", ""),
    "4, no wait for the stage": Fault(4, FULL, ""),
    "4, no wait for its release": Fault(4, EMPTY, ""),
    "4, phase": Fault(4, EMPTY, "empty[stage].wait(1);"),
    "4, released before the products end": Fault(4, "wgmma_wait<0>();", "wgmma_wait<1>();"),
    "4, one consumer releases": Fault(4, "barrier.init(kConsumers);", "barrier.init(1);"),
    "4, bytes": Fault(4, "arrive_expect(kBytes)", "arrive_expect(A::kBytes)"),
    "4, no fence before products": Fault(4, "wgmma_fence();", ""),
    "4, no group": Fault(4, "wgmma_commit();", ""),
    "5, released before the products end": Fault(5, "wgmma_wait<1>();", "wgmma_wait<2>();"),
    "5, the wrong stage is released": Fault(5, "empty[(step - 1) % kStages]", "empty[stage]"),
    "5, registers": Fault(5, "take_registers<232>", "take_registers<240>"),
    "6, the ring begins again": Fault(6, "++turn) {", "turn = depth / kDepth) {", 2),
    "6, the last stage is kept": Fault(
        6, f"{SPEAKER}empty[(turn - 1) % kStages].arrive();\n    const", "const"
    ),
    "6, the previous tile": Fault(
        6, "schedule.tile(index);\n    store", "schedule.tile(index - gridDim.x);\n    store"
    ),
    "7, one block releases": Fault(7, "if (thread < kCluster) ", "if (thread < 1) "),
    "7, one block is waited for": Fault(7, "init(kCluster * kConsumers)", "init(kConsumers)"),
    "7, scope": Fault(7, "wait_for_readers(empty[stage], ", "empty[stage].wait("),
    "7, the same half": Fault(7, "panel = rank * kHalf + i", "panel = i"),
    "7, bytes": Fault(7, "arrive_expect(Tiles::kBytes)", "arrive_expect(Tiles::A::kBytes)"),
    "7, a block ends early": Fault(7, "  cluster_sync();\n}", "}"),
    "7, a block begins early": Fault(7, "  cluster_sync();\n\n", "  __syncthreads();\n\n"),
    "8, no fence before the store": Fault(8, "fence_async_proxy();", ""),
    "8, no barrier before the store": Fault(
        8, "named_barrier_sync(1 + consumer, kWarpgroupThreads);\n    if", "if"
    ),
    "8, written while TMA reads": Fault(
        8, "if (thread == 0) wait_bulk_groups_read<0>();  // the store", "// the store"
    ),
    "8, ends while TMA reads": Fault(8, f"{SPEAKER}wait_bulk_groups_read<0>();", ""),
    "8, the other consumer's memory": Fault(8, "shared.c[consumer]", "shared.c[0]"),
}
MUTATED = (136, 264, 616), LARGE


def mutant(number: int, fault: Fault) -> str:
    """A step and steps.h with a fault, in namespaces of their own."""
    header = (STEPS / "steps.h").read_text().replace("#pragma once", "")
    step = FILES[fault.step].read_text().replace('#include "steps.h"', "")
    text = re.sub(r"\bladder\b", f"ladder{number}", header + step)
    text = re.sub(rf"\bstep{fault.step}\b", f"mutant{number}", text)
    assert text.count(fault.right) == fault.times, fault
    return text.replace(fault.right, fault.wrong)


@pytest.mark.slow
@pytest.mark.parametrize("step", range(2, 9))
def test_faults_are_found(step, tmp_path):
    """Each is revealed by the interpreter, or by a wrong result; the step itself is right."""
    if DEVICE != "cpu":
        pytest.skip("it interprets kernels")
    faults = {name: fault for name, fault in FAULTS.items() if fault.step == step}
    faults = {"none": Fault(step, "// What the steps", "// What")} | faults
    texts = [mutant(number, fault) for number, fault in enumerate(faults.values())]
    entries = [
        f'{{"{number} {m}x{n}x{k}", start<{m}, {n}, {k}, ladder{number}::Product, '
        f"mutant{number}::multiply>}}"
        for number in range(len(texts))
        for m, n, k in MUTATED
    ]
    source = tmp_path / "mutants.cu"
    source.write_text(f'{"".join(texts)}\n#include "{ROOT}/tests/planted/runner.h"\n' + """
namespace planted {
template <int kM, int kN, int kK, typename Product, auto kMultiply>
constexpr Start start_mutant = [](const diglot::Launch&, const float* in, float* out) {
  const auto* const a = reinterpret_cast<const diglot::bfloat16*>(in);
  auto* const c = reinterpret_cast<diglot::bfloat16*>(out);
  kMultiply(Product{a, a + kM * kK, c, kM, kN, kK}, nullptr);
};
const std::vector<Entry> kernels = {""" + ",".join(entries).replace("start<", "start_mutant<")
        + "};\n}\n")  # fmt: skip
    run = runner(build_interpreted(source, tmp_path / "library.so"))
    for number, name in enumerate(faults):
        found = [fault(run, number, sizes, seed=s) for s in range(4) for sizes in MUTATED]
        assert any(found) == (name != "none"), (name, found)


# --- compilation, and messages -------------------------------------------------------------------

TMA, PRODUCTS = "UTMALDG.2D", "HGMMA.64x{}x16.F32.BF16"
CODE = {
    3: [TMA, PRODUCTS.format(128)],
    4: [TMA, PRODUCTS.format(128)],
    5: [TMA, PRODUCTS.format(256), "USETMAXREG"],
    6: [TMA, PRODUCTS.format(256), "USETMAXREG"],
    7: [TMA, "UTMALDG.2D.MULTICAST", PRODUCTS.format(256), "USETMAXREG"],
    8: ["UTMALDG.2D.MULTICAST", PRODUCTS.format(256), "USETMAXREG", "STSM", "UTMASTG.2D"],
}


@pytest.mark.slow
def test_machine_code(tmp_path):
    """Tensor cores from step 3 on; nothing is spilled, and no product waits for another."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    cubin = tmp_path / "ladder.cubin"
    command = [nvcc, "-std=c++17", "-arch=sm_90a", "-cubin", "--expt-relaxed-constexpr"]
    command += [f"-I{ROOT / 'csrc/include'}", str(STEPS / "ladder.cu"), "-o", str(cubin)]
    done = subprocess.run([*command, "-Xptxas=-v"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert spills == [("0", "0")] * len(FILES)
    assert not re.search("C75[0-9][0-9]", done.stderr), done.stderr
    codes = {int(code[len("_ZN5step")]): code
             for code in dump("-sass", str(cubin)).split("Function : ")[1:]}  # fmt: skip
    assert set(codes) == set(FILES)
    for step, code in codes.items():
        assert not re.search(r"\b(LDL|STL)\b", code), step
        assert ("HGMMA" in code) == (step >= 3)
        for name in CODE.get(step, []):
            assert name in code, (step, name)


def test_each_step_is_short_and_says_what_changed():
    steps = [step for step in ladder.STEPS if step.language == "cuda"]
    assert list(FILES) == [step.number for step in steps]
    for step in steps:
        text = FILES[step.number].read_text()
        assert text.startswith(f"// Step {step.number}: ") and "// Prediction: " in text
        assert len(text.splitlines()) <= 150


def test_predictions():
    """By hand: a peak of 989.4 TFLOP/s, 4.8 TB/s, 5120 bytes of L2 a cycle."""
    gpu = find_gpu(ladder.PREDICTED)
    by_name = {step.provider: step for step in ladder.STEPS}
    shape = ladder.SHAPES[0]
    final = ladder.floors(by_name["cuda 8, epilogue"], shape, gpu)
    assert final.operations == pytest.approx(2 * 4096**3 / 989e6, rel=1e-2)
    assert final.dram == pytest.approx(3 * 4096**2 * 2 / 4.8e6, rel=1e-2)
    assert final.limit == "operations" and final.least == final.operations
    ring, wide = (by_name[name] for name in ("cuda 4, ring", "cuda 5, wide tiles"))
    assert ladder.l2_bytes(ring, shape) == 2 * (32 * 32 * 256 * 4096 + 4096**2)
    loaded = [ladder.l2_bytes(step, shape) - 2 * 4096**2 for step in (wide, ring)]
    assert loaded[0] / loaded[1] == 0.75
    assert ladder.floors(ring, shape, gpu).limit == "L2"
    first = ladder.floors(by_name["cuda 1, threads"], shape, gpu)
    assert first.operations == pytest.approx(128 * final.operations)


def test_the_table():
    figures = {"time_us": 200.0, "tflop_per_s": 687.2, "speed_over_torch": 0.98}
    rows = [
        ladder.row_of("cuda 8, epilogue", ladder.SHAPES[0], verified=True, **figures),
        ladder.row_of("cuda 7, clusters", ladder.SHAPES[0], reason="wrong result: 1%"),
    ]
    report = {"gpu": ladder.PREDICTED, "rows": rows, "date": "2026-01-01", "commit": "0" * 12,
              "versions": {}}  # fmt: skip
    text = ladder.markdown([report])
    assert "| 200 | 687 | 0.98 |" in text and "| wrong result: 1% |" in text
    assert text.count(ladder.NOT_MEASURED) == 2 * (len(ladder.STEPS) + 1) - 2


# --- the program ---------------------------------------------------------------------------------


def test_what_is_measured(monkeypatch, tmp_path):
    """On a GPU that is a fake: right results are timed, wrong ones have a reason."""
    if DEVICE != "cpu":
        pytest.skip("a fake")
    monkeypatch.syspath_prepend(str(STEPS.parent))
    program = importlib.import_module("ladder")

    def calls_of(a, b, c):
        def fail():
            raise RuntimeError("no such kernel\nand more")

        right = {"cuda 8, epilogue": lambda: c.copy_(a.double() @ b.double())}
        right["torch"] = lambda: torch.mm(a, b, out=c)
        return {**right, "cuda 1, threads": lambda: c.zero_(), "triton 1, naive": fail}

    def interleaved(calls, **_):
        assert list(calls) == ["cuda 8, epilogue", "torch"]
        return {n: measure.Timing.of([us] * 3) for n, us in zip(calls, (50.0, 60.0), strict=True)}

    monkeypatch.setattr(program, "calls_of", calls_of)
    monkeypatch.setattr(measure, "interleaved", interleaved)
    rows = {row["provider"]: row for row in program.measure((64, 32, 16))}
    final = rows["cuda 8, epilogue"]
    assert final["verified"] and final["speed_over_torch"] == 1.2
    assert final["tflop_per_s"] == pytest.approx(2 * 64 * 32 * 16 / 50e6)
    wrong, failed = rows["cuda 1, threads"], rows["triton 1, naive"]
    assert wrong["reason"].startswith("wrong result: ") and "time_us" not in wrong
    assert failed["reason"] == "RuntimeError: no such kernel" and not failed["verified"]
    path = tmp_path / "ladder.json"
    reports.save(reports.make_report("ladder", list(rows.values())), path)
    with pytest.raises(ValueError, match="another kind"):  # tables of ops read past it
        result_files.read_file(path)


@pytest.mark.gpu if DEVICE == "cuda" else pytest.mark.slow
def test_the_program_runs(tmp_path):
    command = [sys.executable, str(STEPS.parent / "ladder.py"), "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if DEVICE == "cpu":
        assert done.stdout.count("exact") == len(ladder.STEPS) + 1 and "not" not in done.stdout
    else:
        rows = json.loads((tmp_path / "ladder.json").read_text())["rows"]
        assert all(row["verified"] for row in rows)
