"""examples/lessons: each program shows what it says; and the snippet of docs/lessons.md."""

from __future__ import annotations

import functools
import json
import re
import runpy
import sys

import pytest
import torch
from apart import run_apart
from backends import DEVICE, needs_cuda
from lessons import FOLDER, PAGE, load

from diglot.tools import measure

WITHOUT_GPU = pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")


# --- fusion --------------------------------------------------------------------------------------


def test_fusion(monkeypatch):
    fusion = load("fusion", monkeypatch)
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


def test_fusion_tells(monkeypatch):
    tables = list(load("fusion", monkeypatch).main())
    assert len(tables) == 2
    for table in tables:
        by_name = {row["written as"]: row for row in table.rows}
        assert (by_name["formula"]["kernels"], by_name["formula"]["times the bytes"]) == (9, 11)
        assert (by_name["diglot"]["µs"] is None) == (DEVICE == "cpu")


# --- tables --------------------------------------------------------------------------------------


def test_a_table_as_text_and_as_json(monkeypatch, tmp_path):
    lesson = load("lesson", monkeypatch)
    rows = [{"kind": "plain", "n": 7, "µs": None}, {"kind": "wide", "n": 1234.5, "µs": None}]
    table = lesson.Table("Two rows", rows)
    first, *lines = lesson.text(table).splitlines()
    assert first == f"Two rows ({lesson.device_name()})"
    assert lines == ["kind       n", "plain      7", "wide   1,234"]  # no column without figures
    path = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["two_rows.py", "--save", str(path)])

    def main():
        yield table
        raise ValueError("the second table fails")

    with pytest.raises(ValueError, match="second"):
        lesson.show(main, lesson.options())
    saved = json.loads(path.read_text())  # with the table that was ready
    assert saved["lesson"] == "two_rows" and saved["device"] == lesson.device_name()
    assert saved["tables"] == [{"title": "Two rows", "rows": rows}]
    monkeypatch.setattr(sys, "argv", ["two_rows.py", "--save", str(tmp_path / "no/figures.json")])
    with pytest.raises(SystemExit, match="2"):  # before the lesson runs
        lesson.show(lambda: pytest.fail("the lesson has run"), lesson.options())


# --- counts --------------------------------------------------------------------------------------


def test_addresses(monkeypatch):
    access = load("memory_access", monkeypatch)
    assert [access.sectors(stride) for stride in access.STRIDES] == [4, 8, 16, 32, 32, 32]
    banks = load("bank_conflicts", monkeypatch)
    columns = [banks.COLUMN[way] for way in ("rows of 32", "rows of 33", "swizzled")]
    assert [banks.steps(map(words, range(32))) for words in columns] == [32, 1, 1]
    assert banks.steps([0, 0, 32, 1]) == 2  # the same word is no conflict
    assert banks.steps(34 * lane for lane in range(32)) == 2
    line = load("same_line", monkeypatch)
    monkeypatch.setattr(line, "BLOCKS", 64)
    assert [line.lines(stride) for stride in line.STRIDES.values()] == [64, 2, 1]


def test_carve_outs_are_rounded_up(monkeypatch):
    carveout = load("carveout", monkeypatch)
    assert [carveout.shared_kib(percent) for percent in (0, 3, 25, 50, 100)] == [0, 8, 64, 132, 228]


def test_achieved_occupancy(monkeypatch):
    occupancy = load("occupancy", monkeypatch)
    # Two SMs of 64 slots: 32 warps all the time are a quarter, and half of the time an eighth.
    whole = torch.tensor([[sm, 100, 300] for sm in (0, 1) for _ in range(16)])
    assert occupancy.achieved(whole, 2 * 64) == 0.25
    halves = torch.tensor([[sm, at, at + 100] for sm in (0, 1) for at in (100, 200)] * 8)
    assert occupancy.achieved(halves, 2 * 64) == 0.125
    # Where one ends as the next one begins, they share no time.
    assert occupancy.most_at_once(whole) == 16 and occupancy.most_at_once(halves) == 8
    assert occupancy.most_at_once(torch.tensor([[0, 1, 9], [1, 2, 5], [1, 4, 6]])) == 2


