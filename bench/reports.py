"""Results as rows, with what they were measured on: how they are written, and named in tables.

A file that cannot be written is a ValueError.
"""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from diglot.bench.evidence import RESULTS, commit, gpu_short_name, source_hash, versions
from diglot.bench.harness import Row
from diglot.files import for_json, writing
from diglot.tools import measure
from diglot.tools.op_sources import hashes_of

SCHEMA = 1
LESSONS = {"schema": "diglot.lessons", "schema_version": 1}  # what their file says in its place
# What makes two rows the same measurement of the same thing, at different times.
KEY = ("op", "provider", "direction", "dtype", "shape", "options", "timer")
TIMES = ("time_us", "p20_us", "p80_us")
SPEEDS = (
    *("tb_per_s", "copy_tb_per_s", "share_of_copy"),
    *("tflop_per_s", "product_tflop_per_s", "share_of_product", "speed_over_torch"),
)
ERRORS = ("worst_ulp", "worst_absolute", "worst_share", "failing")
# Options' values whose names say nothing, as tables show them.
SHOWN = {"none": "erf"}


def make_report(op: str, rows: Sequence[Row], **facts: Any) -> dict[str, Any]:
    """Rows with what they were measured on; `facts` are what else is known, by name."""
    return {
        "schema": SCHEMA,
        "op": op,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit(),
        "sources": source_hash(),
        "code": hashes_of(op),
        "versions": versions(),
        **facts,
        "rows": list(rows),
    }


def save(report: dict[str, Any], path: Path) -> None:
    """Writes a report as JSON, with its folder."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(for_json(report), indent=1, allow_nan=False) + "\n")


def write_report(op: str, rows: Sequence[Row], folder: Path | None = None, **facts: Any) -> Path:
    """Writes a report to <op>.json, by default in bench/results/<gpu>; returns the file."""
    path = (folder or RESULTS / gpu_short_name(torch.cuda.get_device_name())) / f"{op}.json"
    save(make_report(op, rows, **facts), path)
    return path


def run_parts(
    op: str,
    parts: Mapping[str, Callable[[], Iterable[Row]]],
    tell: Callable[[Row], str],
    folder: Path | None,
) -> Path:
    """Measures part by part, and writes a report after each, as `write_report`.

    A part that fails has a row that says why.

    Args:
        tell: a row in words.

    Raises:
        RuntimeError: there is no GPU, or kernels are interpreted.
    """
    measure.check()
    rows: list[Row] = []
    for number, (name, part) in enumerate(parts.items(), 1):
        print(f"{op}: {name}", flush=True)
        try:
            for row in part():
                print(f"  {tell(row)}", flush=True)
                rows.append(row)
        except Exception as error:
            reason = f"failed: {type(error).__name__}: {error}"
            print(f"  {reason}", flush=True)
            failed = {"op": op, "provider": "none", "workload": name, "timer": "none"}
            rows.append({**failed, "verified": False, "bars": [], "reason": reason})
        facts = {} if number == len(parts) else {"incomplete": f"{number} of {len(parts)} parts"}
        path = write_report(op, rows, folder, **facts)
        torch.cuda.empty_cache()
    return path


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Writes rows as CSV: a column for each entry but bars, empty where a row lacks it."""
    names = dict.fromkeys((*KEY, *(name for row in rows for name in row if name != "bars")))
    with writing(path), path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(names), extrasaction="ignore")
        table.writeheader()
        for row in rows:
            texts = {
                "shape": "x".join(map(str, row["shape"])),
                "options": " ".join(f"{name}={value}" for name, value in row["options"].items()),
            }
            table.writerow(row | texts)


def judged(
    name: str,
    value: float | None,
    bound: float,
    at_least: bool = True,
    mean: float | None = None,
) -> Row:
    """What a row says of a bar; without a value the bar is missed.

    Args:
        mean: what the geometric mean of the bar's rows must reach; bar_tables.py judges it.
    """
    met = value is not None and (value >= bound if at_least else value <= bound)
    said = {"name": name, "value": value, "bound": bound, "at_least": at_least, "met": met}
    return said if mean is None else {**said, "mean": mean}


def case_of(row: Row) -> str:
    """The case of a row, as text."""
    return json.dumps([row[name] for name in KEY if name != "provider"], sort_keys=True)


def is_ranked(row: Row) -> bool:
    """Whether it is of a ranking, in which alone launches are counted."""
    return "launches" in row


def by_case(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """Rows by provider, a dictionary for each case.

    A case of an op's own may be one of the ranking too; then the former counts, which has bars.
    """
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        of = cases.setdefault(case_of(row), {})
        if row["provider"] not in of or not is_ranked(row):
            of[row["provider"]] = row
    return list(cases.values())


def kind_text(row: Row) -> str:
    """Options and direction; of GELU's forms PyTorch calls "none" the one with erf."""
    options = ", ".join(
        SHOWN.get(value, value) if isinstance(value, str) else f"{name} {value}"
        for name, value in row["options"].items()
    )
    return f"{options} {row['direction']}".strip()


def shape_text(row: Row) -> str:
    """Sizes, such as 16384×16384."""
    return "×".join(map(str, row.get("shape", ())))


def label(row: Row) -> str:
    """The case of a row in words, for tables."""
    what = " ".join(filter(None, (row["op"], row.get("workload"), kind_text(row))))
    return ", ".join(filter(None, (what, shape_text(row), row["dtype"])))


def largest(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[dict[str, Row]]:
    """Of each kind of cases the one that moves most bytes; the last of several that do."""
    found: dict[Any, dict[str, Row]] = {}
    for case in by_case(rows):
        kind = key(next(iter(case.values())))
        if kind not in found or _moved(case) >= _moved(found[kind]):
            found[kind] = case
    return list(found.values())


def _moved(case: Mapping[str, Row]) -> float:
    return max(row.get("bytes", 0) for row in case.values())


def measured_on(reports: Sequence[Mapping[str, Any]]) -> str:
    """The GPUs, versions, dates and commits of reports: every one."""

    def all_of(texts: Iterable[str | None]) -> str:
        return ", ".join(sorted({str(text) for text in texts}))

    words = {"driver": "driver", "torch": "torch", "triton": "Triton"}
    versions = [f"{words[n]} {all_of(r['versions'].get(n) for r in reports)}" for n in words]
    dates = sorted({report["date"] for report in reports})
    whole = ", ".join(
        (
            all_of(report["gpu"] for report in reports),
            *versions,
            dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
            f"commit {all_of(report['commit'][:12] for report in reports)}",
        )
    )
    return ". ".join(filter(None, [whole, incomplete(reports)]))


def incomplete(reports: Iterable[Mapping[str, Any]]) -> str:
    """The reports that lack a part, since the run was ended; "" if none does."""
    parts = [f"{of['op']} ({of['incomplete']})" for of in reports if of.get("incomplete")]
    return f"Incomplete: {', '.join(parts)}" if parts else ""


def no_time(row: Row) -> str:
    """Why a row has no time, in two words: the row's reason says more."""
    reason = row.get("reason") or "wrong result"
    words = ("wrong result", "not timed", "refused")
    return next((word for word in words if reason.startswith(word)), "failed")
