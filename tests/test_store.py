"""Measured plans on disk: which files are found, which are ignored, and which are written."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import backends
import pytest
import torch

import diglot
from diglot.backends import choosing, store
from diglot.backends.choosing import forget_stores, store_of, use_plans
from diglot.backends.plans import Device, plan_runs
from diglot.backends.store import Problem, Store
from diglot.backends.tunables import (
    forget_plans,
    generic_name,
    short_name,
    specs,
    use_tunables,
)
from diglot.bench.stored_plans import GPUS

H200 = Device(90, 132, 228 << 10, True, name="NVIDIA H200")
WIDE = "rows, 16-byte accesses"
FEW = {"cuda": "rows.cuda.few_slots=1", "triton": "rows.triton.alone_elements=0"}
DECIDING = FEW | {"cuda": "rows.cuda.skipped_shapes=1"}  # which every plan of rows asks for
needs_extension = pytest.mark.skipif(
    diglot.backends.registry.load_extension()[0] is None, reason="without the extension"
)
KERNELS = [pytest.param("cuda", marks=needs_extension), "triton"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder; the package's plans are hidden."""
    monkeypatch.setenv("DIGLOT_CONFIGS", str(tmp_path))
    monkeypatch.setattr(store, "shipped_folder", lambda: tmp_path / "shipped")
    forget_stores()
    yield tmp_path
    forget_stores()


def problem(rows: int, n: int, backend: str = "triton", layout: str = WIDE) -> Problem:
    dtypes = ("float32", "float32")
    return Problem("softmax", "softmax_forward", backend, dtypes, layout, (rows, n))


def written(folder: Path, *entries: tuple[Problem, dict[str, float]]) -> Path:
    file = folder / "softmax" / "h200.json"
    with store.updating("softmax", file) as kept:
        for where, times in entries:
            kept.add(where, times, {"gpu": "NVIDIA H200"})
    forget_stores()
    return file


def choice_of(rows: int, n: int, backend: str) -> choosing.Choice:
    with plan_runs(H200) as runs:
        diglot.softmax(torch.empty(rows, n), backend=backend)
    (choice,) = runs[0].plan.choices
    return choice


@pytest.mark.parametrize("backend", KERNELS)
def test_what_was_measured_is_chosen(backend, folder):
    """In both languages: for its own shape, for a near one, and not for others."""
    written(folder, (problem(64, 32768, backend), {"": 10.0, FEW[backend]: 8.0}))
    for rows, n, source in ((64, 32768, "exact"), (17, 20000, "near"), (64, 65540, "model")):
        choice = choice_of(rows, n, backend)
        assert choice.source == source
        assert dict(choice.numbers) == (
            {} if source == "model" else store.plan_numbers(FEW[backend])
        )
    with plan_runs(H200._replace(name="made up")) as runs:
        diglot.softmax(torch.empty(64, 32768), backend=backend)
    assert runs[0].plan.choices[0].source == "model"
    with use_plans("model"):
        assert choice_of(64, 32768, backend).source == "model"


@pytest.mark.parametrize("backend", KERNELS)
def test_chosen_numbers_decide(backend, folder):
    """The plan has them; those of `use_tunables` win, and end with its scope."""
    written(folder, (problem(64, 32768, backend), {"": 10.0, DECIDING[backend]: 8.0}))
    name, _, value = DECIDING[backend].partition("=")

    def number() -> int:
        with plan_runs(H200) as runs:
            diglot.softmax(torch.empty(64, 32768), backend=backend)
        read = {generic_name(full, specs()[full]): n for full, n in runs[0].plan.tunables}
        return read[name]

    assert number() == int(value)
    with use_tunables({name: 2}):
        assert number() == 2
    assert number() == int(value)
    with use_plans({name: 3}):
        assert number() == 3


def test_nearest_is_nearest():
    """In the logarithms of both sizes, not the floor, nor the first."""
    kept = Store()
    for n in (512, 1024, 2048):
        kept.add(problem(100, n), {"": float(n)}, {})
    for n, expected in ((700, 512), (740, 1024), (1400, 1024), (1500, 2048), (300, 512)):
        source, entry = kept.find(problem(100, n))
        assert source == "near" and entry is not None and entry.problem.shape == (100, expected)
    kept.add(problem(399, 1500), {"": 1.0}, {})
    _, entry = kept.find(problem(300, 1500))
    assert entry is not None and entry.problem.shape == (399, 1500)


