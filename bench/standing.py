"""How ours stand beside the others: README's table, of every case that was measured.

A case's figure is the time of the fastest other over ours, so above 1 ours is faster. A cell has
the geometric mean of its cases, and the worst.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from diglot.bench import marks
from diglot.bench.harness import OURS
from diglot.bench.reports import by_case, label, measured_on

NOTHING = "–"
WORKLOADS = ("gaussian_pdf", "grid_barrier_check")  # are there to be measured, and are no ops
DIRECTIONS = ("forward", "backward")
Reports = Sequence[Mapping[str, Any]]


class Standing(NamedTuple):
    """A case of one language: the time of the fastest other over ours."""

    language: str
    direction: str
    ratio: float
    case: str


def standings(report: Mapping[str, Any]) -> Iterator[Standing]:
    """Every case of an op whose device time was measured with cold caches."""
    rows = [row for row in report["rows"] if row["timer"] == "device" and "time_us" in row]
    for case in by_case(rows):
        first = next(iter(case.values()))
        others = [row["time_us"] for name, row in case.items() if _counts(name, row)]
        direction = DIRECTIONS[first["direction"].startswith(DIRECTIONS[1])]
        for language in OURS:
            if others and language in case:
                ratio = min(others) / case[language]["time_us"]
                yield Standing(language, direction, ratio, label(first))


def _counts(provider: str, row: Mapping[str, Any]) -> bool:
    return provider not in (*OURS, "formula") and marks.how_of(row) != marks.STRAWMAN


def _cell(found: Sequence[Standing]) -> str:
    if not found:
        return NOTHING
    ratios = [of.ratio for of in found]
    return f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f})"


def markdown(reports: Reports) -> str:
    """The table, with what was measured on which GPU."""
    columns = [(language, direction) for language in OURS for direction in DIRECTIONS]
    titles = ["op", "cases", *(" ".join(column) for column in columns), "worst case"]
    lines = [
        f"{measured_on(reports)}. A figure is the time of the fastest other over ours, so above 1 "
        "ours is faster. The others are PyTorch, torch.compile, Liger, QuACK and FlagGems, where "
        "they have the op. A cell has the geometric mean over all cases, in brackets the worst. "
        "† marks figures that are older than the op's kernels.",
        "",
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
    ]
    for report in reports:
        found = list(standings(report))
        if not found or report["op"] in WORKLOADS:
            continue
        cells = [_cell([of for of in found if of[:2] == column]) for column in columns]
        worst = min(found, key=lambda of: of.ratio)
        name = f"{report['op']}{' †' if marks.is_of_old_kernels(report) else ''}"
        cases = len({of.case for of in found})
        last = f"{worst.language}, {worst.case.removeprefix(report['op']).strip()}"
        lines.append(f"| {' | '.join([name, str(cases), *cells, last])} |")
    return "\n".join([*lines, ""])
