"""A table that the page can sort: columns, and cells with what they are sorted by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from diglot.tools.report.results import Row
from diglot.tools.report.svg import number


@dataclass(frozen=True)
class Column:
    """A column; `hint` is what a pointer that rests on its title is told."""

    title: str
    is_number: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
        text: what it shows.
        value: what a column of numbers is sorted by; None sorts last.
        kind: "bad", "good" or "best" where it is to stand out.
        share: from 0 to 1, a bar behind the text.
        hint: what a pointer that rests on it is told.
        note: what stands below, smaller.
    """

    text: str
    value: float | None = None
    kind: str = ""
    share: float | None = None
    hint: str = ""
    note: str = ""


@dataclass(frozen=True)
class TableRow:
    """A row; by `op` and `key` (of a provider) the page shows and hides it."""

    cells: Sequence[Cell]
    op: str = ""
    key: str = ""


@dataclass(frozen=True)
class Table:
    """A table with what it shows in a sentence."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[TableRow] = field(default=())


def number_cell(value: float | None, kind: str = "") -> Cell:
    """A number."""
    return Cell(number(value), value, kind)


def time_cell(row: Row) -> Cell:
    """A row's time; where it has none, what came of it: a failure is no wrong result."""
    if row.verified and row.time_us is not None:
        return number_cell(row.time_us)
    if not row.was_run and not row.reason:
        return Cell("not run")
    if row.reason and not row.reason.startswith("wrong result"):
        return Cell("failed", kind="bad", hint=row.reason)
    return Cell("–") if row.verified else Cell("wrong result", kind="bad", hint=row.reason)


def any_cell(value: Any, factor: float = 1.0) -> Cell:
    """Whatever a file holds; a number times a factor."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return number_cell(float(value) * factor)
        except OverflowError:
            return Cell(str(value)[:20])
    return Cell("–" if value is None else str(value))
