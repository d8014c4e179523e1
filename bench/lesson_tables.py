"""The figures of docs/lessons.md, from the committed results of examples/lessons/run_all.py.

A lesson's figures stand between two comments that have its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diglot.bench.evidence import ROOT
from diglot.bench.harness import Row
from diglot.bench.markdown import put, table
from diglot.bench.reports import measured_on
from diglot.bench.result_files import committed
from diglot.tools.numbers import number
from diglot.tools.table import Table

RESULTS = "results/*/lessons*.json"  # of products, in a file of their own
NOT_YET = "Figures of an H200: not measured yet.\n"
Reports = Sequence[Mapping[str, Any]]


def render() -> dict[Path, str]:
    """The page with new figures."""
    assert ROOT is not None, "the page is that of a source tree"
    path = ROOT / "docs/lessons.md"
    return {path: with_figures(path.read_text(), committed(RESULTS))}


def with_figures(text: str, reports: Reports) -> str:
    """The page's text with the figures of reports."""
    for name in re.findall(r"^<!-- (\w+):begin -->$", text, re.MULTILINE):
        text = put(text, name, "\n".join(_lines(name, reports)) or NOT_YET)
    return text


def _lines(name: str, reports: Reports) -> Iterator[str]:
    for report in reports:
        if name == "measured":
            yield f"Measured on: {measured_on([report])}.\n"
        rows = [row for row in report["rows"] if row["workload"] == name]
        for row in rows:
            yield f"{row['title']} ({report['gpu']})\n"
            yield from _table(row["rows"])
        if rows and name in report.get("failed", {}):
            yield "The lesson failed here, so that figures are missing.\n"


def _table(rows: Sequence[Row]) -> list[str]:
    titles = list(dict.fromkeys(title for row in rows for title in row))
    shown = Table(titles, [[_cell(row.get(title)) for title in titles] for row in rows]).shown()
    return table([str(title) for title in shown.titles], shown.rows)


def _cell(value: object) -> str:
    if value is None or isinstance(value, float):
        return number(value)
    said = str(value).replace("|", "\\|").replace("\n", " ")
    return f"`{said}`" if re.search(r"[<*_]", said) else said  # which mean something in Markdown
