"""Results in files: rows, and what they were measured on."""

from __future__ import annotations

import csv
import datetime
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from diglot.bench.evidence import RESULTS, commit, gpu_short_name, source_hash, versions
from diglot.bench.harness import Row
from diglot.files import for_json, json_files, writing

SCHEMA = 1
# What every report says beside its rows.
FACTS = ("op", "gpu", "commit", "versions", "date")
# What some say too: lines of code by op and way, of a ranking, and how much of it was measured.
MORE_FACTS = {"lines": dict, "incomplete": str}
LARGEST = 1e30  # far beyond what is measured
ALIKE = 1 + 1e-9
NOT_FINITE = ("inf", "nan")  # which JSON's numbers are not: diglot.files.for_json
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
COLUMNS = (
    *KEY,
    *("how", "bytes", "flops", "verified", "reason"),
    *ERRORS,
    *TIMES,
    *("samples", "exposed", *SPEEDS),
    *("host_us", "peak_bytes", "first_call_ms", "launches"),
)


def make_report(op: str, rows: Sequence[Row], **facts: Any) -> dict[str, Any]:
    """Rows with what they were measured on; `facts` are what else is known, by name."""
    return {
        "schema": SCHEMA,
        "op": op,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit(),
        "sources": source_hash(),
        "versions": versions(),
        **facts,
        "rows": list(rows),
    }


def save(report: dict[str, Any], path: Path) -> None:
    """Writes a report as JSON, with its folder.

    Raises:
        ValueError: it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(for_json(report), indent=1, allow_nan=False) + "\n")


def write_report(op: str, rows: Sequence[Row], folder: Path | None = None, **facts: Any) -> Path:
    """Writes a report to <op>.json, by default in bench/results/<gpu>; returns the file."""
    path = (folder or RESULTS / gpu_short_name(torch.cuda.get_device_name())) / f"{op}.json"
    save(make_report(op, rows, **facts), path)
    return path


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """Writes rows as CSV: a column for each figure, empty where there is none.

    Raises:
        ValueError: it cannot be written.
    """
    with writing(path), path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore")
        table.writeheader()
        for row in rows:
            texts = {
                "shape": "x".join(map(str, row["shape"])),
                "options": " ".join(f"{name}={value}" for name, value in row["options"].items()),
            }
            table.writerow(row | texts)


def read_report(path: Path) -> dict[str, Any]:
    """A report from a file.

    Raises:
        ValueError: it cannot be read, is none, or is one of another schema.
    """
    return check(path, _parsed(path))


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no results: it is not JSON") from error


def check(path: Path, report: Any) -> dict[str, Any]:
    """A report of which all is there that tables, pictures and pages of results take.

    Raises:
        ValueError: it is none, one of another schema, or damaged; `path` is named.
    """
    if not isinstance(report, dict) or not isinstance(report.get("rows"), list):
        raise ValueError(f"{path} holds no results: it has no rows")
    if report.get("schema") != SCHEMA:
        raise ValueError(
            f"{path} has results of schema {report.get('schema')!r}, and this diglot reads {SCHEMA}"
        )
    for name in FACTS:
        if name not in report:
            raise ValueError(f"{path} holds no results: it does not say the {name}")
    damage = _damage_of_facts(report)
    if damage is not None:
        raise ValueError(f"{path} is damaged: {damage}")
    # One row of this harness makes it a file of this harness: none of the others may lack a key.
    has_keys = any(map(_is_row, report["rows"]))
    for number, row in enumerate(report["rows"]):
        if not isinstance(row, dict):
            damage = "it is no object"
        else:
            damage = _damage(row) if has_keys else None
        if damage is not None:
            raise ValueError(f"{path} is damaged: row {number}: {damage}")
    return report


def _damage_of_facts(report: Mapping[str, Any]) -> str | None:
    kinds: dict[str, type] = {name: dict if name == "versions" else str for name in FACTS}
    kinds |= {name: kind for name, kind in MORE_FACTS.items() if name in report}
    if report["gpu"] is None:  # of what was measured without one, by tests
        del kinds["gpu"]
    for name, kind in kinds.items():
        if not isinstance(report[name], kind):
            return f"{name} is no {kind.__name__}"
    for op, ways in report.get("lines", {}).items():
        for way, counts in ways.items() if isinstance(ways, dict) else [(None, None)]:
            if not isinstance(counts, dict) or not all(
                _is_count(counts.get(name)) for name in ("own", "with_shared")
            ):
                return f"lines of {op}{f', {way}' if way else ''} are no counts"
    return None


def _is_finite(value: Any) -> bool:
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_one and -LARGEST < value < LARGEST


def _is_number(value: Any) -> bool:
    """From 0 on."""
    return _is_finite(value) and value >= 0


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_error(value: Any) -> bool:
    return _is_number(value) or value in NOT_FINITE or value == math.inf or value != value


def _is_judged(bar: Any) -> bool:
    return (
        isinstance(bar, dict)
        and isinstance(bar.get("name"), str)
        and _is_number(bar.get("bound"))
        and (bar.get("value") is None or _is_finite(bar["value"]))
        and isinstance(bar.get("met"), bool)
    )


_WHAT: dict[Callable[[Any], bool], str] = {
    _is_positive: "positive number",
    _is_number: "number from 0 on",
    _is_count: "count",
    _is_error: "error",
}
# What a figure is that is there; and whether it may be None, where an instrument found none.
# Errors may be infinite or NaN.
FIGURES: dict[str, tuple[Callable[[Any], bool], bool]] = {
    **dict.fromkeys((*TIMES, *SPEEDS), (_is_positive, False)),
    **dict.fromkeys(ERRORS, (_is_error, False)),
    **dict.fromkeys(("bytes", "flops", "samples"), (_is_number, False)),
    "host_us": (_is_positive, True),
    "peak_bytes": (_is_number, True),
    "first_call_ms": (_is_number, False),
    **dict.fromkeys(("launches", "exposed"), (_is_count, True)),
}


def _damage(row: Row) -> str | None:
    """What of a row is not as `diglot bench` writes it; None where all is that tables take."""
    kinds = dict.fromkeys(KEY, str) | {"shape": list, "options": dict, "bars": list}
    for name, kind in kinds.items():
        if not isinstance(row.get(name), kind):
            return f"{name} is no {kind.__name__}"
    if not isinstance(row.get("how"), (str, type(None))):
        return "how is no text"
    if not row["shape"] or not all(map(_is_count, row["shape"])):
        return "shape is no list of sizes"
    if not all(map(_is_judged, row["bars"])):
        return "bars are not as they should be"
    for name, (is_one, may_lack) in FIGURES.items():
        if name in row and not (is_one(row[name]) or (may_lack and row[name] is None)):
            return f"{name} is no {_WHAT[is_one]}"
    times = [row[name] for name in TIMES if name in row]
    if len(times) not in (0, len(TIMES)):
        return f"it has not all of {', '.join(TIMES)}"
    # Of equal samples quantiles may differ in the last bit.
    if times and not row["p20_us"] / ALIKE <= row["time_us"] <= row["p80_us"] * ALIKE:
        return "the median is not between the percentiles"
    if times and row.get("verified") is not True:
        return "it has a time, and was not verified"
    return None


def _is_other_file(parsed: Any) -> bool:
    """Whether it lies beside reports and says that it is none: ceilings, the record of tests."""
    return isinstance(parsed, dict) and not isinstance(parsed.get("schema"), int)


def read_reports(path: Path) -> list[dict[str, Any]]:
    """The reports of this harness in a file, or in the files below a folder that are such.

    Raises:
        ValueError: there is none, or one that cannot be read.
    """
    if not path.is_dir():
        report = read_report(path)
        if not is_of_harness(report):
            raise ValueError(f"{path} has results of another kind than `diglot bench` compares")
        return [report]
    files = {file: _parsed(file) for file in json_files(path)}
    found = [
        report
        for file, parsed in files.items()
        if not _is_other_file(parsed) and is_of_harness(report := check(file, parsed))
    ]
    if not found:
        raise ValueError(f"{path} has no results in it")
    return found


def is_of_harness(report: dict[str, Any]) -> bool:
    """Whether its rows are those of bench/running.py, not of a benchmark that is no op's."""
    return all(map(_is_row, report["rows"]))


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and set(KEY) <= row.keys()


