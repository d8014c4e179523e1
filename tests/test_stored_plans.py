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
H200, H100 = stored_plans.GPUS
# The shares of today, rounded down: of the planner's own choice the geometric mean and the least,
# and both of the store's choice without the problem. A planner that changes must not lower them.
OF_H200 = {
    ("add_layer_norm_forward", "cuda"): (0.992, 0.929, 0.992, 0.929),
    ("add_layer_norm_forward", "triton"): (0.98, 0.774, 0.98, 0.774),
    ("add_rms_norm_forward", "cuda"): (0.992, 0.869, 0.992, 0.869),
    ("add_rms_norm_forward", "triton"): (0.989, 0.906, 0.99, 0.906),
    ("layer_norm_backward", "cuda"): (0.983, 0.854, 0.983, 0.854),
    ("layer_norm_backward", "triton"): (0.983, 0.857, 0.984, 0.857),
    ("layer_norm_forward", "cuda"): (0.993, 0.845, 0.993, 0.845),
    ("log_softmax_backward", "cuda"): (0.993, 0.942, 0.993, 0.942),
    ("log_softmax_backward", "triton"): (0.992, 0.906, 0.991, 0.906),
    ("log_softmax_forward", "cuda"): (0.988, 0.879, 0.988, 0.879),
    ("log_softmax_forward", "triton"): (0.983, 0.76, 0.983, 0.76),
    ("matmul_forward", "triton"): (0.991, 0.871, 0.991, 0.871),
    ("rms_norm_backward", "cuda"): (0.987, 0.851, 0.987, 0.851),
    ("rms_norm_backward", "triton"): (0.985, 0.857, 0.985, 0.857),
    ("rms_norm_forward", "cuda"): (0.992, 0.893, 0.992, 0.893),
    ("softmax_backward", "cuda"): (0.995, 0.965, 0.995, 0.965),
    ("softmax_backward", "triton"): (0.993, 0.909, 0.993, 0.909),
    ("softmax_forward", "cuda"): (0.99, 0.897, 0.99, 0.897),
    ("softmax_forward", "triton"): (0.99, 0.932, 0.99, 0.932),
}  # fmt: skip
OF_H100 = {
    ("add_rms_norm_forward", "triton"): (0.991, 0.96, 0.991, 0.96),
    ("rms_norm_backward", "cuda"): (0.988, 0.952, 0.988, 0.952),
    ("rms_norm_backward", "triton"): (0.989, 0.963, 0.989, 0.963),
    ("rms_norm_forward", "cuda"): (0.997, 0.985, 0.997, 0.985),
    ("softmax_backward", "cuda"): (0.998, 0.988, 0.998, 0.988),
    ("softmax_backward", "triton"): (0.993, 0.956, 0.993, 0.956),
    ("softmax_forward", "cuda"): (0.997, 0.989, 0.997, 0.989),
    ("softmax_forward", "triton"): (0.986, 0.928, 0.986, 0.928),
}  # fmt: skip
# By GPU, and the number of problems for which the planner chooses what nobody measured. A GPU whose
# times are committed needs its own, which the failing test prints.
BOUNDS = {H200: (OF_H200, 0), H100: (OF_H100, 0)}
of_every_gpu = pytest.mark.parametrize("gpu", stored_plans.measured())


@pytest.fixture(scope="module")
def verdicts() -> dict[str, list[Verdict]]:
    return stored_plans.judge_all()


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


@of_every_gpu
def test_choices_are_as_good_as_they_were(verdicts, gpu):
    found = shares_of(verdicts[gpu])
    today = {key: tuple(int(1000 * s) / 1000 for s in shares) for key, shares in found.items()}
    unmeasured = sum(verdict.model is None for verdict in verdicts[gpu])
    assert gpu in BOUNDS, (today, unmeasured)
    bounds, allowed = BOUNDS[gpu]
    assert found.keys() == bounds.keys()
    lower = {
        key: (shares, bounds[key])
        for key, shares in found.items()
        if any(share < bound for share, bound in zip(shares, bounds[key], strict=True))
    }
    assert not lower
    assert unmeasured <= allowed


def test_a_worse_planner_is_seen():
    """Of Triton's softmax, if rows are never held by one program."""
    key = "softmax_forward", "triton"
    times = {p: us for p, us in read_times(H200).items() if (p.launcher, p.backend) == key}
    with use_tunables({"rows.triton.alone_elements": 0}):
        found = shares_of(judge(times, H200))
    assert found[key][0] < OF_H200[key][0] and found[key][1] < OF_H200[key][1]


