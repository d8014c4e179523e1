"""Results beside older ones: what became slower, beyond noise, or fails now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diglot.bench.harness import OURS, Row
from diglot.bench.reports import TIMES, key_of, label
from diglot.tools.numbers import NOTHING, number
from diglot.tools.table import Column

NOISE = 0.02
SLOWER, FASTER, SAME, BROKEN = "slower", "faster", "within noise", "broken"
# By what two runs are compared, the best that both have: their ceilings drift as their clocks do.
SHARES = ("share_of_product", "share_of_copy")
HEADER: tuple[Column | str, ...] = (
    "case",
    "provider",
    "verdict",
    *map(Column, ("new over old", "old, µs", "new, µs")),
)


@dataclass(frozen=True)
class Change:
    """A row beside the older one of the same measurement.

    Attributes:
        ratio: the new median over the older one. If both runs have a ceiling, of times as shares of
            it. None if the row has no time any more; its verdict is "broken".
    """

    row: Row
    old: Row
    ratio: float | None
    verdict: str

    @property
    def is_regression(self) -> bool:
        """Whether it is a backend of ours that became worse: peers are only told."""
        return self.verdict in (SLOWER, BROKEN) and self.row["provider"] in OURS

    @property
    def cells(self) -> list[str]:
        """Under `HEADER`."""
        times = (number(of.get("time_us")) for of in (self.old, self.row))
        ratio = NOTHING if self.ratio is None else f"{self.ratio:.3f}"
        case = f"{label(self.row)} [{self.row['timer']}]"
        return [case, self.row["provider"], self.verdict, ratio, *times]


def is_noise(a: Row, b: Row) -> bool:
    """Whether two times differ by no more than noise: by 2 %, or with bands that overlap.

    A band is from the 20th to the 80th percentile of a row's samples.
    """
    low, high = sorted((a, b), key=lambda row: row["time_us"])
    return high["time_us"] <= low["time_us"] * (1 + NOISE) or high["p20_us"] <= low["p80_us"]


def compare(rows: Iterable[Row], older: Iterable[Row]) -> list[Change]:
    """Rows beside older ones with a time, where there is one that was measured in the same way."""
    before = {key_of(row): row for row in older if "time_us" in row}
    changes = []
    for row in rows:
        old = before.get(key_of(row))
        if old is not None and "time_us" not in row:
            changes.append(Change(row, old, None, BROKEN))
        elif old is not None and old.get("how") == row.get("how"):
            share = next((name for name in SHARES if name in row and name in old), None)
            now, then = (_in_units_of_ceiling(of, share) for of in (row, old))
            ratio = now["time_us"] / then["time_us"]
            verdict = SAME if is_noise(now, then) else SLOWER if ratio > 1 else FASTER
            changes.append(Change(row, old, ratio, verdict))
    return changes


def _in_units_of_ceiling(row: Row, share: str | None) -> Row:
    """A row's times over that of its ceiling; as they are without one."""
    ceiling_us = 1.0 if share is None else row["time_us"] * row[share]
    return {name: row[name] / ceiling_us for name in TIMES}
