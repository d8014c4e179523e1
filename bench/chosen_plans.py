"""How good the plans are that calls get: their times against the best that a search finds.

A seed draws shapes that the store has no times of. Each launch is timed under three kinds of plans:
the one that is chosen for it, the planner's own, which a GPU without a store has, and a search's.
The fastest plans of the search are timed again beside the other two: the least of many short
measurements is too short.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

from diglot.backends.choosing import use_plans
from diglot.backends.runs import run
from diglot.backends.store import plan_name, plan_numbers
from diglot.bench.harness import Benchmark, Case, Row
from diglot.bench.linear import layers
from diglot.bench.model_bars import Reached
from diglot.bench.models import LAYER_SIZES, draw, kernels_hash, sizes_of
from diglot.bench.reports import make_report, save, shape_text
from diglot.bench.running import dtype_name
from diglot.tools import measure
from diglot.tools.tune import choices_of, launches_of, tune_launch

SHAPES = 12
ROUNDS = 4  # of the search: each varies every tunable of the best plan so far
# The number of its fastest plans that are timed again, and milliseconds of device time for each.
FASTEST, AGAIN_MS = 5, 60

# The bars of a chosen plan: the least geometric mean, and the least share of all. Then the least
# geometric mean of the planner's own plan, which a GPU without a store has.
CHOSEN_MEAN, CHOSEN_WORST = 0.97, {"cuda": 0.90, "triton": 0.88}
OWN_MEAN = 0.92


def shapes(benchmark: Benchmark, seed: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """The shapes and dtypes that a seed draws for an op: of products, layers in bfloat16."""
    if sizes_of(benchmark) == LAYER_SIZES:
        return [(shape, torch.bfloat16) for shape in layers(seed, SHAPES)]
    return [*draw(f"plans of {benchmark.op} {seed}", SHAPES)]


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
        chosen = plan_name(choice.numbers)
        names = sorted(found.times_us, key=lambda name: found.times_us[name])[:FASTEST]
        again = dict.fromkeys([*names, *({"", chosen} & found.times_us.keys())])
        us = _timed(
            functools.partial(run, record.backend, record.op, record.launcher, *arguments), again
        )
        best = min(us, key=lambda name: us[name])
        yield {
            "op": op,
            "launcher": problem.launcher,
            "direction": case.direction,
            "language": problem.backend,
            "dtype": dtype_name(case.dtype),
            "case": list(case.shape),
            "shape": list(problem.shape),
            "source": choice.source,
            "plans": len(found.times_us),
            "chosen_us": us.get(chosen),
            "own_us": us.get(""),
            "best_us": us[best],
            "best": best,
        }


def _timed(launch: Callable[[], Any], names: Iterable[str]) -> dict[str, float]:
    """Microseconds of a launch under plans, by their names."""
    graphs = {}
    for name in names:
        with use_plans(plan_numbers(name)):
            graphs[name] = measure.captured(launch)
    times = measure.interleaved(graphs, budget_ms=AGAIN_MS)
    return {name: timing.median_us for name, timing in times.items()}


class Judged:
    """The rows of an op, of a seed; with a folder they are kept there as they come.

    Attributes:
        rows: those of an earlier run of the same seed, kernels, plans and versions; then new ones.
    """

    def __init__(self, op: str, seed: int, folder: Path | None) -> None:
        self.op, self.seed = op, seed
        self.kernels = kernels_hash(op)
        self.path = None if folder is None else folder / f"{op}.json"
        self.rows: list[Row] = []
        if self.path is not None and self.path.exists():
            known = json.loads(self.path.read_text())
            if known.get("seed") == seed:
                self.rows = [row for row in known["rows"] if row.get("kernels") == self.kernels]

    def has(self, case: Case, language: str) -> bool:
        """Whether a call has been judged."""
        names = ("direction", "dtype", "case", "language")
        of = [case.direction, dtype_name(case.dtype), list(case.shape), language]
        return any([row[name] for name in names] == of for row in self.rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Adds the rows of a call."""
        self.rows += [row | {"kernels": self.kernels} for row in rows]
        if self.path is not None:
            save(make_report(self.op, self.rows, seed=self.seed), self.path)


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