@pytest.mark.parametrize(
    ("rows", "n", "serves"),
    [
        (400, 1000, True), (401, 1000, False), (25, 1000, True), (24, 1000, False),
        (100, 2000, True), (100, 2001, False), (100, 500, True), (100, 499, False),
    ],
)  # fmt: skip
def test_far_is_not_near(rows, n, serves):
    """A factor of 4 in rows, of 2 in their length, and no more."""
    assert store.serves(problem(100, 1000), problem(rows, n)) is serves


def test_near_is_the_nearest_that_serves():
    """A nearer shape whose length differs by more than a factor of 2 does not hide it."""
    kept = Store()
    kept.add(problem(100, 2001), {"": 1.0}, {})
    source, entry = kept.find(problem(100, 1000))
    assert source == "model" and entry is not None and entry.problem.shape == (100, 2001)
    kept.add(problem(400, 1000), {"": 1.0}, {})
    source, entry = kept.find(problem(100, 1000))
    assert source == "near" and entry is not None and entry.problem.shape == (400, 1000)


def test_entries_of_other_kinds_cost_a_look_nothing():
    """A call of a new shape waits for the look."""

    def calls(others: int) -> int:
        kept = Store()
        for i in range(others):
            kept.add(problem(100, i + 1, "cuda"), {"": 1.0}, {})
        kept.add(problem(100, 1000), {"": 1.0}, {})
        wanted = problem(100, 1200)
        kept.find(wanted)
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        kept.find(wanted)
        sys.setprofile(None)
        return counted

    assert calls(0) == calls(200) > 0


def test_a_near_gain_must_be_larger():
    """Of a near shape a plan is taken if it was 5 % faster than the planner's own, not 1 %."""
    kept = Store()
    kept.add(problem(8, 8), {"": 1.04, "rows.triton.warps=2": 1.0}, {})
    (entry,) = kept.entries.values()
    assert (entry.best, entry.best_nearby) == ("rows.triton.warps=2", "")
    kept.add(problem(8, 8), {"": 1.06}, {})
    assert kept.entries[problem(8, 8)].best_nearby == "rows.triton.warps=2"


@pytest.mark.parametrize("name", ["rows.cuda.skipped_shapes=2", "rows.triton.held.registers=64"])
def test_a_plan_that_means_another_elsewhere_serves_its_own_shape_alone(name):
    """32768x1280 skips a shape. By that plan, layer norm of 32000x1600 was ten times slower."""
    kept = Store()
    kept.add(problem(8, 8), {name: 1.0, "rows.cuda.few_slots=1": 1.04, "": 1.3}, {})
    (entry,) = kept.entries.values()
    assert (entry.best, entry.best_nearby) == (name, "rows.cuda.few_slots=1")
    # Without the fastest plan, the rest need not be good.
    kept.add(problem(9, 9), {name: 1.0, "rows.cuda.few_slots=1": 1.1}, {})
    assert kept.entries[problem(9, 9)].best_nearby == ""


@pytest.mark.parametrize(("shape", "chosen"), [((64, 32768), True), ((17, 20000), False)])
def test_a_small_gain_is_taken_of_its_own_shape_alone(shape, chosen, folder):
    written(folder, (problem(64, 32768), {"": 1.03, FEW["triton"]: 1.0}))
    choice = choice_of(*shape, "triton")
    assert choice.source == ("exact" if chosen else "near") and bool(choice.numbers) is chosen


def test_other_kinds_are_not_near():
    kept = Store()
    kept.add(problem(100, 1000), {"": 1.0}, {})
    assert kept.find(problem(100, 1000, "cuda"))[0] == "model"
    assert kept.find(problem(100, 1000, layout="rows"))[0] == "model"
    wanted = problem(100, 1000)
    assert kept.find(replace(wanted, dtypes=("bfloat16", "bfloat16")))[0] == "model"