def test_swizzled_layouts(monkeypatch):
    swizzle = load("swizzle", monkeypatch)
    plain = "swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"
    half = "swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [1, 0]}>"
    assert swizzle.phases(plain) == (1, 1) and swizzle.steps(1, 1) == 8
    assert swizzle.phases(half) == (2, 4) and swizzle.steps(2, 4) == 2
    assert swizzle.phases("nvmma_shared<{swizzlingByteWidth = 128, transposed = false}>") == (1, 8)
    assert all(swizzle.steps(1, 8, piece) == 1 for piece in range(8))


# --- Triton's kernels ----------------------------------------------------------------------------


def test_triton_accesses(monkeypatch):
    access = load("memory_access", monkeypatch)
    x = torch.randn(64, 96, device=DEVICE)
    out = torch.empty_like(x)
    for stride in (1, 8):
        access.copy_strided("triton", stride, x, out)
        torch.testing.assert_close(out, x.reshape(-1, stride).T.reshape(x.shape), rtol=0, atol=0)
    transposed = torch.empty(96, 64, device=DEVICE)
    load("bank_conflicts", monkeypatch).transpose("triton", x, transposed)
    torch.testing.assert_close(transposed, x.T, rtol=0, atol=0)


def test_triton_launches(monkeypatch):
    line = load("same_line", monkeypatch)
    monkeypatch.setattr(line, "BLOCKS", 3)
    monkeypatch.setattr(line, "ROUNDS", 2)
    for is_atomic in (False, True):
        for stride in line.STRIDES.values():
            line.check("triton", is_atomic, stride)
    meta = load("grid_of_meta", monkeypatch)
    x, count = torch.randn(1000, device=DEVICE), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    out = torch.empty_like(x)
    for block, programs in ((256, 4), (1024, 1)):
        meta.scale("triton", (block, 4), x, out.zero_(), count)
        assert count.item() == programs
        torch.testing.assert_close(out, 2 * x, rtol=0, atol=0)


def test_triton_on_three_axes(monkeypatch):
    axes = load("three_axes", monkeypatch)
    source, out = torch.randn(34, 6, 5, device=DEVICE), torch.empty(5, 6, 34, device=DEVICE)
    assert axes.grid((5, 6, 34)) == (3, 2, 2)
    places = torch.full((2, 2, 3), -1, dtype=torch.int32, device=DEVICE)
    axes.reverse_axes("triton", source, out, places)
    torch.testing.assert_close(out, source.permute(2, 1, 0), rtol=0, atol=0)
    assert places.tolist() == [[[0] * 3, [1] * 3]] * 2


def test_triton_rows(monkeypatch):
    persistent = load("persistent_softmax", monkeypatch)
    x = torch.randn(7, 100, device=DEVICE)
    out = torch.empty_like(x)
    for programs in (7, 3):
        persistent.softmax("triton", programs, x, out.zero_())
        torch.testing.assert_close(out, torch.softmax(x, 1), rtol=1e-5, atol=1e-6)
    past = load("past_l1", monkeypatch)
    x = torch.rand(2, past.WINDOW, device=DEVICE)
    for modifier in past.CHANGES.values():
        total = past.sums("triton", modifier, 3, x)
        torch.testing.assert_close(total.sum(1), 3 * x.sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(128, 256, 64), (100, 300, 72), (264, 520, 8)], ids=str)
def test_a_short_product(monkeypatch, sizes):
    short = load("short_product", monkeypatch)
    monkeypatch.setattr(short, "TILE", (64, 64, 32))
    m, n, k = sizes
    a, b = (torch.randint(-3, 4, s, device=DEVICE).half() for s in ((m, k), (k, n)))
    out = torch.full((m, n), torch.nan, device=DEVICE, dtype=a.dtype)
    short.product(a, b, out)
    assert torch.equal(out, (a.double() @ b.double()).half())
    assert short.lines() < short.LIMIT == 25


def test_a_product_that_tunes(monkeypatch):
    """The launch of each configuration, by an autotuner that takes the first one."""
    study = load("profile_study", monkeypatch)
    a, b = torch.randint(-3, 4, (2, 96, 96), device=DEVICE).half()
    for config in study.CONFIGS:

        class Tuned:
            def __init__(self, kernel, config=config):
                self.kernel, self.meta = kernel, config.kwargs

            def __getitem__(self, grid):
                return functools.partial(self.kernel[grid(self.meta)], **self.meta)

        monkeypatch.setattr(study.triton, "autotune", lambda configs, key, made=Tuned: made)
        result = study.tuned_by_triton()(a, b)
        assert torch.equal(result, (a.double() @ b.double()).half())


