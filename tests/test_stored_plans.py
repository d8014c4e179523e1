"""How good choices of plans are, by the times that were measured of all of them."""

from __future__ import annotations

import itertools
import json
import statistics

import pytest
from backends import needs_extension

from diglot.backends import store
from diglot.backends.choosing import forget_stores
from diglot.backends.store import Problem
from diglot.backends.tunables import use_tunables
from diglot.bench import stored_plans
from diglot.bench.stored_plans import Verdict, judge, launched, plan_of, read_times

pytestmark = needs_extension
# The shares of today, rounded down: of the planner's own choice the geometric mean and the least,
# and both of the store's choice without the problem. A planner that changes must not lower them.
BOUNDS = {
    ("add_layer_norm_forward", "triton"): (0.983, 0.891, 0.983, 0.891),
    ("add_rms_norm_forward", "cuda"): (0.992, 0.941, 0.992, 0.941),
    ("add_rms_norm_forward", "triton"): (0.991, 0.953, 0.991, 0.953),
    ("layer_norm_backward", "cuda"): (0.991, 0.923, 0.991, 0.923),
    ("layer_norm_forward", "cuda"): (1.0, 1.0, 0.992, 0.854),
    ("log_softmax_backward", "cuda"): (0.993, 0.969, 0.993, 0.969),
    ("log_softmax_backward", "triton"): (0.994, 0.931, 0.994, 0.931),
    ("log_softmax_forward", "cuda"): (0.979, 0.874, 0.975, 0.819),
    ("log_softmax_forward", "triton"): (0.989, 0.937, 0.988, 0.937),
    ("rms_norm_backward", "cuda"): (0.988, 0.938, 0.988, 0.938),
    ("rms_norm_forward", "cuda"): (0.988, 0.965, 0.988, 0.943),
    ("softmax_backward", "cuda"): (0.996, 0.981, 0.996, 0.981),
    ("softmax_backward", "triton"): (0.984, 0.847, 0.984, 0.847),
    ("softmax_forward", "cuda"): (0.982, 0.9, 0.979, 0.881),
    ("softmax_forward", "triton"): (0.992, 0.955, 0.992, 0.955),
}  # fmt: skip
UNMEASURED = 50  # problems for which the planner chooses what nobody measured


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    return judge(read_times())


def shares_of(verdicts: list[Verdict]) -> dict[tuple[str, str], tuple[float, ...]]:
    """By launcher and language, the figures of `BOUNDS`."""

    def key(verdict: Verdict) -> tuple[str, str]:
        return verdict.problem.launcher, verdict.problem.backend

    found = {}
    for group, each in itertools.groupby(sorted(verdicts, key=key), key):
        of = list(each)
        columns = [[v.model for v in of], [v.near for v in of]]
        known = [[share for share in column if share is not None] for column in columns]
        found[group] = tuple(
            figure
            for column in known
            for figure in (statistics.geometric_mean(column), min(column))
        )
    return found


def test_choices_are_as_good_as_they_were(verdicts):
    found = shares_of(verdicts)
    assert found.keys() == BOUNDS.keys()
    lower = {
        key: (shares, BOUNDS[key])
        for key, shares in found.items()
        if any(share < bound for share, bound in zip(shares, BOUNDS[key], strict=True))
    }
    assert not lower
    assert sum(verdict.model is None for verdict in verdicts) <= UNMEASURED


def test_a_worse_planner_is_seen():
    """Of Triton's softmax, if rows are never held by one program."""
    times = {p: us for p, us in read_times().items() if p.launcher == "softmax_forward"}
    with use_tunables({"rows.triton.alone_elements": 0}):
        found = shares_of(judge({p: us for p, us in times.items() if p.backend == "triton"}))
    key = "softmax_forward", "triton"
    assert found[key][0] < BOUNDS[key][0] and found[key][1] < BOUNDS[key][1]


def test_names_in_the_store_mean_what_was_measured():
    """`python -m diglot.bench.stored_plans rename` gives plans other names after a planner's
    change.
    """
    times, wrong = read_times(), []
    for _, kept in stored_plans.stores():
        for problem, entry in kept.entries.items():
            key = launched(plan_of(problem, store.plan_numbers(entry.best)))
            us = times[problem].get(key)
            if us is None or us > entry.timings[entry.best].us:
                wrong.append((problem, entry.best))
    assert not wrong


def test_the_page_is_up_to_date(verdicts):
    ((path, text),) = stored_plans.render({}, verdicts).items()
    assert path.read_text() == text, "python tools/pages.py writes it anew"


PROBLEM = Problem(
    "softmax", "softmax_forward", "triton", ("bfloat16", "bfloat16"), "rows, 16-byte accesses",
    (64, 4096),
)  # fmt: skip
FEWER = {"rows.triton.latency.programs": 0}  # warps than rows so few have


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_plans, "FILE", tmp_path / "h200.json")
    monkeypatch.setattr(stored_plans, "CONFIGS", tmp_path / "configs")
    forget_stores()
    yield tmp_path
    forget_stores()


def test_times_are_kept_when_names_change(folders):
    """The planner's own former plan is named by numbers after the planner has changed."""
    file = folders / "configs/softmax/h200.json"
    with store.updating("softmax", file) as kept:
        kept.add(PROBLEM, {"": 5.0, store.plan_name(FEWER): 4.0}, {"gpu": "NVIDIA H200"})
    stored_plans.main("record")
    assert sorted(read_times()[PROBLEM].values()) == [4, 5]
    assert not list(stored_plans.rename())
    with use_tunables(FEWER):
        assert not list(stored_plans.rename())
    (entry,) = store.read("softmax", file).entries.values()
    times = {name: timing.us for name, timing in entry.timings.items()}
    assert times == {"": 4.0, "rows.triton.narrow_warps=16": 5.0}


def test_verdicts(folders, monkeypatch):
    """Of a problem beside another, whose plan has so far been 10 % faster."""
    near = Problem(*PROBLEM.kind[:-1], (64, 5120))
    with store.updating("softmax", folders / "configs/softmax/h200.json") as kept:
        for problem, us in ((PROBLEM, 4.0), (near, 4.8)):
            kept.add(problem, {"": 5.0, store.plan_name(FEWER): us}, {"gpu": "NVIDIA H200"})
    stored_plans.main("record")
    verdicts = {verdict.problem: verdict for verdict in judge(read_times())}
    assert verdicts[PROBLEM] == Verdict(PROBLEM, 4 / 5, 4 / 5, True)
    assert verdicts[near] == Verdict(near, 4.8 / 5, 1.0, True)
    ((*_, model, worst, none, _, _, worst_near, _),) = stored_plans.table(list(verdicts.values()))
    assert (model, worst, none, worst_near) == ("0.876", "0.80", "0", "0.80")
    stored_plans.FILE.unlink()
    stored_plans.write_times({PROBLEM: {"what nobody plans": 1.0}})
    assert judge(read_times()) == [Verdict(PROBLEM, None, None, True)]
    assert json.loads((stored_plans.FILE).read_text())["entries"][0]["us"]
