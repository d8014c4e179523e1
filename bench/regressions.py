"""Results beside older ones: what became slower, beyond noise, and what is no longer there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from diglot.bench.harness import OURS, Row
from diglot.bench.marks import how_of
from diglot.bench.reports import TIMES, is_ranked, key_of

NOISE = 0.02

SLOWER, FASTER, SAME = "slower", "faster", "same"
BROKEN, NEW, GONE = "broken", "new", "gone"
REGRESSIONS = (SLOWER, BROKEN, GONE)

# What two runs are compared by, the best that both have. Clocks drift from run to run, and a
# ceiling timed in turns with a call drifts with it.
SHARES = ("share_of_product", "share_of_copy")
BY_CEILING, BY_TIME = "time over the ceiling's", "time"


@dataclass(frozen=True)
class Change:
    """One row beside that of an older run.

    Attributes:
        row: the new one; of what is gone the older one.
        old: the older one; None if there was none with a time.
        ratio: the new median over the older one; None where one of them is missing.
        verdict: "slower", "faster" or "same"; "broken" if the older one had a time and the new one
            has none; "new" if only the new run has it, or by another way, such as a mode of the
            compiler; "gone" if only the older one.
        by: what the ratio is of: times as shares of the same run's ceiling, or times.
    """

    row: Row
    old: Row | None
    ratio: float | None
    verdict: str
    by: str | None = None

    @property
    def is_regression(self) -> bool:
        """Whether it is a backend of ours that became worse: peers are only told."""
        return self.verdict in REGRESSIONS and self.row["provider"] in OURS


def is_noise(a: Row, b: Row) -> bool:
    """Whether two times differ by no more than noise: by 2 %, or with bands that overlap.

    A band is from the 20th to the 80th percentile of a row's samples.
    """
    low, high = sorted((a, b), key=lambda row: row["time_us"])
    return high["time_us"] <= low["time_us"] * (1 + NOISE) or high["p20_us"] <= low["p80_us"]


def compare(
    rows: Iterable[Row], older: Iterable[Row], covers: Callable[[Row], bool] = lambda row: True
) -> list[Change]:
    """Each row that has a time, now or then, beside the older one of the same measurement.

    Args:
        covers: whether the new run was to measure what an older row did.
    """
    # Where the older run has a case of an op's own and in the ranking: with the one of its kind.
    before: dict[str, dict[bool, Row]] = {}
    for row in older:
        if "time_us" in row:
            before.setdefault(key_of(row), {})[is_ranked(row)] = row
    changes, seen = [], set()
    for row in rows:
        key = key_of(row)
        seen.add(key)
        found = before.get(key, {})
        old = found.get(is_ranked(row)) or found.get(not is_ranked(row))
        if "time_us" not in row:
            if old is not None:
                changes.append(Change(row, old, None, BROKEN))
        elif old is None or how_of(old) != how_of(row):
            changes.append(Change(row, None, None, NEW))
        else:
            changes.append(_beside(row, old))
    unseen = (old for key, found in before.items() if key not in seen for old in found.values())
    return changes + [Change(old, old, None, GONE) for old in unseen if covers(old)]


def _beside(row: Row, old: Row) -> Change:
    share = next((name for name in SHARES if name in row and name in old), None)
    now, then = _in_units_of_ceiling(row, share), _in_units_of_ceiling(old, share)
    ratio = now["time_us"] / then["time_us"]
    verdict = SAME if is_noise(now, then) else SLOWER if ratio > 1 else FASTER
    return Change(row, old, ratio, verdict, BY_TIME if share is None else BY_CEILING)


def _in_units_of_ceiling(row: Row, share: str | None) -> Row:
    """A row's times over that of its ceiling; as they are without one."""
    ceiling_us = 1.0 if share is None else row["time_us"] * row[share]
    return {name: row[name] / ceiling_us for name in TIMES}
