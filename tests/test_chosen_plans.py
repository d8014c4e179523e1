"""How good chosen plans are, with times that are made up."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from diglot.backends.choosing import Choice, forget_stores
from diglot.backends.registry import INTERPRET
from diglot.backends.store import Entry, Timing
from diglot.bench import chosen_plans, harness
from diglot.bench.chosen_plans import judge, table
from diglot.bench.harness import Case
from diglot.bench.selection import load
from diglot.bench.tables import CHOSEN
from diglot.tools import measure
from diglot.tools import tune as tuning
from diglot_cli.tune import tune as command

pytestmark = pytest.mark.skipif(not INTERPRET, reason="times are made up where nothing is timed")
# Microseconds of softmax's plans in CUDA C++; others take 10.
US = {"rows.cuda.skipped_shapes=1": 9.0, "rows.cuda.skipped_shapes=2": 8.0}
LUCKY = "rows.cuda.skipped_shapes=1"  # the fastest in the search, and not when it is timed again
NEAR = {"rows.cuda.skipped_shapes": 1}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    def times(functions, *, budget_ms):
        us = US | ({LUCKY: 2.0} if budget_ms < chosen_plans.AGAIN_MS else {})
        return {name: measure.Timing(us.get(name, 10.0), 1, 1, 1) for name in functions}

    def captured(function):
        function()
        return lambda: function()

    monkeypatch.setenv("DIGLOT_CONFIGS", str(tmp_path))
    monkeypatch.setattr(measure, "check", lambda: None)
    monkeypatch.setattr(measure, "why_not", lambda: None)
    monkeypatch.setattr(measure, "captured", captured)
    monkeypatch.setattr(measure, "interleaved", times)
    monkeypatch.setattr(tuning, "_check", lambda *_: None)
    monkeypatch.setattr(tuning, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(harness, "DEVICE", "cpu")
    forget_stores()
    yield
    forget_stores()


def call_of(case: Case, backend: str):
    benchmark = load("softmax").benchmark
    return benchmark.providers[backend](case, benchmark.inputs(case))


CASE = Case("forward", torch.float32, (6, 300), {"dim": -1})


def test_a_chosen_plan_is_timed_beside_the_best(gpu, monkeypatch):
    real = chosen_plans.choices_of

    def near(call):
        return [Choice(choice.problem, "near", NEAR, None) for choice in real(call)]

    monkeypatch.setattr(chosen_plans, "choices_of", near)
    tried = []
    monkeypatch.setattr(
        chosen_plans,
        "_timed",
        lambda *of, timed=chosen_plans._timed: tried.extend(of[1]) or timed(*of),
    )
    (row,) = judge("softmax", CASE, call_of(CASE, "cuda"))
    assert (row["own_us"], row["chosen_us"], row["best_us"]) == (10, 9, 8)
    assert tried[0] == LUCKY and len(tried) <= chosen_plans.FASTEST + 2
    assert row["best"] == "rows.cuda.skipped_shapes=2" and row["source"] == "near"
    assert row["plans"] > 3 and row["shape"] == [6, 300] and row["launcher"] == "softmax_forward"
    assert not list(chosen_plans.judge("softmax", CASE, lambda: None))


def test_what_is_measured_is_not_judged(gpu, monkeypatch):
    real = chosen_plans.choices_of

    def exact(call):
        problems = [choice.problem for choice in real(call)]
        return [Choice(p, "exact", NEAR, Entry(p, {"": Timing(1, 1)})) for p in problems]

    monkeypatch.setattr(chosen_plans, "choices_of", exact)
    assert not list(judge("softmax", CASE, call_of(CASE, "cuda")))


def row(chosen: float | None, own: float, best: float, **more) -> dict:
    where = {"op": "softmax", "direction": "forward", "language": "cuda", "dtype": "bfloat16"}
    of = {"shape": [8, 64], "source": "near", "best": "a.b.c=1", **where, **more}
    return {**of, "chosen_us": chosen, "own_us": own, "best_us": best}


def test_a_table():
    rows = [row(10, 20, 5), row(10, 10, 10, shape=[1, 1], source="model")]
    ((*key, launches, near, chosen, worst, own, worst_own, told),) = table(rows)
    assert key == ["softmax", "forward", "cuda"] and (launches, near) == ("2", "1")
    assert (chosen, worst) == ("0.707 (≥ 0.97) ✗", "0.500 (≥ 0.9) ✗")
    assert (own, worst_own) == ("0.500 (≥ 0.92) ✗", "0.250")
    assert told == "bfloat16 8×64: 10.0 µs, 5.0 by a.b.c=1"
    assert table([row(None, 5, 5)])[0][6] == "0.100 (≥ 0.9) ✗"  # the chosen plan did not run
    assert table([row(10, 10, 9.7)])[0][5] == "0.970 (≥ 0.97)"
    report = {"gpu": "NVIDIA H200", "op": "softmax", "commit": "0123456789", "date": "today"}
    text = CHOSEN([{**report, "seed": 3, "rows": rows}])
    assert "### NVIDIA H200" in text and "seed 3" in text and "| 0.707 (≥ 0.97) ✗ |" in text


def test_shapes_follow_a_seed():
    def shapes(op, seed):
        return chosen_plans.shapes(load(op).benchmark, seed)

    for op in ("softmax", "linear"):
        drawn = shapes(op, 1)
        assert len(drawn) == 12 == len(set(drawn)) and drawn == shapes(op, 1) != shapes(op, 2)
    assert shapes("softmax", 2) != shapes("rms_norm", 2)
    assert all(len(shape) == 3 for shape, _ in shapes("linear", 1))


def test_the_command(gpu, monkeypatch, tmp_path):
    """A table, and a file for each op; shapes cannot be given."""
    monkeypatch.setattr(chosen_plans, "draw", lambda *_: [((6, 300), torch.float32)])
    monkeypatch.setattr(chosen_plans, "layers", lambda *_: [(6, 8, 32)])
    arguments = ["softmax", "--judge", "1", "--direction", "forward", "--backend", "cuda"]
    done = CliRunner().invoke(command, [*arguments, "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "softmax.json").read_text())
    assert report["seed"] == 1 and [r["language"] for r in report["rows"]] == ["cuda"]
    assert report["rows"][0]["chosen_us"] == 10 and report["rows"][0]["best_us"] == 8
    assert not list(tmp_path.glob("softmax/*"))  # no times are kept
    of_layers = ["linear", "--judge", "1", "--backend", "triton", "--results", str(tmp_path)]
    done = CliRunner().invoke(command, of_layers)
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "linear.json").read_text())["rows"]
    assert [row["shape"][:3] for row in rows] == [[6, 8, 32], [8, 32, 6], [6, 32, 8]]
    done = CliRunner().invoke(command, [*arguments, "--shape", "2x2"])
    assert done.exit_code != 0 and "--judge draws shapes" in done.output


def test_a_run_goes_on_where_it_stopped(gpu, monkeypatch, tmp_path):
    """Each call's rows are in the file as soon as it is judged. Another seed starts again."""
    shapes = [((6, 300), torch.float32), ((6, 302), torch.float32), ((6, 304), torch.float32)]
    monkeypatch.setattr(chosen_plans, "draw", lambda *_: shapes)
    asked, gone = [], [False, True]

    def judge_or_stop(op, case, call, tell):
        asked.append(case.shape[1])
        if asked == [300, 302] and gone.pop():
            raise ValueError("the machine is gone")
        return [row(10, 10, 8, case=list(case.shape), shape=list(case.shape), dtype="float32")]

    monkeypatch.setattr(chosen_plans, "judge", judge_or_stop)
    arguments = ["softmax", "--direction", "forward", "--backend", "cuda"]
    arguments += ["--results", str(tmp_path), "--judge"]
    done = CliRunner().invoke(command, [*arguments, "1"])
    assert done.exit_code != 0 and "the machine is gone" in done.output
    for seed, others in (("1", [302, 304]), ("1", []), ("2", [300, 302, 304])):
        asked[:] = []
        done = CliRunner().invoke(command, [*arguments, seed])
        assert done.exit_code == 0, (done.output, done.exc_info)
        assert asked == others
        report = json.loads((tmp_path / "softmax.json").read_text())
        assert [r["shape"] for r in report["rows"]] == [[6, 300], [6, 302], [6, 304]]
        assert report["seed"] == int(seed)