def test_two_halves_of_a_product(monkeypatch):
    halves = load("two_halves", monkeypatch)
    a, b = (torch.randint(-4, 5, (136, 136), device=DEVICE).bfloat16() for _ in range(2))
    expected = (a.double() @ b.double()).bfloat16()
    for parts in halves.PARTS:
        c = torch.full_like(a, torch.nan)
        assert halves.try_case(halves.call_of(parts, 2, a, b, c), c, expected) is None

    class Refused:
        def run(self):
            raise halves.OutOfResources(262144, 232448, "shared memory")

    said = halves.try_case(Refused(), c, expected)
    assert said == "OutOfResources: shared memory, 262144 of 232448"


def test_types_of_dot(monkeypatch):
    types = load("dot_types", monkeypatch)
    a, b = torch.randn(2, 64, 64, device=DEVICE)
    errors = {}
    for case in types.CASES:
        call, c = types.call_of(*case, a, b)
        call.run()
        left, right = (matrix.to(c.dtype).double() for matrix in (a, b))
        errors[case] = ((c.double() - left @ right).norm() / (left @ right).norm()).item()
    tf32, restored, ieee = (errors["float32", p] for p in ("tf32", "tf32x3", "ieee"))
    assert ieee < 1e-6 and restored < 1e-5 < 1e-4 < tf32 < 3e-3
    assert errors["float16", ""] < 1e-3 < errors["bfloat16", ""] < 1e-2


@pytest.mark.slow
def test_names_of_kernels(monkeypatch):
    chosen = load("chosen_kernels", monkeypatch)
    x = torch.randn(64, 64, device=DEVICE)
    row = chosen.row_of(lambda: chosen.formula(x))
    assert row["kernels"] == 9 and row["kernel"]
    assert chosen.in_mode(chosen.product, None) is chosen.product


@needs_cuda
def test_a_whole_block(monkeypatch):
    """Each way has right results; without a GPU its operators are counted."""
    chosen = load("chosen_kernels", monkeypatch)
    rows = chosen.block_rows(16, 8, 24)
    modes = list(chosen.MODES) if chosen.ON_GPU else ["PyTorch"]
    assert [row["by"] for row in rows] == [*modes, "diglot, cuda", "diglot, triton"]
    assert all(row["kernels"] for row in rows)


@needs_cuda
def test_precisions_in_both_languages(monkeypatch):
    types = load("dot_types", monkeypatch)
    rows = types.ours(*torch.randn(2, 128, 128, device=DEVICE))
    errors = [float(row["relative error"]) for row in rows]
    assert errors[0] > 1e-4 > 1e-6 > errors[1] and errors[2] > 1e-4 > 1e-6 > errors[3]
    assert [", TF32" in row["plan"] for row in rows] == [True, False] * 2


def test_seeds_of_rows(monkeypatch):
    """A row is dropped out alike wherever it is, and two seeds drop out two rows differently."""
    random = load("random_rows", monkeypatch)
    x, seeds = torch.ones(3, 128, device=DEVICE), torch.tensor([5, 6, 5], device=DEVICE)
    out = torch.empty_like(x)
    random.dropout("triton", x, seeds, out)
    assert torch.equal(out[0], out[2]) and not torch.equal(out[0], out[1])
    assert out.unique().tolist() == [0, pytest.approx(4 / 3)]
    points, short = torch.randn(3, 128, device=DEVICE), torch.empty(3, 3, device=DEVICE)
    random.project("triton", points, seeds, short)
    assert torch.equal(short[:, 0], short[:, 2]) and not torch.equal(short[:, 0], short[:, 1])


def test_triton_prints(monkeypatch):
    printing = load("printing", monkeypatch)
    lines = printing.printed(lambda: printing.look("triton"))
    wrong = [line for line in lines if "-5" in line or "nan" in line]
    assert wrong and all("(1, 0, 0)" in line for line in lines)  # of three programs, one looks


