"""One call of `diglot bench`: its plan, its measurements, and the files that keep them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from diglot.backends.aligned_rows import OPS as ROW_OPS
from diglot.bench import models, plan_costs
from diglot.bench.evidence import RESULTS, UNKNOWN, gpu_short_name
from diglot.bench.harness import OURS, Benchmark, Case, Row
from diglot.bench.instruments import GPU
from diglot.bench.lines import lines_of
from diglot.bench.reports import incomplete, make_report, save
from diglot.bench.result_files import read_reports
from diglot.bench.running import run
from diglot.bench.selection import (
    APART,
    OPS,
    Selection,
    cases_of,
    check_providers,
    load,
    why_none,
)
from diglot.files import check_writable
from diglot.names import unknown_name
from diglot.tools import measure


@dataclass(frozen=True)
class Plan:
    """The benchmarks and cases to measure.

    Attributes:
        apart: the names of benchmarks that measure and write by themselves.
        folder: where results of each op go, as it is done; None: nowhere.
    """

    benchmarks: Sequence[tuple[Benchmark, list[Case]]]
    apart: Sequence[str]
    selection: Selection
    folder: Path | None


@dataclass
class Done:
    """Results that were measured, or read.

    Attributes:
        lines: lines of code by op and provider, of a ranking.
        incomplete: the missing measurements, in words; None if all were made.
        interrupted: whether that is so by Ctrl-C.
    """

    gpu: str | None
    rows: list[Row] = field(default_factory=list)
    lines: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    written: list[Path] = field(default_factory=list)
    incomplete: str | None = None
    interrupted: bool = False
    error: BaseException | None = None

    def report(self, rows: Sequence[Row] | None = None, **facts: Any) -> dict[str, Any]:
        """Rows, by default all, as a report."""
        rows = self.rows if rows is None else rows
        ops = list(dict.fromkeys(row["op"] for row in rows))
        lines = {op: self.lines[op] for op in ops if op in self.lines}
        more = {"lines": lines} if lines else {}
        return make_report(", ".join(ops), rows, **{"gpu": self.gpu, **more, **self.facts, **facts})


def plan(
    ops: Sequence[str], selection: Selection, results: Path | None = None, force: bool = False
) -> Plan:
    """The plan for ops, by default for all that have such cases.

    Args:
        results: a folder for the results of each GPU, in a folder of its name.

    Raises:
        ValueError: an op is unknown or has no such case, or a file is there.
        RuntimeError: there is a folder for results, and no GPU to name it after.
    """
    for op in ops:
        load(op)
    known = OPS if selection.plans is None else ROW_OPS
    names = [op for op in ops or known if op not in APART]
    apart = [op for op in ops or APART if op in APART]
    if results is None or not selection.is_everything:
        if ops and apart:
            raise ValueError(f"{apart[0]} writes files, in cases of its own: give --results alone")
        apart = []
    chosen = []
    benchmarks = [load(name).benchmark for name in names]
    if selection.plans is not None:
        benchmarks = [plan_costs.beside(benchmark, selection.plans) for benchmark in benchmarks]
    check_providers(benchmarks, selection.providers)
    for benchmark in benchmarks:
        try:
            cases = cases_of(benchmark, selection)
        except ValueError:
            if ops:
                raise
            continue
        if cases:
            chosen.append((benchmark, cases))
        elif ops:
            raise ValueError(why_none(benchmark, selection))
    folder = None
    if results is not None:
        check_gpu()
        folder = results / gpu_short_name(torch.cuda.get_device_name())
        if selection.ranking:
            folder /= "ranking"
        if selection.plans is not None:
            folder /= selection.plans
        elif selection.models is not None:
            folder /= "models"
        for name in (*(benchmark.op for benchmark, _ in chosen), *apart):
            path = folder / f"{name}.json"
            if path.exists() and selection.models is None:  # which goes on where it stopped
                check_writable(path, force)
    return Plan(chosen, apart, selection, folder)


def check_gpu() -> None:
    """Raises ValueError where nothing can be measured."""
    reason = measure.why_not()
    if reason is not None:
        raise ValueError(f"nothing is measured: {reason}")


def compile_in_this_process() -> None:
    """Has torch.compile start no workers, unless a variable says how many.

    Workers take the host's time from the first measurements: cases of less than 100 us came out
    several times slower than in other runs.
    """
    import torch._inductor.config as inductor

    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        inductor.compile_threads = 1


def read(paths: Iterable[Path], ops: Sequence[str]) -> Done:
    """Results from files or folders, of the ops named or of all.

    Raises:
        ValueError: there are no results, a file cannot be read, or they are of several GPUs.
    """
    reports = [report for path in paths for report in read_reports(path)]
    gpus = list(dict.fromkeys(report["gpu"] for report in reports))
    if len(gpus) > 1:
        raise ValueError(f"--load: results of {' and '.join(gpus)} are not one measurement")
    done = Done(gpus[0])
    for report in reports:
        done.rows += [row for row in report["rows"] if not ops or row["op"] in ops]
        done.lines |= {op: of for op, of in report.get("lines", {}).items() if not ops or op in ops}
    known = {row["op"] for report in reports for row in report["rows"]}
    for op in ops:
        if op not in known:
            raise unknown_name("OP", op, sorted(known))
    done.facts = {"versions": reports[0]["versions"]}
    done.incomplete = incomplete(reports) or None
    for name in ("commit", "sources", "date"):
        done.facts[name] = ", ".join(sorted({report.get(name, UNKNOWN) for report in reports}))
    return done


def measure_all(plan: Plan, tell: Callable[[str], None]) -> Done:
    """Measures, and keeps the results however it ends."""
    GPU.check()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    done = Done(gpu)
    planned, measured = sum(len(cases) for _, cases in plan.benchmarks), 0
    try:
        for benchmark, cases in plan.benchmarks:
            if plan.selection.ranking:
                done.lines[benchmark.op] = lines_of(benchmark)
            rows: list[Row] = []
            planned_of, of_op = len(cases), 0
            hashes: dict[str, str] = {}
            if plan.selection.models is not None:
                hashes = {"kernels": models.kernels_hash(benchmark.op)}
                rows, cases = models.known(
                    plan.folder,
                    benchmark.op,
                    cases,
                    hashes["kernels"],
                    plan.selection.only or OURS,
                )
                of_op = planned_of - len(cases)
            try:
                for of_case in run(
                    benchmark,
                    cases,
                    only=plan.selection.only,
                    launches=plan.selection.ranking,
                    weighs=plan.selection.models is None,
                    tell=tell,
                    instruments=GPU,
                ):
                    rows += [row | hashes for row in of_case]
                    of_op += 1
                    # Whatever ends the process.
                    _keep(plan, done, benchmark.op, rows, of_op, planned_of)
            finally:
                measured += of_op
                done.rows += rows
                if plan.folder is not None and rows:
                    done.written.append(_keep(plan, done, benchmark.op, rows, of_op, planned_of))
        for name in plan.apart:
            done.written.append(load(name).run(_folder_of_apart(plan.folder)))
    except KeyboardInterrupt:
        done.interrupted = True
        done.incomplete = f"interrupted: {measured} of {planned} cases were measured"
    except Exception as error:
        done.error = error
        done.incomplete = f"ended by an error: {measured} of {planned} cases were measured"
    if done.incomplete is not None:
        done.facts["incomplete"] = f"{measured} of {planned} cases"
    return done


def _keep(plan: Plan, done: Done, op: str, rows: list[Row], count: int, planned: int) -> Path:
    """Writes the results of some of an op's cases, if there is a folder; returns where."""
    path = (plan.folder or Path()) / f"{op}.json"
    if plan.folder is not None:
        missing = {} if count == planned else {"incomplete": f"{count} of {planned} cases"}
        save(done.report(rows, **missing), path)
    return path


def _folder_of_apart(folder: Path | None) -> Path | None:
    """None where it is the source tree's own: then pictures go to its documents."""
    assert folder is not None
    return None if folder.parent.resolve() == RESULTS.resolve() else folder
