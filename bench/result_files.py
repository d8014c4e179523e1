"""Finds result files, reads and checks them: what they say is data, and may be anything."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diglot.bench.evidence import ROOT
from diglot.bench.harness import Row
from diglot.bench.reports import ERRORS, KEY, SCHEMA, SPEEDS, TIMES
from diglot.files import json_files
from diglot.tools import ceilings

LARGEST = 1e30  # far beyond all measurements
ALIKE = 1 + 1e-9
NOT_FINITE = ("inf", "nan")  # which JSON's numbers are not: diglot.files.for_json
# What a file of measurements says beside its rows, and what any file may say.
FACTS = {"op": str, "gpu": str, "commit": str, "date": str, "versions": dict}
MORE_FACTS = {"sources": str, "incomplete": str, "lines": dict}
TEXTS = ("op", "provider", "timer", "direction", "dtype", "workload")
COUNTS = ("passed", "failed", "skipped")  # of a record of tests


class OtherFile(ValueError):
    """A file that is not about results, or about other ones than those of ops."""


@dataclass(frozen=True)
class File:
    """A result file; a text is "" where the file does not say it.

    Attributes:
        kind: "ops", "tests" or "ceilings".
        rows: of ops; each has the keys of `TEXTS`, shape, options and bars.
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


@dataclass(frozen=True)
class Results:
    """The files that were read, and those that were left out: a path and the reason."""

    files: tuple[File, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def read(paths: Iterable[str | Path], skipped: type[ValueError] = ValueError) -> Results:
    """Reads result files; of folders every .json file below them that is one.

    Args:
        skipped: the errors for which a file in a folder is left out.

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
            except skipped as error:
                left_out[str(inner)] = str(error)
        if not found:
            reasons = "".join(f"; {reason}" for reason in list(left_out.values())[:1])
            raise ValueError(f"{path} has no result files{reasons}")
    return Results(tuple(files.values()), tuple(left_out.items()))


def read_reports(path: Path) -> list[dict[str, Any]]:
    """The results of ops in a file, or in the files below a folder.

    Raises:
        ValueError: there are no results, or a file cannot be read.
    """
    found = [file.content for file in read([path], OtherFile).files if file.kind == "ops"]
    if not found:
        raise ValueError(f"{path} has results of another kind than `diglot bench` compares")
    return found


def committed(pattern: str) -> list[dict[str, Any]]:
    """The source tree's results, of files below bench/.

    They are in the order of GPUs, newest first, then in that of files.

    Args:
        pattern: one or, separated by spaces, several in this order.
    """
    assert ROOT is not None, "results are committed in the source tree"
    paths = [path for each in pattern.split() for path in sorted((ROOT / "bench").glob(each))]
    found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in paths]
    return sorted(found, key=lambda content: content["gpu"], reverse=True)


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
    kind = _kind(path, content)
    rows: list[Row] = content["rows"] if kind == "ops" else []
    damage = _damage_of_facts(kind, content)
    if kind == "ceilings":
        ceilings.parse(content, path)
    for number, row in enumerate(rows):
        if damage is None and (found := _damage(row)):
            damage = f"row {number}: {found}"
    if damage is not None:
        raise ValueError(f"{path} is damaged: {damage}")
    return File(str(path), kind, content, tuple(map(_whole, rows)))


def _kind(path: Path, content: Any) -> str:
    if not isinstance(content, dict):
        raise OtherFile(f"{path} holds no results: it holds no object")
    schema = content.get("schema")
    if schema == ceilings.SCHEMA:
        return "ceilings"
    if schema is None and {*COUNTS} <= content.keys():
        return "tests"
    if not isinstance(schema, int):
        raise OtherFile(f"{path} has results of another kind, or none")
    rows = content.get("rows")
    if not isinstance(rows, list):
        raise ValueError(f"{path} holds no results: it has no rows")
    if schema != SCHEMA:
        raise ValueError(f"{path} has results of schema {schema!r}, and this diglot reads {SCHEMA}")
    for name in FACTS:
        if name not in content:
            raise ValueError(f"{path} holds no results: it does not say the {name}")
    # One row of an op makes it a file of ops: none of the others may lack a key.
    if rows and not any(map(_is_of_op, rows)) and all(isinstance(row, dict) for row in rows):
        raise OtherFile(f"{path} has results of another kind than those of ops")
    return "ops"


def _damage_of_facts(kind: str, content: Mapping[str, Any]) -> str | None:
    for name, type_ in (FACTS | MORE_FACTS).items():
        # What tests measure without a GPU names none.
        may_lack = kind != "ops" or name in MORE_FACTS or name == "gpu"
        if not (isinstance(content.get(name), type_) or (may_lack and content.get(name) is None)):
            return f"{name} is no {type_.__name__}"
    for op, ways in (content.get("lines") or {}).items():
        counts = list(ways.values()) if isinstance(ways, dict) else [None]
        if not all(isinstance(of, dict) and "own" in of for of in counts):
            return f"lines of {op} are no counts"
    wrong = (name for name in COUNTS if kind == "tests" and not isinstance(content[name], int))
    return next((f"{name} is no number" for name in wrong), None)


def _is_real(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_real(value) and -LARGEST < value < LARGEST


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
        and (value.get("mean") is None or _is_number(value["mean"]))
    )


# What an entry of a row is, and how that is told. Errors may be infinite or NaN, or as large as an
# error beside an ulp of almost nothing.
Check = tuple[str, Callable[[Any], bool]]
TEXT: Check = ("str", lambda value: isinstance(value, str))
POSITIVE: Check = ("positive number", lambda value: _is_number(value) and value > 0)
NUMBER: Check = ("number from 0 on", _is_number)
ERROR: Check = (
    "error",
    lambda of: of in NOT_FINITE or (_is_real(of) and not of < 0),
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


def _damage(row: Any) -> str | None:
    """What of an op's row is not as `diglot bench` writes it; None where all is."""
    if not isinstance(row, dict):
        return "it is no object"
    for name, (what, is_one) in ENTRIES.items():
        lacks = name not in row or (row[name] is None and name in OPTIONAL)
        if (name in (*KEY, "bars") or not lacks) and not is_one(row.get(name)):
            return f"{name} is no {what}"
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
