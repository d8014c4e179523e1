"""Finds result files, reads and checks them: what they say is data, and may be anything."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diglot.bench.evidence import ROOT
from diglot.bench.harness import Row
from diglot.bench.reports import ERRORS, KEY, LESSONS, SCHEMA, SPEEDS, TIMES
from diglot.files import json_files
from diglot.pipeline import report as pipeline
from diglot.pipeline.report import STAGES, PipelineReport
from diglot.tools import ceilings

OF_OPS = "results/*/*.json"
LARGEST = 1e30  # far beyond what is measured
ALIKE = 1 + 1e-9
NOT_FINITE = ("inf", "nan")  # which JSON's numbers are not: diglot.files.for_json
# What a file of measurements says beside its rows, and what any file may say.
FACTS = {"op": str, "gpu": str, "commit": str, "date": str, "versions": dict}
MORE_FACTS = {"sources": str, "incomplete": str, "lines": dict}
TEXTS = ("op", "provider", "timer", "direction", "dtype", "workload")
# Files that name their schema, with the kind and the version.
OTHERS = (
    (ceilings.SCHEMA, "ceilings", ceilings.SCHEMA_VERSION),
    (pipeline.SCHEMA, "pipeline", pipeline.SCHEMA_VERSION),
    (LESSONS["schema"], "lessons", LESSONS["schema_version"]),
)
COUNTS = ("passed", "failed", "skipped")  # of a record of tests


class _OtherFile(ValueError):
    """A file that is not about results."""


@dataclass(frozen=True)
class File:
    """A result file; a text is "" where the file does not say it.

    Attributes:
        kind: "benchmark", "tests", "pipeline", "ceilings" or "lessons".
        rows: of a benchmark or of ceilings; each has the keys of `TEXTS`, shape, options and bars.
    """

    path: str
    kind: str
    content: dict[str, Any]
    rows: tuple[Row, ...] = ()

    def __getattr__(self, name: str) -> str:
        """A fact that is a text: the op, the GPU, the date, the commit, the sources' hash, ..."""
        if (FACTS | MORE_FACTS).get(name) is not str:
            raise AttributeError(name)
        return self.content.get(name) or (self.kind if name == "op" else "")

    @property
    def versions(self) -> dict[str, str]:
        """Versions of what ran, by name."""
        found = self.content.get("versions") or {}
        return {name: str(version) for name, version in found.items() if version is not None}

    @property
    def is_of_ops(self) -> bool:
        """Whether it has results of ops, as `diglot bench` measures them."""
        return self.kind == "benchmark" and bool(self.rows) and all(map(_is_of_op, self.rows))


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


def read_reports(path: Path) -> list[dict[str, Any]]:
    """The results of ops in a file, or in the files below a folder.

    Raises:
        ValueError: there is none, or one that cannot be read.
    """
    if not path.is_dir():
        file = read_file(path)
        if not file.is_of_ops:
            raise ValueError(f"{path} has results of another kind than `diglot bench` compares")
        return [file.content]
    found = []
    for inner in json_files(path):
        try:
            found.append(read_file(inner))
        except _OtherFile:
            continue
    if not any(file.is_of_ops for file in found):
        raise ValueError(f"{path} has no results in it")
    return [file.content for file in found if file.is_of_ops]


def committed(pattern: str) -> list[dict[str, Any]]:
    """The source tree's results, of files below bench/; of the pattern `OF_OPS` those of ops.

    Args:
        pattern: one or, separated by spaces, several in this order.
    """
    assert ROOT is not None, "results are committed in the source tree"
    found = []
    for each in pattern.split():
        files = map(read_file, sorted((ROOT / "bench").glob(each)))
        found += [file.content for file in files if each != OF_OPS or file.is_of_ops]
    return found


