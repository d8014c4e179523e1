"""examples/lessons: each program shows what it says; and the snippet of docs/lessons.md."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from backends import DEVICE, needs_cuda

from diglot.tools import measure

FOLDER = Path(__file__).parents[1] / "examples/lessons"
PAGE = Path(__file__).parents[1] / "docs/lessons.md"
WITHOUT_GPU = pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")


def load(path, monkeypatch):
    """A program as a module, with its folder on the path, as Python itself would have it."""
    path = FOLDER / path
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"lesson_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_page_lists_them_all():
    listed = re.findall(r"^\| `(\S+\.py)` \|", PAGE.read_text(), re.MULTILINE)
    programs = {p for p in FOLDER.rglob("*.py") if "def main()" in p.read_text()}
    assert {FOLDER / name for name in listed} == programs


# --- timing --------------------------------------------------------------------------------------


@WITHOUT_GPU
def test_timing_without_a_gpu(monkeypatch):
    with pytest.raises(SystemExit, match=r"^there is no GPU, and only a GPU works behind"):
        load("timing.py", monkeypatch).main()


@pytest.mark.gpu
@pytest.mark.alone
def test_timing_without_waiting_is_wrong(monkeypatch):
    timing = load("timing.py", monkeypatch)
    a, b = torch.randn(2, timing.SIZE, timing.SIZE, device="cuda", dtype=torch.bfloat16)
    times = timing.times_ms(lambda: a @ b)
    right = times["events on the GPU"]
    assert times["without waiting"] < right / 5
    assert times["waiting before and after"] == pytest.approx(right, rel=0.25)
    assert times["triton.testing.do_bench"] == pytest.approx(right, rel=0.25)


# --- fusion --------------------------------------------------------------------------------------


def test_fusion(monkeypatch):
    fusion = load("fusion.py", monkeypatch)
    x = torch.randn(1000, device=DEVICE)
    results = {name: function(x) for name, function in fusion.FUNCTIONS.items()}
    for result in results.values():
        torch.testing.assert_close(result, results["torch"])
    kernels = {name: fusion.kernels_of(f, x) for name, f in fusion.FUNCTIONS.items()}
    assert kernels == {"formula": 9, "torch": 1, "diglot": 1}
    # Four operators of an array and a number, and a tanh, move two arrays each; four of two arrays
    # move three.
    moved = {name: fusion.bytes_of(f, x) / x.nbytes for name, f in fusion.FUNCTIONS.items()}
    assert moved == {"formula": 22, "torch": 2, "diglot": 2}


def test_fusion_tells(monkeypatch, capsys):
    load("fusion.py", monkeypatch).main()
    lines = capsys.readouterr().out.splitlines()
    formula = [line for line in lines if line.startswith("  formula")]
    assert len(formula) == 2 and all("9 kernels, 11.0 × bytes" in line for line in formula)
    assert ("µs" in formula[0]) == (DEVICE == "cuda")


# --- memory access -------------------------------------------------------------------------------


def test_addresses(monkeypatch):
    access = load("memory_access/memory_access.py", monkeypatch)
    assert [access.sectors_of_stride(s) for s in access.STRIDES] == [4, 8, 16, 32, 32, 32]
    assert access.sectors([0, 31, 32]) == 2
    assert [access.conflicts_of_pitch(p) for p in (32, 33, 34, 48)] == [32, 1, 2, 16]
    assert access.conflicts([0, 0, 32, 1]) == 2  # the same word is no conflict


def test_triton_accesses(monkeypatch):
    access = load("memory_access/memory_access.py", monkeypatch)
    x = torch.randn(64, 96, device=DEVICE)
    for stride in (1, 8):
        copied = access.copies(stride)["triton"](x)
        torch.testing.assert_close(copied, access.expected_copy(x, stride), rtol=0, atol=0)
    import access_triton

    torch.testing.assert_close(access_triton.transpose(x), x.T, rtol=0, atol=0)


needs_compiler = pytest.mark.gpu if DEVICE == "cuda" else pytest.mark.slow
needs_headers = pytest.mark.skipif(
    not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="there are no C headers of Python",
)


@needs_compiler
@needs_cuda
@needs_headers
def test_cuda_accesses(monkeypatch, capsys):
    access = load("memory_access/memory_access.py", monkeypatch)
    cuda = access.load_cuda()
    x = torch.randn(64, 96, device=DEVICE)
    for tile in (cuda.Tile.NONE, cuda.Tile.PLAIN, cuda.Tile.PADDED):
        torch.testing.assert_close(cuda.transpose(x, tile), x.T, rtol=0, atol=0)
    with pytest.raises(ValueError, match="multiples of 32"):
        cuda.transpose(x[:33].contiguous(), cuda.Tile.NONE)
    with pytest.raises(ValueError, match="stride must divide"):
        cuda.copy_strided(x, 5)
    access.main()
    assert "cuda, rows of 33   4 sectors" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.alone
@needs_headers
def test_accesses_cost_what_their_addresses_say(monkeypatch):
    access = load("memory_access/memory_access.py", monkeypatch)
    x = torch.randn(8192, 8192, device="cuda")
    for language in ("cuda", "triton"):
        near, far = (access.copies(stride)[language] for stride in (1, 32))
        times = measure.interleaved({"near": lambda f=near: f(x), "far": lambda f=far: f(x)})
        assert times["far"].median_us > 1.5 * times["near"].median_us
    ways = {name: lambda f=f: f(x) for name, (f, _) in access.transposes().items()}
    times = {name: of.median_us for name, of in measure.interleaved(ways).items()}
    assert times["cuda, rows of 33"] < times["cuda, rows of 32"]
    assert times["cuda, rows of 33"] < times["cuda, straight"]


# --- what is compiled ----------------------------------------------------------------------------

# In a process of its own, because here kernels are interpreted.
COMPILED = """
import dataclasses, json, sys
import access_triton, autotune, block_size, ptx, spilling
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton
types = {"source": "*fp32", "out": "*fp32", "rows": "i32", "columns": "i32", "TILE": "constexpr"}
transpose = triton.compile(
    ASTSource(access_triton.transpose_kernel, types, {"TILE": access_triton.TILE}),
    target=GPUTarget("cuda", 90, 32),
)
sys.argv = ["ptx.py", "--out", sys.argv[1]]
ptx.main()
as_dicts = lambda kernels: [dataclasses.asdict(kernel) for kernel in kernels]
print(json.dumps({
    "add": [ptx.summary(ptx.compile_add(is_aligned).asm["ptx"]) for is_aligned in (False, True)],
    "transpose": [transpose.metadata.shared, transpose.asm["ttgir"]],
    "spilling": as_dicts(spilling.compile_with([None, 32])),
    "autotune": as_dicts(autotune.compile_configs()),
    "block_size": as_dicts(block_size.compile_with([(64, 4), (1024, 4)])),
}))
"""


@pytest.mark.ahead_of_time
def test_what_is_compiled(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_INTERPRET")}
    environment["PYTHONPATH"] = os.pathsep.join([str(FOLDER), str(FOLDER / "memory_access")])
    answer = subprocess.run(
        [sys.executable, "-c", COMPILED, str(tmp_path)],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    found = json.loads(answer.stdout.splitlines()[-1])

    plain, aligned = found["add"]
    assert plain["target"] == aligned["target"] == "sm_90a"
    # Two arrays of eight numbers a thread are read, and one is written: one by one, or by fours.
    assert plain["ld"].startswith("16 ld.global") and plain["st"].startswith("8 st.global")
    assert aligned["ld"].startswith("4 ld.global.v4") and aligned["st"].startswith("2 st.global.v4")
    for name in ("plain", "aligned"):
        stages = {path.suffix: path.read_bytes() for path in (tmp_path / name).iterdir()}
        assert set(stages) == {".ttir", ".ttgir", ".llir", ".ptx", ".cubin"}
        assert stages[".cubin"].startswith(b"\x7fELF") and b".target sm_90a" in stages[".ptx"]

    # A transposed tile goes through shared memory.
    shared_bytes, ttgir = found["transpose"]
    assert shared_bytes >= 64 * 64 * 4 and "ttg.convert_layout" in ttgir

    free, capped = found["spilling"]
    assert free["registers"] > 128 and free["spill_bytes"] == free["stack_bytes"] == 0
    assert capped["registers"] <= 32 and min(capped["spill_bytes"], capped["stack_bytes"]) > 128

    assert [kernel["spill_bytes"] for kernel in found["autotune"]] == [0, 0, 0]
    small, medium = found["block_size"]
    assert (small["load_bytes"], medium["load_bytes"]) == (4, 16)
    assert small["registers"] < medium["registers"] and medium["spill_bytes"] == 0


def test_stages_are_not_overwritten(tmp_path, monkeypatch, capsys):
    ptx = load("ptx.py", monkeypatch)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    ptx.check_files(tmp_path / "new", force=False)
    ptx.files(tmp_path / "new", is_aligned=True)["ptx"].write_text("mine")
    ptx.check_files(tmp_path / "new", force=True)
    (tmp_path / "file").touch()
    for folder, message in (("new", "exists and is not overwritten"), ("file", "cannot be")):
        monkeypatch.setattr(sys, "argv", ["ptx.py", "--out", str(tmp_path / folder)])
        with pytest.raises(SystemExit, match="2"):
            ptx.main()
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


@WITHOUT_GPU
@pytest.mark.parametrize("name", ["ptx.py", "spilling.py", "block_size.py", "autotune.py"])
def test_what_is_interpreted_is_not_compiled(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=r"^TRITON_INTERPRET is set"):
        load(name, monkeypatch).main()


@pytest.mark.gpu
def test_spills_and_block_sizes_cost(monkeypatch):
    spilling = load("spilling.py", monkeypatch)
    free, capped = spilling.times_us([None, 32])
    assert capped > 1.2 * free
    block_size = load("block_size.py", monkeypatch)
    tiny, medium = block_size.times_us([(64, 4), (1024, 4)])
    assert tiny > medium


@pytest.mark.gpu
def test_an_autotuner_times_new_keys_alone(monkeypatch):
    """Once for each length, however often that comes."""
    autotune = load("autotune.py", monkeypatch)
    tuned, timed = autotune.make_tuned(), []
    real = tuned._bench
    monkeypatch.setattr(tuned, "_bench", lambda *a, **k: timed.append(k) or real(*a, **k))
    for n, new in ((4096, 3), (4096, 0), (1 << 20, 3), (4096, 0)):
        timed.clear()
        autotune.first_and_second_call_ms(tuned, n)
        assert len(timed) == new
    assert len(tuned.cache) == 2 and tuned.best_config in autotune.CONFIGS


# --- a breakpoint --------------------------------------------------------------------------------


@WITHOUT_GPU
def test_breakpoint_in_a_kernel(tmp_path, monkeypatch):
    (snippet,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    script = tmp_path / "snippet.py"
    script.write_text(snippet)
    seen = []

    def stop():
        frame = sys._getframe(1)
        line = snippet.splitlines()[frame.f_lineno - 1]
        seen.append((frame.f_code.co_filename, line.split()[0], str(frame.f_locals["values"])))

    monkeypatch.setattr(sys, "breakpointhook", stop)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    after = runpy.run_path(str(script))
    assert after["out"].tolist() == [0, 2, 4, 6, 8]
    first, second = seen  # a program each
    assert first[:2] == (str(script), "breakpoint()")
    assert "2." in first[2] and "4." in second[2]
    with pytest.raises(RuntimeError, match=r"^not timed: kernels are interpreted"):
        measure.check()
