"""What results reach of their bars: a line for each bar and language, the worst case and the mean.

A bar is judged in each row (running.py). Some also ask for a geometric mean over all of their rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from diglot.bench.harness import OURS, Row
from diglot.bench.model_bars import Reached
from diglot.bench.reports import label


@dataclass(frozen=True)
class Line:
    """All rows of an op and a language that share a bar and its bound.

    Attributes:
        worst: what the row that is furthest from the bound reaches, and that row. It is one without
            a time, if there is any.
        mean: of all values that are speeds; without a bound, if the bar asks for no mean.
    """

    op: str
    bar: str
    language: str
    cases: int
    mean: Reached
    worst: Reached
    row: Row

    @property
    def is_missed(self) -> bool:
        """Whether a case or the mean misses the bar."""
        return self.worst.is_missed or self.mean.is_missed

    @property
    def cells(self) -> list[str]:
        """The line under `HEADER`."""
        case = label(self.row).removeprefix(self.row["op"]).strip()
        head = [self.op, self.bar, self.language, str(self.cases)]
        return [*head, str(self.mean), str(self.worst), case]


HEADER = ("op", "bar", "language", "cases", "geometric mean", "worst", "worst case")


def lines(rows: Iterable[Row]) -> list[Line]:
    """The lines of rows, op by op, bar by bar."""
    found: dict[tuple[Any, ...], list[tuple[Row, Row]]] = {}
    for row in rows:
        for bar in row["bars"] if row["provider"] in OURS else ():
            key = row["op"], bar["name"], row["provider"], bar["bound"], bar.get("mean")
            found.setdefault(key, []).append((bar, row))
    names = list(dict.fromkeys(key[:2] for key in found))
    ordered = sorted(found, key=lambda key: (names.index(key[:2]), OURS.index(key[2])))
    return [_line(key, found[key]) for key in ordered]


def table(rows: Iterable[Row]) -> list[list[str]]:
    """The same as cells under `HEADER`. Missed bars have a ✗."""
    return [line.cells for line in lines(rows)]


def _line(key: tuple[Any, ...], pairs: Sequence[tuple[Row, Row]]) -> Line:
    """The line of bars, each with its row, that have the key in common."""
    op, name, language, bound, mean = key
    values = [bar["value"] for bar, _ in pairs]
    known = [value for value in values if value is not None]
    at_least = all(bar.get("at_least", True) for bar, _ in pairs)
    is_whole = len(known) == len(values)

    def distance(pair: tuple[Row, Row]) -> float:
        value = pair[0]["value"]
        return float("-inf") if value is None else value if at_least else -value

    bar, row = min(pairs, key=distance)
    of_all = statistics.geometric_mean(known) if known and at_least else None
    return Line(
        op,
        name,
        language,
        len(pairs),
        Reached(of_all, mean, lacks=not is_whole),
        Reached(bar["value"], bound, at_least, lacks=not is_whole),
        row,
    )
