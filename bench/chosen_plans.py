"""How good the plans are that calls get: their times against the best that a search finds.

A seed draws shapes that the store has no times of. Each launch is timed under three kinds of plans:
the one that is chosen for it, the planner's own, which a GPU without a store has, and a search's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import geometric_mean
from typing import Any

import torch

from diglot.backends.store import plan_name
from diglot.bench.harness import Case, Row
from diglot.bench.model_bars import Reached
from diglot.bench.models import draw
from diglot.bench.reports import shape_text
from diglot.bench.running import dtype_name
from diglot.tools.tune import choices_of, launches_of, tune_launch

SHAPES = 12
ROUNDS = 4  # of the search: each varies every tunable of the best plan so far

# The bars of a chosen plan: the least geometric mean, and the least share of all. Then the least
# geometric mean of the planner's own plan, which a GPU without a store has.
CHOSEN_MEAN, CHOSEN_WORST = 0.97, {"cuda": 0.90, "triton": 0.88}
OWN_MEAN = 0.92


def shapes(op: str, seed: int) -> list[tuple[tuple[int, int], torch.dtype]]:
    """The shapes and dtypes that a seed draws for an op."""
    return draw(f"plans of {op} {seed}", SHAPES)


def judge(
    op: str, case: Case, call: Callable[[], Any], tell: Callable[[str], None] = lambda _: None
) -> Iterator[Row]:
    """The times of a call's launches, except those that the store has measured."""
    choices = {choice.problem: choice for choice in choices_of(call)}
    for problem, record, arguments in launches_of(call):
        choice = choices.get(problem)
        if choice is None or choice.source == "exact":
            continue
        found = tune_launch(problem, record, arguments, tell, [choice.numbers], ROUNDS)
        best = min(found.times_us, key=lambda name: found.times_us[name])
        yield {
            "op": op,
            "launcher": problem.launcher,
            "direction": case.direction,
            "language": problem.backend,
            "dtype": dtype_name(case.dtype),
            "shape": list(problem.shape),
            "source": choice.source,
            "plans": len(found.times_us),
            "chosen_us": found.times_us.get(plan_name(choice.numbers)),
            "own_us": found.times_us.get(""),
            "best_us": found.times_us[best],
            "best": best,
        }


# --- what came out -------------------------------------------------------------------------------

HEADER = (
    "op", "direction", "language", "launches", "near", "best / chosen", "worst",
    "best / own plan", "worst", "worst case",
)  # fmt: skip


def table(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each op, direction and language, under `HEADER`."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["op"], row["direction"], row["language"]), []).append(row)
    return [[*key, *_figures(of)] for key, of in sorted(groups.items())]


def _figures(rows: Sequence[Row]) -> list[str]:
    worst = min(rows, key=lambda row: _share(row, "chosen_us"))
    figures = [str(len(rows)), str(sum(row["source"] == "near" for row in rows))]
    bars = {
        "chosen_us": (CHOSEN_MEAN, CHOSEN_WORST[worst["language"]]),
        "own_us": (OWN_MEAN, None),
    }
    for name, (mean, least) in bars.items():
        shares = [_share(row, name) for row in rows]
        figures += map(str, (Reached(geometric_mean(shares), mean), Reached(min(shares), least)))
    told = (
        f"{worst['chosen_us'] or 0:.1f} µs, {worst['best_us']:.1f} by {worst['best'] or 'its own'}"
    )
    return [*figures, f"{worst['dtype']} {shape_text(worst)}: {told}"]


def _share(row: Row, name: str) -> float:
    """The best plan's time over another's; a plan without a time counts as a tenth."""
    return row["best_us"] / row[name] if row[name] is not None else 0.1
