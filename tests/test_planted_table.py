"""Each bug of tests/planted/table.py is named under every seed, and no right kernel is reported."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest
import torch
from planted import table
from planted.library import ROOT, Run, build_for_gpu, build_interpreted, find_nvcc, runner
from seeds import SEEDS_OF_INTERPRETER

from diglot.backends.registry import INTERPRET

NEEDS_INTERPRETER = pytest.mark.skipif(not INTERPRET, reason="DIGLOT_INTERPRET is not set")


SOURCES = sorted({right.source for right in table.RIGHT})


# Which byte it is tells the stage of a ring.
SHARED = "a race in shared memory: "
PLACE = re.compile(r" \(byte \d+ of (`\w+`|dynamic shared memory)\)[,;] ")


@functools.cache
def runner_of(source: Path) -> Run:
    return runner(build_interpreted(source))


@NEEDS_INTERPRETER
@pytest.mark.parametrize("seeds", SEEDS_OF_INTERPRETER)
@pytest.mark.parametrize("right", table.RIGHT, ids=lambda right: right.name)
def test_a_right_kernel_is_right_and_not_reported(right, seeds):
    for seed in seeds:
        message, out = runner_of(right.source)(
            right.kernel, values=right.values, seed=seed, **right.launch
        )
        assert message == "", seed
        assert right.is_right(out), seed


@NEEDS_INTERPRETER
@pytest.mark.parametrize("seeds", SEEDS_OF_INTERPRETER)
@pytest.mark.parametrize("bug", table.BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_named(bug, seeds):
    right = bug.right
    never = set(bug.said)
    for seed in seeds:
        message, out = runner_of(right.source)(
            bug.kernel, values=right.values, seed=seed, **right.launch
        )
        if not bug.said:
            assert message == "", seed
            assert not right.is_right(out), seed
            continue
        assert any(said in message for said in bug.said), (seed, message)
        assert SHARED not in message or PLACE.search(message), (seed, message)
        assert f"planted/{right.file}.cu:" in message, (seed, message)
        never -= {said for said in bug.said if said in message}
    assert not never or len(seeds) < 100


def test_the_page_has_the_table():
    print(table.markdown())
    assert table.markdown() in (ROOT / "docs/interpreter.md").read_text()


def test_results_of_a_gpu_fill_the_table(monkeypatch):
    bug = table.BUGS[0]
    monkeypatch.setattr(table, "results", lambda: {bug.name: ["wrong result", "racecheck"]})
    rows = table.markdown().splitlines()[2:]
    assert rows[0].endswith("| wrong result | racecheck |")
    assert all(row.endswith("| not run yet | not run yet |") for row in rows[1:])


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests/planted")
    return importlib.import_module("on_gpu")


FAULT = "said: 'running: a misaligned address (cudaErrorMisalignedAddress)'; results: -1.0"


@pytest.mark.parametrize(
    ("text", "status", "verdict"),
    [
        ("said: ''; results: 3.0", 0, "as if right"),
        ("said: ''; results: 4.0", 0, "wrong result"),
        (FAULT, 0, "a misaligned address"),
        (f"mbarrier: thread (0, 0, 0) has waited 2 s\n{FAULT}", 0, "hangs"),
        ("", None, "hangs"),
        ("", -11, "exit -11"),
    ],
)
def test_verdicts_of_a_plain_run(on_gpu, text, status, verdict):
    answer = on_gpu.Answer(text, status)
    assert answer.verdict(lambda out: torch.equal(out, torch.tensor([3.0]))) == verdict


RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at void f()+0xe0 in f.cu:24
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"""


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors", ""),
        (RACE, "Race reported between Read access"),
        ("", "exit 0"),
    ],
)
def test_findings_of_compute_sanitizer(on_gpu, text, finding):
    assert on_gpu.Answer(text, 0).finding() == finding


def test_findings_of_all_tools(on_gpu):
    assert on_gpu.summary({"memcheck": "", "racecheck": "a race"}) == "racecheck: a race"
    assert on_gpu.summary({"memcheck": "hangs", "racecheck": ""}) == "hangs"
    assert on_gpu.summary({"memcheck": "", "racecheck": ""}) == "nothing"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["-DDIGLOT_CHECKED"]], ids=["as it is", "checked"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_kernels_compile_for_a_gpu(tmp_path, source, flags):
    if find_nvcc() is None:
        pytest.skip("no nvcc")
    assert build_for_gpu(tmp_path, flags, source, "sm_90a").exists()