@pytest.mark.parametrize("backend", backends.KERNELS)
def test_products_share_plans(backend):
    """What surrounds a product does not count, and near shapes do not either."""
    x, weight, bias = torch.zeros(32, 64), torch.zeros(48, 64), torch.zeros(48)
    with plan_runs(Device(90, 132, 228 << 10, True, "")) as runs:
        diglot.matmul(x, weight.mT, backend=backend)
        diglot.linear(x, weight, bias, activation="gelu", backend=backend)
        diglot.addmm(bias, x, weight.mT, backend=backend)
    (plain,) = {choice.problem for run in runs for choice in run.plan.choices}
    assert plain.op == "matmul" and plain.shape == (32, 48, 64, 1)
    assert not store.serves(replace(plain, shape=(33, 48, 64, 1)), plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", backends.KERNELS)
def test_a_measured_split_is_taken_unless_bits_must_not_depend_on_rows(backend, dtype, folder):
    """Both types of 16 bits have the same plans."""
    x, y = torch.zeros(256, 4096, dtype=dtype), torch.zeros(4096, 256, dtype=dtype)

    def plan_of(**how):
        with plan_runs(H200) as runs:
            diglot.matmul(x, y, backend=backend, **how)
        return runs[0].plan

    try:
        before = plan_of(), plan_of(batch_invariant=True)
    except ValueError as error:  # the quick build of the tests leaves float16 out
        if dtype != torch.float16 or "this build has kernels for" not in str(error):
            raise
        pytest.skip(str(error))
    (choice,) = before[0].choices
    assert choice.problem.dtypes == ("bfloat16",) and not before[1].choices
    split = {f"products.{backend}.split": 2}
    with store.updating("matmul", folder / "matmul/h200.json") as kept:
        kept.add(choice.problem, {"": 9.0, store.plan_name(split): 5.0}, {"gpu": "NVIDIA H200"})
    forget_stores()
    after = plan_of()
    assert [each.source for each in after.choices] == ["exact"]
    if "strided" not in choice.problem.layout:  # kernels without tensor cores have no parts
        assert "K in 2 parts" in after.variant
    assert plan_of(batch_invariant=True) == before[1]


def test_a_new_plan_keeps_old_times(folder):
    where = problem(8, 8)
    file = written(folder, (where, {"": 3.0, "rows.triton.warps=2": 2.0}))
    written(folder, (where, {"rows.triton.warps=8": 2.5}))
    (entry,) = store.read("softmax", file).entries.values()
    times = {name: timing.us for name, timing in entry.timings.items()}
    assert times == {"": 3.0, "rows.triton.warps=2": 2.0, "rows.triton.warps=8": 2.5}
    assert entry.best == "rows.triton.warps=2"


def test_a_gain_of_less_than_a_hundredth_is_none():
    kept = Store()
    kept.add(problem(8, 8), {"": 1.005, "rows.triton.warps=2": 1.0}, {})
    assert next(iter(kept.entries.values())).best == ""


ENTRY = {
    "launcher": "softmax_forward", "backend": "triton", "dtypes": ["float32", "float32"],
    "layout": WIDE, "shape": [64, 32768], "plans": {"rows.triton.alone_elements=0": [1.0, 1]},
}  # fmt: skip
GOOD = {"version": store.VERSION, "runs": {"1": {}}, "entries": [ENTRY]}


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in ENTRY.items() if name != key}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", json.dumps(GOOD)[:-40], "\x00\xff", "[" * 100000,
        json.dumps({**GOOD, "version": store.VERSION + 1}),
        json.dumps({**GOOD, "entries": {}}),
        json.dumps({**GOOD, "runs": []}),
        *[json.dumps({**GOOD, "entries": [without(key)]}) for key in ENTRY],
        *[
            json.dumps({**GOOD, "entries": [{**ENTRY, **wrong}]})
            for wrong in (
                {"more": 1}, {"shape": [64, -1]}, {"shape": []}, {"shape": ["64", 1]},
                {"plans": {}}, {"plans": {"no.such.tunable=1": [1.0, 1]}},
                {"plans": {"rows.triton.warps=3": [1.0, 1]}},
                {"plans": {"rows.triton.warps=4096": [1.0, 1]}},
                {"plans": {"rows.both.strip_bytes=256": [1.0, 1]}},
                {"plans": {"rows.triton.warps=4": [-1.0, 1]}},
                {"plans": {"rows.triton.warps=4": ["fast", 1]}},
                {"plans": {"__import__('os')": [1.0, 1]}}, {"dtypes": [1]},
            )
        ],
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_warning(text, folder):
    """And the planner's own numbers."""
    file = folder / "softmax" / "h200.json"
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert choice_of(64, 32768, "triton").source == "model"
        assert choice_of(64, 32768, "triton").source == "model"
    assert len(caught) == 1 and "ignores measured plans in" in str(caught[0].message)


def test_a_good_entry_beside_a_wrong_one_counts(folder):
    file = folder / "softmax" / "h200.json"
    file.parent.mkdir()
    file.write_text(json.dumps({**GOOD, "entries": [{**ENTRY, "shape": []}, ENTRY]}))
    with pytest.warns(UserWarning, match="1 of 2 entries"):
        assert choice_of(64, 32768, "triton").source == "exact"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_an_error_of_who_writes(folder):
    folder.chmod(0o500)
    with pytest.raises(PermissionError):
        written(folder, (problem(8, 8), {"": 1.0}))


def test_a_failed_write_leaves_the_file(folder, monkeypatch):
    file = written(folder, (problem(8, 8), {"": 1.0}))
    before = file.read_text()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        written(folder, (problem(8, 9), {"": 1.0}))
    assert file.read_text() == before
    assert {each.name for each in file.parent.iterdir()} == {file.name, f".{file.name}.lock"}


def _write_some(folder: str, first: int) -> None:
    for n in range(first, first + 20):
        file = Path(folder) / "softmax" / "h200.json"
        with store.updating("softmax", file) as kept:
            kept.add(problem(8, n), {"": 1.0}, {"by": first})


def test_two_processes_write_at_once(folder):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_some, args=(str(folder), i)) for i in (100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(store.read("softmax", folder / "softmax" / "h200.json").entries) == 40


def test_the_users_times_win(folder, monkeypatch):
    file = written(folder, (problem(8, 8), {"": 1.0}), (problem(8, 9), {"": 1.0}))
    shipped = folder / "shipped" / "softmax"
    shipped.mkdir(parents=True)
    file.rename(shipped / file.name)
    written(folder, (problem(8, 9), {"": 2.0, "rows.triton.warps=2": 1.0}))
    found = store_of("softmax", "h200")
    assert found.entries[problem(8, 8)].best == ""
    assert found.entries[problem(8, 9)].best == "rows.triton.warps=2"
    assert len(found.runs) == 2


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (1, 2**31 + 8), (2**31, 1)])
def test_extreme_shapes_are_planned(shape, folder):
    written(folder, (problem(1, 1), {"rows.triton.warps=2": 1.0}))
    with plan_runs(H200) as runs:
        diglot.softmax(torch.empty(1).expand(shape), backend="triton")
    for planned in runs:
        is_nothing = 0 in shape
        assert (planned.plan.variant == "nothing to do") is is_nothing
        assert [c.problem.shape for c in planned.plan.choices] == [shape] * (not is_nothing)


