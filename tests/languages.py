"""Which languages' kernels the tests ran: what the end of a run says, and can be told to demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from diglot.backends import registry
from diglot.backends.runs import observe_runs

NAMES = {"cuda": "CUDA C++", "triton": "Triton"}
KEY = "kernels"  # of a report's properties


def missing_libraries() -> list[str]:
    """Why the extension does not load or, where kernels are interpreted, CUDA's interpreter."""
    libraries = {"extension": registry.load_extension()}
    if registry.INTERPRET:
        libraries["interpreter"] = registry.load_interpreter()
    return [f"no CUDA {name}: {why}" for name, (module, why) in libraries.items() if not module]


class Languages:
    """A plugin: counts the tests that passed and ran kernels of a language, and says so.

    Args:
        ops: the ops whose kernels tests can run.
        where: what runs kernels, such as "interpreted".
        demands_all: whether the run fails where a library is missing, or where no test ran an op's
            kernels of a language.
    """

    def __init__(self, ops: Iterable[str], where: str, demands_all: bool) -> None:
        self.ops, self.where, self.demands_all = tuple(ops), where, demands_all
        self.tests: Counter[str] = Counter()
        self.ran: set[tuple[str, str]] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        if item.get_closest_marker("alone"):  # it compares times, and observing takes some
            return (yield)
        ran: set[tuple[str, str]] = set()
        try:
            with observe_runs(lambda run, _: ran.add((run.backend, run.op))):
                return (yield)
        finally:
            item.user_properties.append((KEY, sorted(ran)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            ran = {(language, op) for language, op in dict(report.user_properties).get(KEY, ())}
            self.ran |= ran
            self.tests.update({language for language, _ in ran if language in NAMES})

    def faults(self) -> list[str]:
        """What a run of both languages' kernels lacks."""
        faults = missing_libraries()
        for language, name in NAMES.items():
            idle = [op for op in self.ops if (language, op) not in self.ran]
            if idle:
                faults.append(f"no test ran kernels of {name} of {', '.join(idle)}")
        return faults

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):  # the controller has the reports of all
            return
        if self.demands_all and self.faults() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.ensure_newline()
        counts = ", ".join(f"{name} in {self.tests[of]}" for of, name in NAMES.items())
        terminalreporter.write_line(f"kernels ran ({self.where}): {counts} tests")
        said = "error: --both-languages: " if self.demands_all else "warning: "
        for fault in self.faults() if self.demands_all else missing_libraries():
            terminalreporter.write_line(f"{said}{fault}")
