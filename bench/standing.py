"""How each op stands beside the fastest other implementation: README's table.

A case's figure is the time of the fastest other over ours, so above 1 ours is faster. A cell has
the geometric mean of its cases, and the worst.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diglot.bench import marks
from diglot.bench.harness import COLD, OURS
from diglot.bench.markdown import NOTHING, table
from diglot.bench.models import Ratio, ratios
from diglot.bench.reports import label, measured_on

DIRECTIONS = ("forward", "backward")
WORKLOADS = ("gaussian_pdf", "grid_barrier_check")  # functions that exist to be measured
MEANING = (
    "A figure is the time of the fastest other over ours: above 1, ours is faster. A cell has the "
    "geometric mean over all cases, and the worst in brackets."
)
OTHERS = (
    "The others are PyTorch, torch.compile, Liger, QuACK and FlagGems, where they have the op and "
    "were installed."
)
DRAWN = "A seed drew the shapes of ops with a * from published models, after tuning."
Report = Mapping[str, Any]


def compared(report: Report) -> Iterator[Ratio]:
    """Our cases of device time with cold caches that have an other to be compared with."""
    rows = [row for row in report["rows"] if row["timer"] in COLD]
    fair = [row for row in rows if row.get("how") != marks.STRAWMAN]
    return ratios(fair)


def is_drawn(report: Report) -> bool:
    """Whether a seed drew the report's cases (models.py)."""
    return any("kernels" in row for row in report["rows"])


def _column(ratio: Ratio) -> tuple[str, str]:
    is_backward = ratio.row["direction"].startswith("backward")
    return ratio.row["provider"], DIRECTIONS[is_backward]


def _cell(found: Sequence[Ratio]) -> str:
    if not found:
        return NOTHING
    values = [ratio.value for ratio in found]
    return f"{statistics.geometric_mean(values):.2f} ({min(values):.2f})"


def _line(report: Report, found: Sequence[Ratio]) -> list[str]:
    columns = [(language, direction) for language in OURS for direction in DIRECTIONS]
    cells = [_cell([ratio for ratio in found if _column(ratio) == column]) for column in columns]
    worst = min(found, key=lambda ratio: ratio.value)
    case = label(worst.row).removeprefix(worst.row["op"]).strip()
    cases = {label(ratio.row) for ratio in found}
    name = report["op"] + " *" * is_drawn(report) + " †" * marks.is_of_old_kernels(report)
    return [name, str(len(cases)), *cells, f"{worst.row['provider']}, {case}"]


HEADER = (
    *("op", "cases"),
    *(f"{language} {direction}" for language in OURS for direction in DIRECTIONS),
    "worst case",
)


def lines(reports: Sequence[Report]) -> list[list[str]]:
    """The table's lines, of reports in which something compares."""
    pairs = ((report, list(compared(report))) for report in reports)
    return [_line(report, found) for report, found in pairs if found]


def of_op(reports: Sequence[Report]) -> str:
    """The table's line of one op on each GPU; only where it was measured, if nothing compares."""
    made: list[str] = []
    for report in reports:
        found, said = lines([report]), f"{MEANING} {OTHERS}"
        made += [f"{measured_on([report])}.", ""]
        made += [*([said, ""] if said not in made else []), *table(HEADER, found)] if found else []
    return "\n".join(made)


def markdown(reports: Sequence[Report], *more: str) -> str:
    """The table, with the GPU and the commits of its figures.

    Args:
        reports: of an op with several, the last counts.
        more: sentences before the table.
    """
    known = {report["op"]: report for report in reports if report["op"] not in WORKLOADS}
    shown = [report for report in known.values() if next(compared(report), None)]
    drawn = [DRAWN] if any(map(is_drawn, shown)) else []
    said = [f"{measured_on(shown or reports)}.", MEANING, OTHERS, *drawn, marks.OLDER, *more]
    return "\n".join([" ".join(said), "", *table(HEADER, lines(shown))])