def read_file(path: Path) -> File:
    """Reads one file.

    Raises:
        ValueError: it cannot be read, is of none of the kinds, or is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no results: it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _OtherFile(f"{path} holds no results: it holds no object")
    kind = _kind(path, content)
    damage = _damage_of_facts(kind, content) or _damage_of_kind(kind, content)
    rows: list[Row] = content["rows"] if kind == "benchmark" else []
    if damage is None and kind == "ceilings":
        names = {"what": "workload", "how": "provider"}
        known = map(asdict, ceilings.parse(content, path).rows)
        rows = [{names.get(key, key): value for key, value in row.items()} for row in known]
    # One row of an op makes it a file of ops: none of the others may lack a key.
    has_keys = kind == "benchmark" and any(map(_is_of_op, rows))
    for number, row in enumerate(rows):
        if damage is None and (found := _damage(row, has_keys)):
            damage = f"row {number}: {found}"
    if damage is not None:
        raise ValueError(f"{path} is damaged: {damage}")
    return File(str(path), kind, content, tuple(map(_whole, rows)))


def _kind(path: Path, content: Mapping[str, Any]) -> str:
    schema, version = content.get("schema"), content.get("schema_version")
    for name, kind, known in OTHERS:
        if schema == name and version != known:
            raise ValueError(f"{path} is of schema version {version!r}, not {known}")
        if schema == name:
            return kind
    if isinstance(schema, int):
        if not isinstance(content.get("rows"), list):
            raise ValueError(f"{path} holds no results: it has no rows")
        if schema != SCHEMA:
            raise ValueError(
                f"{path} has results of schema {schema!r}, and this diglot reads {SCHEMA}"
            )
        for name in FACTS:
            if name not in content:
                raise ValueError(f"{path} holds no results: it does not say the {name}")
        return "benchmark"
    if schema is None and {*COUNTS} <= content.keys():
        return "tests"
    raise _OtherFile(f"{path} holds no results: it has no schema that is known")


def _damage_of_facts(kind: str, content: Mapping[str, Any]) -> str | None:
    for name, type_ in (FACTS | MORE_FACTS).items():
        # What tests measure without a GPU names none.
        may_lack = kind != "benchmark" or name in MORE_FACTS or name == "gpu"
        if not (isinstance(content.get(name), type_) or (may_lack and content.get(name) is None)):
            return f"{name} is no {type_.__name__}"
    for op, ways in (content.get("lines") or {}).items():
        for way, counts in ways.items() if isinstance(ways, dict) else [(None, None)]:
            if not isinstance(counts, dict) or not all(
                _is_count(counts.get(name)) for name in ("own", "with_shared")
            ):
                return f"lines of {op}{f', {way}' if way else ''} are no counts"
    return None


def _damage_of_kind(kind: str, content: dict[str, Any]) -> str | None:
    if kind == "tests":
        wrong = (name for name in COUNTS if not isinstance(content[name], int))
        return next((f"{name} is no number" for name in wrong), None)
    if kind != "pipeline":
        return None
    try:  # whether the run can be drawn
        report = PipelineReport.from_json(json.dumps(content))
        numbers = [report.seconds, report.bytes_in, report.bytes_out, report.chunks]
        chunks = [chunk for timeline in report.timelines for chunk in timeline]
        is_whole = len(report.timelines) == len(report.devices) and all(
            len(chunk) == 2 * len(STAGES) for chunk in chunks
        )
        times = [time for chunk in chunks for time in chunk]
        is_whole = is_whole and all(isinstance(n, (int, float)) for n in (*times, *numbers))
    except (KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None if is_whole else "its timelines are not as they should be"


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


def _is_of_op(row: Any) -> bool:
    return isinstance(row, dict) and all(row.get(name) not in (None, "") for name in KEY)


def _damage(row: Any, is_of_op: bool) -> str | None:
    """What of a row is not as it should be; None where all is that tables and pictures take.

    A row of an op has all that `diglot bench` writes.
    """
    if not isinstance(row, dict):
        return "it is no object"
    kinds = dict.fromkeys((*TEXTS, "how"), str) | {"shape": list, "options": dict, "bars": list}
    for name, kind in kinds.items():
        must_be = is_of_op and name in (*KEY, "bars")
        is_missing = row.get(name) is None and not must_be
        if not is_missing and not isinstance(row.get(name), (kind, tuple)):
            return f"{name} is no {kind.__name__}"
    shape = row.get("shape") or ()
    if not all(map(_is_count, shape)) or (is_of_op and not shape) or math.prod(shape) >= LARGEST:
        return "shape is no list of sizes"
    if not all(map(_is_judged, row.get("bars") or ())):
        return "bars are not as they should be"
    for name, (is_one, may_lack) in FIGURES.items():
        lacks = name not in row or (row[name] is None and (may_lack or not is_of_op))
        if not lacks and not is_one(row[name]):
            return f"{name} is no {_WHAT[is_one]}"
    return _damage_of_times(row) if is_of_op else None


def _damage_of_times(row: Row) -> str | None:
    times = [row[name] for name in TIMES if name in row]
    if len(times) not in (0, len(TIMES)):
        return f"it has not all of {', '.join(TIMES)}"
    # Of equal samples quantiles may differ in the last bit.
    if times and not row["p20_us"] / ALIKE <= row["time_us"] <= row["p80_us"] * ALIKE:
        return "the median is not between the percentiles"
    if times and row.get("verified") is not True:
        return "it has a time, and was not verified"
    return None


def _whole(row: Row) -> Row:
    """A row with all of its keys, and without those that say nothing."""
    said = {str(key): value for key, value in row.items() if value is not None}
    return {**dict.fromkeys(TEXTS, ""), "shape": [], "options": {}, "bars": [], **said}
