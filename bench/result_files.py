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
    damage = _damage_of_facts(kind, content)
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
        if not isinstance(ways, dict):
            return f"lines of {op} are no counts"
        for way, of in ways.items():
            counts = of if isinstance(of, dict) else {}
            if not all(_is_count(counts.get(name)) for name in ("own", "with_shared")):
                return f"lines of {op}, {way} are no counts"
    if kind == "tests":
        wrong = (name for name in COUNTS if not isinstance(content[name], int))
        return next((f"{name} is no number" for name in wrong), None)
    return _damage_of_pipeline(content) if kind == "pipeline" else None


def _damage_of_pipeline(content: Mapping[str, Any]) -> str | None:
    try:  # whether the run can be drawn
        report = PipelineReport.from_json(json.dumps(content))
        chunks = [chunk for timeline in report.timelines for chunk in timeline]
        numbers = [report.seconds, report.bytes_in, report.bytes_out, report.chunks]
        is_whole = (
            len(report.timelines) == len(report.devices)
            and all(len(chunk) == 2 * len(STAGES) for chunk in chunks)
            and all(isinstance(n, (int, float)) for of in (*chunks, numbers) for n in of)
        )
    except (KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None if is_whole else "its timelines are not as they should be"


def _is_finite(value: Any) -> bool:
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_one and -LARGEST < value < LARGEST


def _is_number(value: Any) -> bool:
    return _is_finite(value) and value >= 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_shape(value: Any) -> bool:
    is_one = isinstance(value, (list, tuple)) and all(map(_is_count, value))
    return is_one and math.prod(value) < LARGEST


def _is_bar(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and _is_number(value.get("bound"))
        and (value.get("value") is None or _is_finite(value["value"]))
        and isinstance(value.get("met"), bool)
    )


# What an entry of a row is, and how that is told. Errors may be infinite or NaN.
Check = tuple[str, Callable[[Any], bool]]
TEXT: Check = ("str", lambda value: isinstance(value, str))
POSITIVE: Check = ("positive number", lambda value: _is_number(value) and value > 0)
NUMBER: Check = ("number from 0 on", _is_number)
ERROR: Check = (
    "error",
    lambda of: _is_number(of) or of in NOT_FINITE or of == math.inf or of != of,
)
ENTRIES: dict[str, Check] = {
    **dict.fromkeys((*TEXTS, "how"), TEXT),
    "shape": ("list of sizes", _is_shape),
    "options": ("dict", lambda value: isinstance(value, dict)),
    "bars": ("list of bars", lambda value: isinstance(value, list) and all(map(_is_bar, value))),
    **dict.fromkeys((*TIMES, *SPEEDS, "host_us"), POSITIVE),
    **dict.fromkeys(ERRORS, ERROR),
    **dict.fromkeys(("bytes", "flops", "samples", "peak_bytes", "first_call_ms"), NUMBER),
    **dict.fromkeys(("launches", "exposed"), ("count", _is_count)),
}
# Entries of a row of an op that may be None, such as where an instrument found none.
OPTIONAL = ("how", "workload", "host_us", "peak_bytes", "launches", "exposed")


def _is_of_op(row: Any) -> bool:
    return isinstance(row, dict) and all(row.get(name) not in (None, "") for name in KEY)


def _damage(row: Any, is_of_op: bool) -> str | None:
    """What of a row is not as it should be; None where all is that tables and pictures take.

    A row of an op has all that `diglot bench` writes.
    """
    if not isinstance(row, dict):
        return "it is no object"
    needed = (*KEY, "bars") if is_of_op else ()
    for name, (what, is_one) in ENTRIES.items():
        may_be_none = name in OPTIONAL or not is_of_op
        lacks = name not in row or (row[name] is None and may_be_none)
        if (name in needed or not lacks) and not is_one(row.get(name)):
            return f"{name} is no {what}"
    if not is_of_op:
        return None
    times = [row[name] for name in TIMES if row.get(name) is not None]
    if not row["shape"]:
        return "shape is no list of sizes"
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
