"""Reads result files, and checks what is in them: what they say is data, and may be anything."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diglot.bench import reports
from diglot.bench.reports import LARGEST
from diglot.files import json_files
from diglot.pipeline.report import SCHEMA as PIPELINE
from diglot.pipeline.report import SCHEMA_VERSION as PIPELINE_VERSION
from diglot.tools import ceilings


@dataclass(frozen=True)
class Bar:
    """What was to be reached, and whether it was."""

    name: str
    value: float | None
    bound: float
    met: bool

    @property
    def shortfall(self) -> float:
        """How far it is missed, as a share of the bound; without a value, wholly."""
        if self.value is None or not self.bound:
            return 1.0
        return abs(self.value / self.bound - 1)


@dataclass(frozen=True)
class Row:
    """One provider's result of one case.

    Attributes:
        op: what was computed.
        provider: by what.
        timer: how it was timed.
        direction: "" where the file has none, as are dtype and workload.
        dtype: of the tensors.
        shape: of the tensors.
        workload: what was done, of results that are not of an op.
        options: by name.
        bytes: moved; None if the file does not say.
        verified: whether the result was right; None where there is none, or nobody looked.
        time_us: None where it was not, and so has no speed.
        p20_us: 20th percentile.
        p80_us: 80th percentile.
        tb_per_s: bytes over time.
        copy_tb_per_s: of a device copy of as many bytes in the same run.
        share_of_copy: the one as a share of the other.
        bars: what was to be reached.
        others: everything else of the row.
        content: everything, as the file has it.
    """

    op: str
    provider: str
    timer: str
    direction: str
    dtype: str
    shape: tuple[int, ...]
    workload: str
    options: dict[str, Any]
    bytes: float | None
    verified: bool | None
    time_us: float | None
    p20_us: float | None
    p80_us: float | None
    tb_per_s: float | None
    copy_tb_per_s: float | None
    share_of_copy: float | None
    bars: tuple[Bar, ...]
    others: dict[str, Any]
    content: dict[str, Any] = field(repr=False)

    @property
    def is_missed(self) -> bool:
        """Whether a bar is."""
        return any(not bar.met for bar in self.bars)

    @property
    def was_run(self) -> bool:
        """False of what does not go, such as more blocks than the GPU holds: it is not wrong."""
        return self.verified is not None or self.time_us is not None

    @property
    def reason(self) -> str:
        """Why it has no time; "" where the file does not say."""
        return str(self.others.get("reason") or "")


@dataclass(frozen=True)
class File:
    """A result file.

    Attributes:
        path: as it was given.
        kind: "benchmark", "tests", "pipeline" or "ceilings".
        op: what it is about.
        gpu: "" where the file does not say.
        date: likewise.
        commit: likewise.
        sources: the hash of the sources it was measured with, likewise.
        incomplete: how much was measured, of a run that was ended before all was; else "".
        versions: of what ran, by name.
        rows: of a benchmark.
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
    rows: tuple[Row, ...] = ()
    op = _text(content, "op")
    if schema == ceilings.SCHEMA:
        ceilings.parse(content, path)
        kind, op = "ceilings", "ceilings"
    elif schema == PIPELINE:
        if version != PIPELINE_VERSION:
            raise ValueError(f"{path} is of schema version {version!r}, not {PIPELINE_VERSION}")
        kind = "pipeline"
    elif schema is None and {"passed", "failed", "skipped"} <= content.keys():
        kind, op = "tests", "tests"
        for key in ("passed", "failed", "skipped"):
            if not isinstance(content[key], int):
                raise _Damaged(f"{key} is no number")
    elif isinstance(schema, int):
        listed = reports.check(path, content)["rows"]
        kind, rows = "benchmark", tuple(_row(row, number) for number, row in enumerate(listed))
    else:
        raise ValueError(f"{path} is not a results file: it has no schema that is known")
    versions = content.get("versions")
    return File(
        path=str(path),
        kind=kind,
        op=op,
        gpu=_text(content, "gpu"),
        date=_text(content, "date"),
        commit=_text(content, "commit"),
        sources=_text(content, "sources"),
        incomplete=_text(content, "incomplete"),
        versions=(
            {str(name): str(of) for name, of in versions.items() if of is not None}
            if isinstance(versions, dict)
            else {}
        ),
        rows=rows,
        content=content,
    )


class _Damaged(Exception):
    """Something is of another type than it must be."""


_TEXTS = ("op", "provider", "timer", "direction", "dtype", "workload")
_POSITIVE = ("time_us", "p20_us", "p80_us", "tb_per_s", "copy_tb_per_s", "share_of_copy")
_NUMBERS = ("bytes", *_POSITIVE)


def _row(row: dict[str, Any], number: int) -> Row:
    try:
        shape, options, bars = row.get("shape", []), row.get("options", {}), row.get("bars", [])
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            raise _Damaged("shape is no list of integers")
        if any(size < 0 for size in shape) or math.prod(shape) >= LARGEST:
            raise _Damaged("shape is out of range")
        if not isinstance(options, dict) or not isinstance(bars, list):
            raise _Damaged("options or bars are of another type")
        found: dict[str, Any] = {name: _text(row, name) for name in _TEXTS}
        found |= {name: _number(row, name) for name in _NUMBERS}
        known = {*_TEXTS, *_NUMBERS, "shape", "options", "bars", "verified"}
        return Row(
            **found,
            shape=tuple(shape),
            options=options,
            verified=None if row.get("verified") is None else bool(row["verified"]),
            bars=tuple(map(_bar, bars)),
            others={str(key): value for key, value in row.items() if key not in known},
            content=row,
        )
    except _Damaged as error:
        raise _Damaged(f"row {number}: {error}") from None


def _bar(bar: Any) -> Bar:
    if not isinstance(bar, dict):
        raise _Damaged("a bar is no object")
    bound = _number(bar, "bound")
    if bound is None:
        raise _Damaged("a bar has no bound")
    return Bar(_text(bar, "name"), _number(bar, "value"), bound, bar.get("met") is True)


def _text(content: dict[str, Any], key: str) -> str:
    value = content.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Damaged(f"{key} is no text")
    return value


def _number(content: dict[str, Any], key: str) -> float | None:
    """None also for what is infinite or NaN: nothing can be drawn of it."""
    value = content.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Damaged(f"{key} is no number")
    found = finite(value)
    if found is not None and found <= 0 and key in _POSITIVE:
        raise _Damaged(f"{key} is not positive")
    return found


def finite(value: Any) -> float | None:
    """A number that can be drawn; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if -LARGEST < value < LARGEST else None
