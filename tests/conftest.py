"""What every test relies on: the interpreter where there is no GPU, and the record of a GPU run."""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from bench.evidence import RESULTS, commit, gpu_short_name, source_hash, versions

gc.disable()  # until all tests are collected: little of what that makes is garbage

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
if WORKER is not None:
    # Workers share out the GPUs of a machine, or of CUDA_VISIBLE_DEVICES. Each sees two, since some
    # tests need another GPU.
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [path.name[6:] for path in Path("/dev").glob("nvidia[0-9]*")]
    gpus = sorted(found, key=int) if named is None else named.split(",")
    if len(gpus) > 2:
        first = int(WORKER[2:])
        pair = [gpus[(first + i) % len(gpus)] for i in range(2)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(pair)
    # Processes that tests start have a core as well. More threads than that wait by spinning.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    # Before anything imports diglot or defines a Triton kernel: both look once.
    os.environ.setdefault("DIGLOT_INTERPRET", "1")
if os.environ.get("DIGLOT_INTERPRET") == "1":
    os.environ.setdefault("DIGLOT_INTERPRET_RACES", "1")
    os.environ.setdefault("TRITON_INTERPRET", "1")


if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    from faster_interpreter import make_faster

    make_faster()

if "DIGLOT_TEST_INTERPRETER" in os.environ:
    # Another build of the interpreter, such as that of make test-sanitize.
    location = os.environ["DIGLOT_TEST_INTERPRETER"]
    specification = importlib.util.spec_from_file_location("diglot._interpreter", location)
    assert specification is not None and specification.loader is not None
    sys.modules["diglot._interpreter"] = importlib.util.module_from_spec(specification)

os.environ.pop("COLUMNS", None)  # a worker has it, and commands fit their tables to it
if WORKER is not None:
    torch.set_num_threads(1)  # each worker has a core, and its neighbours need theirs

pytest.register_assert_rewrite("backends")
from backends import NOT_INTERPRETED, OPS, interpreted_line  # noqa: E402
from languages import Languages  # noqa: E402
from outcomes import added, last_results  # noqa: E402
from seeds import Seeds  # noqa: E402

# A first call compiles, so that no deadline would hold. CI draws the same examples every time.
settings.register_profile("diglot", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("diglot"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "diglot")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--evidence",
        nargs="?",
        choices=("new", "add"),
        const="new",
        help="on a machine with a GPU: write the outcome to bench/results/<gpu>/tests.json, or add "
        "it to what a run of the same sources wrote there",
    )
    parser.addoption(
        "--both-languages",
        action="store_true",
        help="fail where a library of CUDA's kernels does not load, or where no test ran an op's "
        "kernels of CUDA C++, or none those of Triton",
    )


def pytest_configure(config: pytest.Config) -> None:
    evidence = config.getoption("--evidence")
    if evidence and not HAS_GPU:
        raise pytest.UsageError("--evidence: PyTorch finds no CUDA GPU")
    if evidence == "add" and not is_of_these_sources(outcome_file()):
        raise pytest.UsageError("--evidence=add: no run of these sources is there to add to")
    # A shell has what it starts in the background ignore Ctrl-C, which tests press.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    where = torch.cuda.get_device_name() if HAS_GPU else "interpreted"
    ops = OPS if HAS_GPU else [op for op in OPS if op not in NOT_INTERPRETED]
    languages = Languages(ops, where, config.getoption("--both-languages"))
    config.pluginmanager.register(_Record(), "diglot-record")
    config.pluginmanager.register(languages, "diglot-languages")
    config.pluginmanager.register(Seeds(), "diglot-seeds")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Workers of `-n auto`. On a GPU most of a test's time is its compilation on one core."""
    most = 16 * torch.cuda.device_count() if HAS_GPU else 4
    return min(len(os.sched_getaffinity(0)), most)


@pytest.fixture
def refused_cuda(monkeypatch: pytest.MonkeyPatch) -> str:
    """A process in which CUDA's kernels cannot run; the reason."""
    from diglot.backends import registry, selection

    reason = "it is refused for this test"
    refused = dataclasses.replace(registry.BACKENDS["cuda"], refusal=lambda device: reason)
    monkeypatch.setitem(registry.BACKENDS, "cuda", refused)
    monkeypatch.setattr(selection, "_chosen", {})
    return reason


def outcome_file() -> Path:
    """Where the outcome of the tests on this machine's GPU is written."""
    return RESULTS / gpu_short_name(torch.cuda.get_device_name()) / "tests.json"


def is_of_these_sources(path: Path) -> bool:
    """Whether a recorded outcome is of the sources as they are."""
    return path.exists() and json.loads(path.read_text())["sources"] == source_hash()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()  # collections of garbage no longer look at what lasts
    gc.enable()


class _Record:
    """Deselects tests that need a GPU on machines without one; keeps count; reports at the end."""

    def __init__(self) -> None:
        self.deselected = 0
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self.skip_reasons: Counter[str] = Counter()
        self.sources = source_hash()
        self.is_whole = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """A second interrupt may come before pytest notes the first in the exit status."""
        result = yield
        self.is_whole = True
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if HAS_GPU:
            return
        needing = [item for item in items if item.get_closest_marker("gpu")]
        self.deselected = len(needing)
        if needing:
            config.hook.pytest_deselected(items=needing)
            items[:] = [item for item in items if not item.get_closest_marker("gpu")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test has one outcome: that of its call, unless it ended before or broke afterwards.
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.failed:
            self.failures.append(report.nodeid)
        if report.skipped:
            if isinstance(report.longrepr, tuple):
                reason = report.longrepr[2].removeprefix("Skipped: ")
            else:
                reason = str(getattr(report, "wasxfail", "")) or "expected to fail"
            self.skip_reasons[reason] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes["failed"] += 1
            self.failures.append(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Where workers collect, the controller has deselected nothing: each tells the same."""
        self.deselected = getattr(node, "workeroutput", {}).get("deselected", self.deselected)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["deselected"] = self.deselected
        # With pytest-xdist, reports of all workers reach the controller, and it alone writes.
        if not session.config.getoption("--evidence") or hasattr(session.config, "workerinput"):
            return
        device, path = torch.cuda.get_device_name(), outcome_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        # The hash is from the start: a tree that was edited meanwhile is not the tested one.
        record: dict[str, Any] = {
            "gpu": device,
            "gpus": torch.cuda.device_count(),
            "passed": self.outcomes["passed"],
            "failed": self.outcomes["failed"],
            "skipped": self.outcomes["skipped"],
            "failures": sorted(set(self.failures)),
            "skip_reasons": dict(sorted(self.skip_reasons.items())),
            "selection": session.config.getoption("-m"),
            "versions": versions(),
            "commit": commit(),
            "sources": self.sources,
        }
        ends = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED
        if not self.is_whole or exitstatus not in ends:
            record["incomplete"] = "cut short"
        if session.config.getoption("--evidence") == "add":
            record = added(json.loads(path.read_text()), record)
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.ensure_newline()
        if not HAS_GPU:
            terminalreporter.write_line(interpreted_line())
            terminalreporter.write_line(
                f"GPU tests: {self.deselected} deselected, no GPU here (make gpu-test runs them)"
            )
        for line in last_results(RESULTS, self.sources):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def committed_page(tmp_path_factory):
    """The page of a GPU's committed results, which takes seconds: once for all of a run."""
    from diglot.tools.report import read, render

    folder = tmp_path_factory.getbasetemp()
    path = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "report.html"
    if not path.exists():
        own = folder / "own.html"
        results = Path(__file__).parents[1] / "bench/results/h200"
        own.write_text(render(read([results]), sources="of now"), encoding="utf-8")
        own.replace(path)
    return path
