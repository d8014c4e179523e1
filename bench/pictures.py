"""The pictures of speed in README and on the ops' pages, from the committed results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diglot.bench import marks, plots
from diglot.bench.harness import Row, Rows
from diglot.bench.reports import by_case, kind_text, largest, shape_text
from diglot.bench.result_files import read_file
from diglot.tools import inline_svg
from diglot.tools.drawing import Case

# What README's picture shows, in bfloat16: an op, its options, the direction.
SHOWN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("gelu", {"approximate": "tanh"}, "forward"),
    ("dropout", {"p": 0.1}, "forward"),
    ("softmax", {}, "forward"),
    ("rms_norm", {}, "backward"),
)
SHAPES = ([16384, 16384], [32768, 4096])
TIMER, DTYPE = "device", "bfloat16"
WIDTH = 7.0  # inches
Report = dict[str, Any]


def of_readme(folder: Path) -> str:
    """Ours and the others, of a few ops, as SVG; `folder` has a GPU's results."""
    reports = [read_file(folder / f"{op}.json").content for op, _, _ in SHOWN]
    rows = [
        row
        for report, (_, options, direction) in zip(reports, SHOWN, strict=True)
        for row in _timed(report)
        if (row["options"], row["direction"]) == (options, direction) and row["shape"] in SHAPES
    ]
    return _draw(by_case(rows), reports)


def of_op(report: Report) -> str | None:
    """Of each kind of call in an op's results the largest case, as SVG; None if none was timed."""
    rows = _timed(report)
    return _draw(largest(rows, kind_text), [report]) if rows else None


def _timed(report: Report) -> list[Row]:
    """Without our other ways to the same result, which have a comma in their names."""
    rows: list[Row] = [row for row in report["rows"] if "," not in row["provider"]]
    return [r for r in rows if (r["timer"], r["dtype"]) == (TIMER, DTYPE) and r.get("tb_per_s")]


def _draw(cases: Iterable[Rows], reports: Sequence[Report]) -> str:
    cases = list(cases)
    named = list(map(_named, cases))
    unit = plots.unit_of(next(iter(cases[0].values()))).partition(" (")[0]
    title = f"Speed beside others in {DTYPE}, with a cold L2 cache\n{_measured_on(reports)}"
    return inline_svg.standalone(plots.by_case(title, named, unit, WIDTH))


def _named(case: Rows) -> Case:
    """A case, called by its op, its options and its direction."""
    (drawn,) = plots.cases_of(case.values())
    row = next(iter(case.values()))
    return dataclasses.replace(drawn, name=f"{row['op']} {kind_text(row)}\n{shape_text(row)}")


def _measured_on(reports: Sequence[Report]) -> str:
    commits = ", ".join(sorted({report["commit"][:12] for report in reports}))
    old = " and ".join(report["op"] for report in reports if marks.is_of_old_kernels(report))
    return f"{reports[0]['gpu']}, commit {commits}" + (f", older kernels of {old}" if old else "")
