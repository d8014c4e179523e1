"""Faults of measuring, of judging and of measured plans that are put into a copy of the sources."""

from __future__ import annotations

import shutil

import pytest
from backends import DEVICE
from test_mutations import ROOT, Fault, assert_found, copy_of_sources

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE == "cuda", reason="its tests fake what a GPU does"),
]

STORE = "python/diglot/backends/store.py"
TUNE = "python/diglot/tools/tune.py"
MEASURE = "python/diglot/tools/measure.py"
DISTANCE = "(math.dist(theirs, logarithms), "


def fault(file: str, right: str, wrong: str, tests: str, chosen: str) -> Fault:
    return Fault(file, right, wrong, "", tests, chosen)


FAULTS = {
    "none": fault(STORE, "\n", "\n", "test_store", "nearest_is_nearest or old_times"),
    "the nearest shape is the floor": fault(
        STORE,
        DISTANCE,
        DISTANCE.replace("ms)", "ms) + 99 * (entry.problem.shape > problem.shape)"),
        "test_store",
        "nearest_is_nearest",
    ),
    "a new plan drops old times": fault(
        STORE,
        "timings = dict(before.timings) if before is not None else {}",
        "timings: dict[str, Timing] = {}",
        "test_store",
        "keeps_old_times",
    ),
    "tuning in a capture": fault(
        TUNE,
        "torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()",
        "False",
        "test_tune",
        "in_a_capture",
    ),
    "tuning a call in a capture": fault(
        TUNE,
        "torch.cuda.is_current_stream_capturing() or not _is_first_rank()",
        "not _is_first_rank()",
        "test_tune",
        "a_call_is_tuned",
    ),
    "every rank tunes": fault(
        TUNE, "torch.distributed.get_rank() == 0", "True", "test_tune", "of_a_group"
    ),
    "a flush that does nothing": fault(
        MEASURE,
        "            buffer.zero_()\n\n    return flush",
        "            torch.cuda._sleep(1 << 20)\n\n    return flush",
        "test_measure",
        "cold_cache_is_cold",
    ),
    "a flush of a part": fault(
        MEASURE, "max(2 * l2_bytes, 1 << 28)", "l2_bytes // 2", "test_measure", "cold_cache_is_cold"
    ),
    "an end before the call": fault(
        MEASURE,
        "            self.function()\n            end.record()\n",
        "            end.record()\n            self.function()\n",
        "test_measure",
        "time_is_that_of_the_call",
    ),
    "a hundredth of wrong elements": fault(
        "bench/running.py",
        'row["failing"] == 0',
        'row["failing"] <= 0.01001',
        "test_bench_verdicts",
        "hundredth",
    ),
    "a bar at 0.95 of its bound": fault(
        "bench/reports.py",
        "value >= bound if at_least else value <= bound",
        "value >= 0.95 * bound if at_least else 0.95 * value <= bound",
        "test_bench_verdicts",
        "at_its_bound",
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measuring")
    places = {**copy_of_sources(folder), "bench": folder / "python/diglot/bench"}
    only_code = shutil.ignore_patterns("results", "distributions", "comparisons", "__pycache__")
    shutil.copytree(ROOT / "bench", places["bench"], ignore=only_code, dirs_exist_ok=True)
    return folder, places


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(copy, name):
    assert_found(*copy, FAULTS[name], "triton", is_none=name == "none")
