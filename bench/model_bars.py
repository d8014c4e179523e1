"""The bars of ops over the shapes of published models, and a table that marks missed ones.

A bar speaks of all cases that an op has in a direction and a language. It is about the best peer's
time over ours, or about our share of a copy's speed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from diglot.bench import models
from diglot.bench.harness import OURS, Row
from diglot.tools.numbers import NOTHING

MEGABYTES = 1 << 20
LARGE, VERY_LARGE = 32 * MEGABYTES, 96 * MEGABYTES  # of an input
SHORT_ROW, LONG_ROW = 256, 65536
SLOW = 0.95  # of the best peer's speed

SOFTMAX, FLAT = ("softmax", "log_softmax"), ("add", "gelu", "dropout")
NORMS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
# The least geometric mean of the best peer's time over ours, in CUDA C++ and in Triton.
MEANS: dict[tuple[str, str], tuple[float, float]] = {
    **{(op, "forward"): (1.03, 1.02) for op in (*SOFTMAX, "layer_norm")},
    **{(op, "forward"): (0.99, 0.98) for op in ("rms_norm", *FLAT)},
    **{(op, "backward"): (0.99, 0.98) for op in (*SOFTMAX, *FLAT)},
    **{(op, "backward"): (1.30, 1.30) for op in ("layer_norm", "add_layer_norm")},
    **{(op, "backward"): (1.10, 1.10) for op in ("rms_norm", "add_rms_norm")},
}
WORST = (0.85, 0.80)
MOST_SLOW = (0.03, 0.05)  # the share of cases below SLOW
MOST_SMALL = (1.05, 1.10)  # the geometric mean of our time over the best peer's, of small arrays


def input_bytes(row: Row) -> int:
    """The bytes of a case's input."""
    return math.prod(row["shape"]) * getattr(torch, row["dtype"]).itemsize


def copy_bar(row: Row) -> float | None:
    """The least share of a copy's speed that a case must reach; None: no bar speaks of it."""
    size, length = input_bytes(row), row["shape"][-1]
    if size < LARGE or length < SHORT_ROW:
        return None
    if row["direction"] == "backward":
        is_norm = row["op"] in NORMS
        return None if not is_norm else 0.87 if size > VERY_LARGE else 0.80
    return 0.88 if row["provider"] == "triton" and length > LONG_ROW else 0.92


@dataclass(frozen=True)
class Reached:
    """What all cases reach of a bar.

    Attributes:
        value: a ratio, or a share of the cases; None where no case tells.
        bound: the bar; None: no bar is set.
        lacks: whether a case has no value, so that the bar is missed whatever the others reach.
    """

    value: float | None
    bound: float | None
    at_least: bool = True
    is_share: bool = False
    lacks: bool = False

    @property
    def is_missed(self) -> bool:
        """Whether there is a bar, and the value is on its wrong side, or a case has none."""
        if self.bound is None or (self.value is None and not self.lacks):
            return False
        if self.lacks or self.value is None:
            return True
        return self.value < self.bound if self.at_least else self.value > self.bound

    def __str__(self) -> str:
        if self.value is None and not self.is_missed:
            return NOTHING
        if self.value is None:
            said = "no time"
        else:
            said = f"{100 * self.value:.0f} %" if self.is_share else f"{self.value:.3f}"
        if self.bound is not None:
            bound = f"{100 * self.bound:g} %" if self.is_share else f"{self.bound:g}"
            said += f" ({'≥' if self.at_least else '≤'} {bound})"
        return f"{said} ✗" if self.is_missed else said


def _mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def reached(rows: Sequence[Row], ratios: Sequence[models.Ratio]) -> list[Reached]:
    """What an op's cases in one direction and language reach, in the order of `HEADER`."""
    first = rows[0]
    language = OURS.index(first["provider"])
    bound = MEANS.get((first["op"], first["direction"]))
    values = [ratio.value for ratio in ratios]
    slow = sum(value < SLOW for value in values) / len(values) if values else None
    small = [1 / r.value for r in ratios if input_bytes(r.row) <= models.SMALL_BYTES]
    asked = [(row["share_of_copy"], copy_bar(row)) for row in rows if row.get("share_of_copy")]
    below = [share < least for share, least in asked if least is not None]
    return [
        Reached(_mean(values), None if bound is None else bound[language]),
        Reached(min(values, default=None), WORST[language]),
        Reached(slow, MOST_SLOW[language], at_least=False, is_share=True),
        Reached(_mean(small), MOST_SMALL[language], at_least=False),
        Reached(sum(below) / len(below) if below else None, 0.0, at_least=False, is_share=True),
        Reached(statistics.median([share for share, _ in asked]) if asked else None, None),
    ]


HEADER = (
    "op", "direction", "language", "geometric mean", "worst", "below 0.95",
    "≤ 4 MB: time over the best peer's", "large arrays below their share of a copy",
    "share of a copy, median",
)  # fmt: skip


def table(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each op, direction and language, under `HEADER`. Missed bars have a ✗."""
    groups = models.groups(rows)
    return [[*key, *map(str, reached(*of))] for key, of in sorted(groups.items())]
