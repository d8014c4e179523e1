"""Stores of measured plans that fail, vanish or hold what does not fit: calls go on as without."""

from __future__ import annotations

import shutil
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
from diglot.backends.registry import INTERPRET
from diglot.backends.store import Problem
from diglot.backends.tunables import generic_name, specs
from diglot.tools import measure, tune
from diglot.triton_ops.launch import launch

H200 = Device(90, 132, 228 << 10, True, name="NVIDIA H200")
PLAN = "rows.triton.alone_elements=0"
UNLIKELY = {"cuda": "rows.cuda.few_slots=1", "triton": "rows.triton.warps=32"}
PROBLEM = Problem(
    "softmax",
    "softmax_forward",
    "triton",
    ("float32", "float32"),
    "rows, 16-byte accesses",
    (64, 32768),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder; nothing is shipped."""
    chosen = tmp_path / "configs"
    monkeypatch.setenv("DIGLOT_CONFIGS", str(chosen))
    monkeypatch.setattr(store, "shipped_folder", lambda: tmp_path / "shipped")
    forget_stores()
    yield chosen
    forget_stores()


@pytest.fixture
def as_h200(monkeypatch):
    """Interpreters have no stores; here they ask for those of an H200."""
    real = choosing._choose
    monkeypatch.setattr(choosing, "_choose", lambda problem, gpu: real(problem, gpu or "h200"))


def write(folder: Path, us: float = 1.0, problem: Problem = PROBLEM) -> None:
    with store.updating("softmax", folder / "softmax" / "h200.json") as kept:
        kept.add(problem, {"": 2.0, PLAN: us}, {})


def source_of(device: Device = H200) -> tuple[str, int]:
    """How the plan of PROBLEM is chosen, asked twice after a fresh start; and the warnings."""
    forget_stores()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with plan_runs(device) as runs:
            for _ in range(2):
                diglot.softmax(torch.empty(64, 32768), backend="triton")
    sources = {run.plan.choices[0].source for run in runs}
    assert len(sources) == 1
    return sources.pop(), len(caught)


def test_a_folder_that_vanishes(folder):
    """Between two processes it is no warning; while a process lives it keeps what it has read."""
    write(folder)
    assert source_of() == ("exact", 0)
    shutil.rmtree(folder)
    with plan_runs(H200) as runs:
        diglot.softmax(torch.empty(64, 32768), backend="triton")
    assert runs[0].plan.choices[0].source == "exact"
    assert source_of() == ("model", 0)
    write(folder)
    assert source_of() == ("exact", 0)


def test_a_folder_that_vanishes_while_times_are_added(folder):
    with store.updating("softmax", folder / "softmax" / "h200.json") as kept:
        kept.add(PROBLEM, {PLAN: 1.0}, {})
        shutil.rmtree(folder)
    assert source_of() == ("exact", 0)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_lies_in_the_way(folder, depth):
    """A file where a folder belongs, or a folder where the file belongs."""
    if depth == 2:
        (folder / "softmax" / "h200.json").mkdir(parents=True)
    else:
        place = (folder, folder / "softmax")[depth]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("in the way")
    source, count = source_of()
    assert source == "model" and count == (depth == 2)


def test_an_error_of_the_disk(folder, monkeypatch):
    write(folder)

    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_text", fail)
    source, count = source_of()
    assert source == "model" and count == 2  # of the package's plans, and of the user's


@pytest.mark.parametrize("name", ["", "NVIDIA", "../../h200", "GPU \N{SNOWMAN}\n\0", "x" * 1000])
def test_a_gpu_with_a_name_never_seen(folder, name):
    """No file is looked for outside the folder, nor by a name that is too long for one."""
    write(folder)
    (folder / "h200.json").write_text("{")
    expected = "exact" if name == "../../h200" else "model"  # its letters are those of the H200
    assert source_of(H200._replace(name=name)) == (expected, 0)


@pytest.mark.parametrize("backend", backends.KERNELS)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (0, 0), (7, 1)])
def test_shapes_of_none_and_of_one(folder, as_h200, shape, backend):
    """They run, and are right, whatever was measured near them."""
    x = torch.randn(shape, device=backends.DEVICE)
    with choosing.record_choices() as choices:
        diglot.softmax(x, -1, backend=backend)
    for choice in choices:
        with store.updating("softmax", folder / "softmax" / "h200.json") as kept:
            kept.add(choice.problem, {"": 2.0, UNLIKELY[backend]: 1.0}, {})
    forget_stores()
    with choosing.record_choices() as choices:
        torch.testing.assert_close(diglot.softmax(x, -1, backend=backend), x.softmax(-1))
    found = [(choice.source, store.plan_name(choice.numbers)) for choice in choices]
    assert found == [("exact", UNLIKELY[backend])] * (0 not in shape)


@pytest.mark.skipif(not INTERPRET, reason="here the planner alone can refuse a plan")
def test_a_plan_that_does_not_fit(folder, as_h200, monkeypatch):
    """Its kernel cannot be launched: one warning, and the planner's own plan."""
    x, real, asked = torch.randn(1, 512), launch._prepare, []

    def prepare(*arguments):
        asked.append(choosing._thread.has_own_numbers)
        made = real(*arguments)
        if not asked[-1]:
            raise RuntimeError("out of resource: shared memory, Required: 262144")
        return made

    with use_plans("model"):
        diglot.softmax(x, -1, backend="triton")
        own = diglot.last_run()
    write(folder, problem=replace(PROBLEM, shape=(1, 512)))
    forget_stores()
    monkeypatch.setattr(launch, "_prepare", prepare)
    with pytest.warns(UserWarning, match="does not fit: out of resource") as caught:
        for _ in range(2):
            torch.testing.assert_close(diglot.softmax(x, -1, backend="triton"), x.softmax(-1))
            assert diglot.last_run() == own
    assert len(caught) == 1 and asked == [False, True]


def ends() -> list[dict[str, int]]:
    """Plans with a number at an end of its range: what a file may say, and no tuner would."""
    found = {}
    for full, spec in specs().items():
        name = generic_name(full, spec)
        if name.startswith(("rows.cuda", "rows.triton")) and not spec.same_everywhere:
            for value in (spec.least, spec.most):
                found[name, value] = {name: value}
    return list(found.values())


@pytest.mark.skipif(not INTERPRET, reason="a plan that does not fit a GPU is none of these")
@pytest.mark.parametrize("backend", backends.KERNELS)
def test_plans_that_nobody_would_choose_are_right(backend):
    """Numbers at the ends of their ranges: the result is right, whatever plan they lead to."""
    rows, columns = torch.randn(2, 300), torch.randn(70, 3)
    tried = 0
    for numbers in ends():
        if backend not in next(iter(numbers)):
            continue
        with use_plans(numbers):
            for x, dim in ((rows, -1), (columns, 0)):
                found = diglot.softmax(x, dim, backend=backend)
                torch.testing.assert_close(
                    found, x.softmax(dim), msg=lambda m, n=numbers: f"{n} {m}"
                )
        tried += 1
    assert tried >= 8


@pytest.mark.skipif(not INTERPRET, reason="times are made up where nothing is timed")
@pytest.mark.parametrize("fault", ["unwritable", "of another version"])
def test_times_that_cannot_be_kept_are_one_warning(folder, fault, monkeypatch):
    """The caller still gets them, of forward and backward."""
    if fault == "unwritable":
        folder.write_text("in the way")
    else:
        (folder / "softmax").mkdir(parents=True)
        (folder / "softmax" / "h200.json").write_text('{"version": -1}')
    monkeypatch.setattr(measure, "check", lambda: None)
    monkeypatch.setattr(measure, "captured", lambda function: function)
    monkeypatch.setattr(
        measure, "interleaved", lambda f, **_: dict.fromkeys(f, measure.Timing(1.0, 1, 1, 1))
    )
    monkeypatch.setattr(tune, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(tune, "ROUNDS", 1)
    x = torch.randn(3, 12, requires_grad=True)
    with pytest.warns(UserWarning, match="diglot.tune keeps no times") as caught:
        found = diglot.tune(diglot.softmax, x, -1, backends=("triton",))
    assert [t.problem.launcher for t in found] == ["softmax_forward", "softmax_backward"]
    assert len({str(w.message) for w in caught if "keeps no times" in str(w.message)}) == 1
    assert not store_of("softmax", "h200").entries


def test_two_writers_where_one_is_killed(folder):
    """A lock that its process left is no lock; a half-written file is no store."""
    write(folder)
    (folder / "softmax" / ".h200.json.abc").write_text('{"version"')  # of a process that died
    assert source_of() == ("exact", 0)
    write(folder, us=0.5)
    entry = store.read("softmax", folder / "softmax" / "h200.json").entries[PROBLEM]
    assert entry.timings[PLAN].us == 0.5


@pytest.mark.parametrize("backend", backends.KERNELS)
@pytest.mark.parametrize("shape", [(1, 2**31 + 8), (2**31, 1)])
def test_shapes_beyond_2_to_31_are_planned(folder, shape, backend):
    write(folder)
    with plan_runs(H200 if backend == "triton" else None) as runs:
        diglot.softmax(torch.empty(1, device=backends.DEVICE).expand(shape), backend=backend)
    assert runs[0].plan.launches and runs[0].plan.choices[0].problem.shape == shape