def test_what_is_shipped_reads_without_a_warning(monkeypatch, tmp_path):
    """Every store of this package, each entry of it. Its name is that of its runs' GPU, which
    bench/stored_plans.py judges.
    """
    monkeypatch.setenv("DIGLOT_CONFIGS", str(tmp_path))
    shipped = Path(__file__).parents[1] / "configs"
    files = [file for file in shipped.glob("*/*.json") if file.parent.name != "tunables"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for file in files:
            kept = store.read(file.parent.name, file)
            assert kept.entries and all(t.run in kept.runs for e in kept.entries.values()
                                        for t in e.timings.values())  # fmt: skip
            gpus = {run["gpu"] for run in kept.runs.values()}
            assert gpus <= {*GPUS} and {*map(short_name, gpus)} == {file.stem}


def test_a_measured_plan_that_fails_is_none(folder, monkeypatch):
    """Its own numbers, with a warning: whatever goes wrong with a kernel that is chosen."""
    numbers = {"rows.triton.warps": 2}
    entry = store.Entry(problem(64, 32), {store.plan_name(numbers): store.Timing(1.0, 1)})
    near = choosing.Choice(entry.problem, "near", numbers, entry)
    made = []

    def make() -> str:
        made.append(choosing._thread.has_own_numbers)
        if not made[-1]:
            choosing.record(near)
            raise RuntimeError("out of resource: shared memory")
        return "own"

    with pytest.warns(UserWarning, match="softmax_forward: a measured plan does not fit"):
        assert choosing.planned(make, "softmax_forward") == "own"
    assert made == [False, True]
    with pytest.raises(ZeroDivisionError):
        choosing.planned(lambda: 1 / 0, "softmax_forward")


@pytest.mark.parametrize("backend", backends.KERNELS)
def test_a_plan_by_older_numbers_is_not_kept(backend, monkeypatch):
    """One that is being made while another thread has all be forgotten."""
    asked = []
    real = choosing.choose

    def choose(*problem):
        asked.append(problem)
        if len(asked) == 1:
            forget_plans()
        return real(*problem)

    monkeypatch.setattr(choosing, "choose", choose)
    forget_plans()
    x = torch.randn(3, 11, device=backends.DEVICE)
    for expected in (1, 2, 2):
        diglot.softmax(x, -1, backend=backend)
        assert len(asked) == expected


@pytest.mark.parametrize("backend", backends.KERNELS)
def test_an_interrupt_while_plans_are_chosen(backend, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(choosing, "choose", interrupt)
    forget_plans()
    x = torch.randn(3, 13, device=backends.DEVICE)
    with pytest.raises(KeyboardInterrupt):
        diglot.softmax(x, -1, backend=backend)
        [None for _ in range(100)]  # Python looks for interrupts between lines
    forget_plans()


def test_scopes_end_in_any_order():
    outer, inner = use_plans("measured"), use_plans("model")
    with outer:
        with inner, use_plans("measured"):
            assert choosing._modes[-1] == "measured"
        assert choosing._modes == ["measured"]
    assert choosing._modes == []


def test_a_file_of_another_version_is_not_written_over(folder):
    file = folder / "softmax" / "h200.json"
    file.parent.mkdir()
    text = json.dumps({**GOOD, "version": store.VERSION + 1})
    file.write_text(text)
    with pytest.raises(ValueError, match="move it away"):
        written(folder, (problem(8, 8), {"": 1.0}))
    assert file.read_text() == text


def test_choices_that_there_are():
    with pytest.raises(ValueError, match="use_plans must be one of 'measured', 'model'"):
        use_plans("fast")
    with pytest.raises(ValueError, match="there is no tunable"):
        use_plans({"rows.triton.wraps": 1})
    with pytest.raises(ValueError, match="power of two"):
        use_plans({"rows.triton.warps": 3})


@pytest.mark.parametrize("backend", KERNELS)
def test_explain_says_why(backend, folder, monkeypatch):
    written(folder, (problem(64, 32768, backend), {"": 10.0, FEW[backend]: 8.0}))
    text = str(choice_of(64, 32768, backend))
    assert text.startswith("measured for this shape (")
    assert f"-> {FEW[backend]}: 8 µs" in text and "own numbers: 10 µs" in text
    assert "a near shape, 64x32768" in str(choice_of(32, 32768, backend))
    far = str(choice_of(64, 65540, backend))
    assert far == "by the planner's model: the nearest measured shape, 64x32768, is too far"
    with use_plans("model"):
        assert str(choice_of(64, 32768, backend)) == "by the planner's model"


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("rows", [0, 8])
@pytest.mark.parametrize("op", [diglot.softmax, diglot.gelu, diglot.standardize, diglot.matmul])
def test_explain_says_why_of_every_plan(op, rows, backend):
    """Also where a launch has one plan, and where nothing is launched."""
    x = torch.randn(8, 8, device=backends.DEVICE)
    inputs = (x[:rows], x) if op is diglot.matmul else (x[:rows],)
    said = diglot.explain(op, *inputs)
    (plan,) = said.plans[backend]
    lines = [line for line in str(said).splitlines() if f"{plan.variant}: by the planner" in line]
    assert lines