def key_of(row: Row) -> str:
    """What a row measures, as text."""
    return json.dumps([row[name] for name in KEY], sort_keys=True)


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


def label(row: Row) -> str:
    """The case of a row in words, for tables."""
    options = ", ".join(
        SHOWN.get(value, value) if isinstance(value, str) else f"{name} {value}"
        for name, value in row["options"].items()
    )
    shape = "×".join(map(str, row["shape"]))
    name = f"{row['op']} {options}".strip()
    return f"{name} {row['direction']}, {shape}, {row['dtype']}"


def measured_on(reports: Sequence[Mapping[str, Any]]) -> str:
    """On what reports were measured, when and of which commits: every one that there is."""

    def all_of(texts: Iterable[str | None]) -> str:
        return ", ".join(sorted({str(text) for text in texts}))

    words = {"driver": "driver", "torch": "torch", "triton": "Triton"}
    versions = [f"{words[n]} {all_of(r['versions'].get(n) for r in reports)}" for n in words]
    dates = sorted({report["date"] for report in reports})
    return ", ".join(
        (
            all_of(report["gpu"] for report in reports),
            *versions,
            dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
            f"commit {all_of(report['commit'][:12] for report in reports)}",
            *filter(None, [incomplete(reports)]),
        )
    )


def incomplete(reports: Iterable[Mapping[str, Any]]) -> str:
    """Of which reports a part is missing, since the run was ended; "" of none."""
    parts = [f"{of['op']} ({of['incomplete']})" for of in reports if of.get("incomplete")]
    return f"incomplete: {', '.join(parts)}" if parts else ""


def no_time(row: Row) -> str:
    """Why a row has no time, in two words: the row's reason says more."""
    reason = row.get("reason") or "wrong result"
    words = ("wrong result", "not timed", "refused")
    return next((word for word in words if reason.startswith(word)), "failed")
