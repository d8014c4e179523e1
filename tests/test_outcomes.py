"""The record of a run of the tests on a GPU."""

from __future__ import annotations

import json

import pytest
from outcomes import added, last_results

RUN = {
    "gpu": "NVIDIA H200",
    "passed": 5,
    "failed": 1,
    "skipped": 2,
    "failures": ["a.py::b"],
    "skip_reasons": {"why": 2},
    "selection": "not alone",
    "commit": "abc",
    "sources": "0123",
}
MORE = RUN | {"passed": 3, "failed": 0, "skipped": 1, "failures": [], "selection": "alone"}


def test_two_runs_of_the_same_sources_add_up():
    together = added(RUN, MORE)
    assert [together[key] for key in ("passed", "failed", "skipped")] == [8, 1, 3]
    assert together["failures"] == ["a.py::b"] and together["skip_reasons"] == {"why": 4}
    assert together["selection"] == "not alone; alone" and "incomplete" not in together
    for first, second in ((RUN | {"incomplete": "cut short"}, MORE), (RUN, MORE)):
        second = second | ({} if "incomplete" in first else {"incomplete": "cut short"})
        assert added(first, second)["incomplete"] == "cut short"


def test_none_is_added_twice():
    with pytest.raises(ValueError, match="'alone' is in it already"):
        added(added(RUN, MORE), MORE)


@pytest.mark.parametrize("key", ["gpu", "commit", "sources"])
def test_others_do_not(key):
    with pytest.raises(ValueError, match=f"{key} was"):
        added(RUN, MORE | {key: "another"})


def test_the_line_at_the_end_of_a_run(tmp_path):
    assert last_results(tmp_path, "0123")[0].endswith("none is recorded in bench/results")
    path = tmp_path / "h200" / "tests.json"
    path.parent.mkdir()
    path.write_text(json.dumps(RUN))
    line = "last run on h200: 5 passed, 1 failed, 2 skipped"
    assert last_results(tmp_path, "0123") == [f"{line}, commit abc; of these sources"]
    path.write_text(json.dumps(RUN | {"incomplete": "cut short"}))
    stale = "STALE: the sources have changed since"
    assert last_results(tmp_path, "4567") == [f"{line}, cut short, commit abc; {stale}"]
    path.write_text("[")
    assert "cannot be read" in last_results(tmp_path, "0123")[0]