@needs_cuda
@pytest.mark.slow
def test_a_lesson_says_what_is_wrong(monkeypatch):
    lesson = load("lesson", monkeypatch)
    x = torch.zeros(4, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"^gelu_of: no kernel was compiled for this block"):
        lesson.call("block_size", "gelu_of", 5, 32, 4, x, x)


# --- compilation ---------------------------------------------------------------------------------

# In a process of its own, because here kernels are interpreted.
COMPILED = """
import dataclasses, json, sys
import autotune, bank_conflicts, block_size, occupancy, past_l1, pdl, persistent_softmax, ptx
import spilling, swizzle
from pathlib import Path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton
types = {"source": "*fp32", "out": "*fp32", "rows": "i32", "columns": "i32", "TILE": "constexpr"}
transpose = triton.compile(
    ASTSource(bank_conflicts.transpose_kernel, types, {"TILE": bank_conflicts.TILE}),
    target=GPUTarget("cuda", 90, 32),
)
types = {"notes": "*i64", "out": "*fp32", "rounds": "i32"}
types |= dict.fromkeys(("NOTES", "WARPS", "BLOCK"), "constexpr")
busy = triton.compile(
    ASTSource(occupancy.busy_kernel, types, {"NOTES": True, "WARPS": 4, "BLOCK": 4096}),
    target=GPUTarget("cuda", 90, 32),
)
as_dicts = lambda kernels: [dataclasses.asdict(kernel) for kernel in kernels]
out = Path(sys.argv[1])
ptx.check_files(out, False)
print(json.dumps({
    "add": ptx.make(str(out)),
    "transpose": [transpose.metadata.shared, transpose.asm["ttgir"]],
    "spilling": as_dicts(spilling.compile_with([None, 32])),
    "autotune": as_dicts(autotune.compile_configs()),
    "block_size": as_dicts(block_size.compile_with([(64, 4), (1024, 4)])),
    "occupancy": busy.asm["ptx"],
    "past_l1": [past_l1.triton_instructions(), past_l1.triton_code(".cg", "ttgir")],
    "pdl": pdl.triton_instructions(),
    "softmax": persistent_softmax.resources(2000),
    "swizzle": swizzle.layouts(),
}))
"""


@pytest.mark.ahead_of_time
def test_what_is_compiled(tmp_path):
    variables = {"PYTHONPATH": str(FOLDER), "LESSON_COMPILES": "1"}
    answer = run_apart(COMPILED, str(tmp_path), environment=variables)
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

    # A warp reads the clock before its loop, and after it has stored its result.
    order = r"%globaltimer.*\bbra\b.*st\.global\.b32.*%globaltimer.*st\.global\.b64"
    assert re.search(order, found["occupancy"], re.DOTALL)
    assert found["occupancy"].count("%globaltimer") == 2

    # Loads past L1 say so, and stay in the loop that reads again and again.
    loads, ttgir = found["past_l1"]
    assert loads == {".ca": ["ld.global.ca.b32"], ".cg": ["ld.global.cg.b32"]}
    assert ttgir.index("scf.for") < ttgir.index("tt.load") < ttgir.index("scf.yield")
    # Three of four stages are in shared memory: rows of 2000 numbers, which a block of 2048 holds.
    assert found["softmax"][1] >= 3 * 2048 * 4
    assert found["pdl"] == ["griddepcontrol.launch_dependents", "griddepcontrol.wait"]
    assert "swizzled_shared" in found["swizzle"]["sm_80"][0]
    assert "swizzlingByteWidth = 128" in found["swizzle"]["sm_90"][0]


def test_stages_are_not_overwritten(tmp_path, monkeypatch, capsys):
    ptx = load("ptx", monkeypatch)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    ptx.check_files(tmp_path / "new", force=False)
    ptx.files(tmp_path / "new", is_aligned=True)["ptx"].write_text("mine")
    ptx.check_files(tmp_path / "new", force=True)
    (tmp_path / "file").touch()
    for folder, message in (("new", "exists and is not overwritten"), ("file", "cannot be")):
        with pytest.raises(SystemExit, match="2"):
            next(ptx.main(out=tmp_path / folder))
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


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
