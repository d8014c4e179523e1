"""Tables that the page can sort: columns, and cells with what they are sorted by."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from diglot.bench.harness import Row
from diglot.tools.numbers import number


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

    @property
    def sort(self) -> float | None:
        """The value, where the text does not begin with it: the page's script reads that."""
        with contextlib.suppress(ValueError, IndexError):
            begin = float(self.text.replace(",", "").split()[0])
            if self.value is None or abs(begin - self.value) <= max(0.005, abs(self.value) / 100):
                return None
        return self.value


@dataclass(frozen=True)
class TableRow:
    """A row; by `op` and `provider` the page shows and hides it."""

    cells: Sequence[Cell]
    op: str = ""
    provider: str = ""


@dataclass(frozen=True)
class Table:
    """A table with what it shows in a sentence."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[TableRow] = field(default=())


def number_cell(value: float | None, kind: str = "") -> Cell:
    """A number."""
    return Cell(number(value), value, kind)


def was_run(row: Row) -> bool:
    """False of what does not go, such as more blocks than the GPU holds: it is not wrong."""
    return row.get("verified") is not None or "time_us" in row


def time_cell(row: Row) -> Cell:
    """A row's time; where it has none, what came of it: a failure is no wrong result."""
    reason = str(row.get("reason") or "")
    if row.get("verified") and "time_us" in row:
        return number_cell(row["time_us"])
    if not was_run(row) and not reason:
        return Cell("not run")
    if reason and not reason.startswith("wrong result"):
        return Cell("failed", kind="bad", hint=reason)
    return Cell("–") if row.get("verified") else Cell("wrong result", kind="bad", hint=reason)


def is_missed(row: Row) -> bool:
    """Whether a bar is."""
    return not all(bar["met"] for bar in row["bars"])


def any_cell(value: Any, factor: float = 1.0) -> Cell:
    """Whatever a file holds; a number times a factor."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return number_cell(float(value) * factor)
        return Cell(str(value)[:20])
    return Cell("–" if value is None else str(value))
