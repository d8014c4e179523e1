"""Finds and checks result files: what they say is data, and may be anything."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from diglot.bench import reports
from diglot.bench.harness import Row
from diglot.bench.reports import LARGEST
from diglot.files import json_files
from diglot.pipeline.report import SCHEMA as PIPELINE
from diglot.pipeline.report import SCHEMA_VERSION as PIPELINE_VERSION
from diglot.pipeline.report import STAGES, PipelineReport
from diglot.tools import ceilings


@dataclass(frozen=True)
class File:
    """A result file; a text is "" where the file does not say it.

    Attributes:
        path: as it was given.
        kind: "benchmark", "tests", "pipeline" or "ceilings".
        op: what it is about.
        gpu: what was measured on.
        date: when.
        commit: of which commit.
        sources: the hash of the sources it was measured with.
        incomplete: how much was measured, of a run that was ended before all was.
        versions: of what ran, by name.
        rows: of a benchmark or of ceilings; each has the keys of `TEXTS`, shape, options and bars.
        content: everything.
    """

    path: str
    kind: str
    op: str
    gpu: str
    date: str
    commit: str
    sources: str
    incomplete: str
    versions: dict[str, str]
    rows: tuple[Row, ...]
    content: dict[str, Any] = field(repr=False)

    @property
    def is_of_ops(self) -> bool:
        """Whether it has results of ops, as `diglot bench` measures them."""
        return self.kind == "benchmark" and bool(self.rows) and reports.is_of_harness(self.content)


@dataclass(frozen=True)
class Results:
    """What was read, and of folders what was left out: a file's path and the reason."""

    files: tuple[File, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def read(paths: Iterable[str | Path]) -> Results:
    """Reads result files; of folders every .json file below them that is one.

    Raises:
        ValueError: a file that is named is no result file, or of another schema version; a folder
            has none; a path does not exist.
    """
    files: dict[Path, File] = {}
    left_out = {}
    for path in map(Path, paths):
        if not path.is_dir():
            files[path.resolve()] = read_file(path)
            continue
        found = 0
        for inner in json_files(path):
            try:
                files[inner.resolve()] = read_file(inner)
                found += 1
            except ValueError as error:
                left_out[str(inner)] = str(error)
        if not found:
            reasons = "".join(f"; {reason}" for reason in list(left_out.values())[:1])
            raise ValueError(f"{path} has no result files{reasons}")
    return Results(tuple(files.values()), tuple(left_out.items()))


def read_file(path: Path) -> File:
    """Reads one file.

    Raises:
        ValueError: it cannot be read, or is none of the kinds.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a results file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a results file: it holds no object")
    try:
        return _file(path, content)
    except _Damaged as error:
        raise ValueError(f"{path} is a damaged results file: {error}") from error


def _file(path: Path, content: dict[str, Any]) -> File:
    schema, version = content.get("schema"), content.get("schema_version")
    listed: list[Row] = []
    op = _text(content, "op")
    if schema == ceilings.SCHEMA:
        known = ceilings.parse(content, path).rows
        kind, op = "ceilings", "ceilings"
        names = {"what": "workload", "how": "provider"}
        listed = [{names.get(k, k): of for k, of in asdict(row).items()} for row in known]
    elif schema == PIPELINE:
        if version != PIPELINE_VERSION:
            raise ValueError(f"{path} is of schema version {version!r}, not {PIPELINE_VERSION}")
        kind = "pipeline"
        _check_pipeline(content)
    elif schema is None and {"passed", "failed", "skipped"} <= content.keys():
        kind, op = "tests", "tests"
        for key in ("passed", "failed", "skipped"):
            if not isinstance(content[key], int):
                raise _Damaged(f"{key} is no number")
    elif isinstance(schema, int):
        kind, listed = "benchmark", reports.check(path, content)["rows"]
    else:
        raise ValueError(f"{path} is not a results file: it has no schema that is known")
    versions = content.get("versions")
    named = versions.items() if isinstance(versions, dict) else ()
    texts = ("gpu", "date", "commit", "sources", "incomplete")
    return File(
        path=str(path),
        kind=kind,
        op=op,
        **{name: _text(content, name) for name in texts},
        versions={str(name): str(of) for name, of in named if of is not None},
        rows=tuple(_row(row, number) for number, row in enumerate(listed)),
        content=content,
    )


def _check_pipeline(content: dict[str, Any]) -> None:
    """Whether a run can be drawn."""
    try:
        report = PipelineReport.from_json(json.dumps(content))
        numbers = (report.seconds, report.bytes_in, report.bytes_out, report.chunks)
        times = [time for timeline in report.timelines for chunk in timeline for time in chunk]
        is_whole = (
            len(report.timelines) == len(report.devices)
            and all(len(chunk) == 2 * len(STAGES) for of in report.timelines for chunk in of)
            and all(isinstance(time, (int, float)) for time in (*times, *numbers))
        )
    except (KeyError, TypeError) as error:
        raise _Damaged(f"{type(error).__name__}: {error}") from None
    if not is_whole:
        raise _Damaged("its timelines are not as they should be")


class _Damaged(Exception):
    """Something is of another type than it must be."""


TEXTS = ("op", "provider", "timer", "direction", "dtype", "workload")
NUMBERS = ("bytes", *reports.TIMES, "tb_per_s", "copy_tb_per_s", "share_of_copy")


def _row(row: Row, number: int) -> Row:
    """A row with all of its keys, and without numbers that say nothing."""
    try:
        shape, options, bars = row.get("shape") or [], row.get("options", {}), row.get("bars", [])
        if not isinstance(shape, (list, tuple)) or not all(isinstance(size, int) for size in shape):
            raise _Damaged("shape is no list of integers")
        if any(size < 0 for size in shape) or math.prod(shape) >= LARGEST:
            raise _Damaged("shape is out of range")
        if not isinstance(options, dict) or not isinstance(bars, list):
            raise _Damaged("options or bars are of another type")
        if not all(isinstance(bar, dict) and finite(bar.get("bound")) is not None for bar in bars):
            raise _Damaged("a bar has no bound")
        judged = [
            {
                "name": _text(bar, "name"),
                "value": finite(bar.get("value")),
                "bound": bar["bound"],
                "met": bar.get("met") is True,
            }
            for bar in bars
        ]
        found = {str(key): value for key, value in row.items() if value is not None}
        found |= {name: _text(row, name) for name in TEXTS}
        found |= {"shape": shape, "options": options, "bars": judged}
    except _Damaged as error:
        raise _Damaged(f"row {number}: {error}") from None
    for name in NUMBERS:
        value = finite(found.get(name))
        if value is None or (value <= 0 and name != "bytes"):
            found.pop(name, None)
    return found


def _text(content: dict[str, Any], key: str) -> str:
    value = content.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Damaged(f"{key} is no text")
    return value


def finite(value: Any) -> float | None:
    """A number that can be drawn; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if -LARGEST < value < LARGEST else None
