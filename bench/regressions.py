"""Results beside older ones: what became slower, beyond noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diglot.bench.harness import Row
from diglot.bench.reports import key_of

NOISE = 0.02

SLOWER, FASTER, SAME, BROKEN, NEW = "slower", "faster", "same", "broken", "new"
REGRESSIONS = (SLOWER, BROKEN)


@dataclass(frozen=True)
class Change:
    """One row beside that of an older run.

    Attributes:
        row: the new one.
        old: the older one; None if there was none with a time.
        ratio: the new median over the older one; None where one of them is missing.
        verdict: "slower", "faster" or "same"; "broken" if the older one had a time and the new one
            has none; "new" if only the new one has.
    """

    row: Row
    old: Row | None
    ratio: float | None
    verdict: str

    @property
    def is_regression(self) -> bool:
        return self.verdict in REGRESSIONS


def is_noise(a: Row, b: Row) -> bool:
    """Whether two times differ by no more than noise: by 2 %, or with bands that overlap.

    A band is from the 20th to the 80th percentile of a row's samples.
    """
    low, high = sorted((a, b), key=lambda row: row["time_us"])
    return high["time_us"] <= low["time_us"] * (1 + NOISE) or high["p20_us"] <= low["p80_us"]


def compare(rows: Iterable[Row], older: Iterable[Row]) -> list[Change]:
    """Each row that has a time, now or then, beside the older one of the same measurement."""
    before = {key_of(row): row for row in older if "time_us" in row}
    changes = []
    for row in rows:
        old = before.get(key_of(row))
        if "time_us" not in row:
            if old is not None:
                changes.append(Change(row, old, None, BROKEN))
        elif old is None:
            changes.append(Change(row, None, None, NEW))
        else:
            ratio = row["time_us"] / old["time_us"]
            verdict = SAME if is_noise(row, old) else SLOWER if ratio > 1 else FASTER
            changes.append(Change(row, old, ratio, verdict))
    return changes