@of_every_gpu
def test_names_in_the_store_mean_what_was_measured(gpu):
    """`python -m diglot.bench.stored_plans rename` gives plans other names after a planner's
    change, and `... record` keeps the times of new files.
    """
    times, wrong = read_times(gpu), []
    for _, kept in stored_plans.stores(gpu):
        for problem, entry in kept.entries.items():
            key = launched(plan_of(problem, store.plan_numbers(entry.best), gpu))
            us = times.get(problem, {}).get(key)
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
    monkeypatch.setattr(stored_plans, "FOLDER", tmp_path)
    monkeypatch.setattr(stored_plans, "CONFIGS", tmp_path / "configs")
    forget_stores()
    yield tmp_path
    forget_stores()


@pytest.mark.parametrize("gpu", stored_plans.GPUS)
def test_times_are_kept_when_names_change(folders, gpu):
    """The planner's own former plan is named by numbers after the planner has changed."""
    file = folders / "configs/softmax" / stored_plans.file_of(gpu).name
    with store.updating("softmax", file) as kept:
        kept.add(PROBLEM, {"": 5.0, store.plan_name(FEWER): 4.0}, {"gpu": gpu})
    stored_plans.main("record")
    assert stored_plans.measured() == [gpu]
    assert sorted(read_times(gpu)[PROBLEM].values()) == [4, 5]
    assert not list(stored_plans.rename(gpu))
    with use_tunables(FEWER):
        assert not list(stored_plans.rename(gpu))
    (entry,) = store.read("softmax", file).entries.values()
    times = {name: timing.us for name, timing in entry.timings.items()}
    assert times == {"": 4.0, "rows.triton.narrow_warps=16": 5.0}


def test_verdicts(folders, monkeypatch):
    """Of a problem beside another, whose plan has so far been 10 % faster."""
    near = Problem(*PROBLEM.kind[:-1], (64, 5120))
    with store.updating("softmax", folders / "configs/softmax/h200.json") as kept:
        for problem, us in ((PROBLEM, 4.0), (near, 4.8)):
            kept.add(problem, {"": 5.0, store.plan_name(FEWER): us}, {"gpu": H200})
    stored_plans.main("record")
    (found,) = stored_plans.judge_all().values()
    verdicts = {verdict.problem: verdict for verdict in found}
    assert verdicts[PROBLEM] == Verdict(PROBLEM, 4 / 5, 4 / 5, True)
    assert verdicts[near] == Verdict(near, 4.8 / 5, 1.0, True)
    ((*_, model, worst, none, _, _, worst_near, _),) = stored_plans.table(found)
    assert (model, worst, none, worst_near) == ("0.876", "0.800", "0", "0.800 (≥ 0.88) ✗")
    stored_plans.write_times({PROBLEM: {"what nobody plans": 1.0}}, H200)
    assert judge(read_times(H200), H200) == [Verdict(PROBLEM, None, None, True)]
    assert json.loads(stored_plans.file_of(H200).read_text())["entries"][0]["us"]


def test_each_gpu_has_a_table(folders):
    """Of its own files: the same problem, with another fastest plan."""
    for gpu, us in zip(stored_plans.GPUS, (4.0, 6.0), strict=True):
        file = folders / "configs/softmax" / stored_plans.file_of(gpu).name
        with store.updating("softmax", file) as kept:
            kept.add(PROBLEM, {"": 5.0, store.plan_name(FEWER): us}, {"gpu": gpu})
    assert sorted(file.name for file in (folders / "configs/softmax").glob("*.json")) == [
        "h100-80gb-hbm3.json", "h200.json",
    ]  # fmt: skip
    stored_plans.main("record")
    verdicts = stored_plans.judge_all()
    assert [of[0].model for of in verdicts.values()] == [0.8, 1.0]
    text = stored_plans.markdown(verdicts)
    assert "### Stored times of an NVIDIA H200" in text and "NVIDIA H100 80GB HBM3" in text
    assert "| 0.800 | 0.800 |" in text and "| 1.000 (≥ 0.92) | 1.000 |" in text
    text = stored_plans.markdown(dict(zip(verdicts, reversed(verdicts.values()), strict=True)))
    assert "| 1.000 | 1.000 |" in text and "| 0.800 (≥ 0.92) ✗ | 0.800 |" in text
