"""What other plans cost: our kernels under two ways of choosing plans, side by side.

`diglot bench --plans invariant` times each kernel twice: with the plans that calls get, and within
`use_plans("invariant")`. Plans belong to the process, so both calls are CUDA graphs, and the
harness replays these in turns.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from diglot.backends.aligned_rows import OPS
from diglot.backends.choosing import use_plans
from diglot.bench.harness import OURS, Benchmark, Call, Case, Row, Tensors
from diglot.bench.reports import by_case, shape_text
from diglot.tools import measure

Provider = Callable[[Case, Tensors], "Call | None"]


def named(provider: str, plans: str) -> str:
    """The name of a provider of ours under other plans."""
    return f"{provider}, {plans}"


def providers(plans: str, languages: Collection[str] = ()) -> list[str]:
    """The names of all that is timed, by default of both languages."""
    return [name for each in languages or OURS for name in (each, named(each, plans))]


def beside(benchmark: Benchmark, plans: str) -> Benchmark:
    """A benchmark of our kernels alone, with the plans that calls get and with other ones.

    Raises:
        ValueError: the op's plans do not depend on the mode.
    """
    if benchmark.op not in OPS:
        raise ValueError(f"--plans: {benchmark.op} is none of {', '.join(OPS)}")
    pairs: dict[str, Provider] = {}
    for name in OURS:
        pairs[name] = _captured(benchmark.providers[name], None)
        pairs[named(name, plans)] = _captured(benchmark.providers[name], plans)
    return replace(benchmark, providers=pairs, bars=[])


def _captured(provider: Provider, plans: str | None) -> Provider:
    """A provider whose calls replay a graph that was captured under these plans."""

    def make(case: Case, tensors: Tensors) -> Call | None:
        call = provider(case, tensors)
        if call is None:
            return None
        results: list[Any] = []

        def keep() -> None:
            results[:] = [call()]

        if plans is None:
            replay = measure.captured(keep)
        else:
            with use_plans(plans):
                replay = measure.captured(keep)

        return functools.partial(_replayed, replay, results, call)

    return make


def _replayed(replay: Call, results: list[Any], call: Call) -> Any:
    """A graph's results. The graph reads the operands of `call`, which keeps them."""
    replay()
    return results[0]


# --- what came out -------------------------------------------------------------------------------

HEADER = ("op", "direction", "language", "plans", "cases", "time / usual time", "worst", "case")


def table(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each op, direction, language and way to choose plans, under `HEADER`."""
    groups: dict[tuple[str, ...], list[tuple[float, Row]]] = {}
    for of_case in by_case(rows):
        for name, row in of_case.items():
            language, _, plans = name.partition(", ")
            usual = of_case.get(language, {}).get("time_us")
            if plans and usual and "time_us" in row:
                key = (row["op"], row["direction"], language, plans)
                groups.setdefault(key, []).append((row["time_us"] / usual, row))
    return [[*key, *_figures(of)] for key, of in sorted(groups.items())]


def _figures(ratios: Sequence[tuple[float, Row]]) -> list[str]:
    most, row = max(ratios, key=lambda pair: pair[0])
    mean = statistics.geometric_mean([ratio for ratio, _ in ratios])
    return [str(len(ratios)), f"{mean:.3f}", f"{most:.2f}", f"{row['dtype']} {shape_text(row)}"]
