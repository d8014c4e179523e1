"""What a trace holds, as tables of text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

from diglot.tools.flame import duration
from diglot.tools.module_costs import ModuleCost
from diglot.tools.regimes import find_regime
from diglot.tools.trace import Launches, Trace

NAME_WIDTH, KERNEL_WIDTH = 80, 60
MOST_KERNELS = 3  # of an operator, that are named


def launch_table(
    trace: Trace,
    limit: int,
    gb_per_s: float | None = None,
    moved: Mapping[str, float] | None = None,
) -> list[str]:
    """Kernels by scope and by operator as text.

    Args:
        trace: the trace.
        limit: the number of rows.
        gb_per_s: the GPU's peak bandwidth; None: unknown, and no row says what bounds it.
        moved: exact bytes that an operator must move, by name, instead of the trace's.
    """
    what = "kernels" if trace.has_device else "operators that compute"
    found = [*trace.kernels_by_scope().items(), *trace.kernels_by_op().items()]
    body = []
    for name, launches in found[:limit]:
        common = launches.kernels.most_common(MOST_KERNELS)
        kernels = ", ".join(f"{count} {_cut(kernel, KERNEL_WIDTH)}" for kernel, count in common)
        others = len(launches.kernels) - len(common)
        more = f", and {others} others" if others else ""
        cells = [name, str(launches.calls), f"{launches.per_call:.3g}"]
        if gb_per_s is not None:
            cells.append(_bound_by(launches, (moved or {}).get(name, launches.moved), gb_per_s))
        body.append([*cells, kernels + more])
    if gb_per_s is None:
        return _table("<>><", ["scope or operator", "calls", "per call", what], body)
    return _table("<>><<", ["scope or operator", "calls", "per call", "bound by", what], body)


def module_table(costs: Mapping[str, ModuleCost], limit: int, has_device: bool) -> list[str]:
    """Modules as text, in the order in which they were called."""
    where = "GPU" if has_device else "CPU"
    titles = ["module", "calls", f"forward, {where}", "backward", "launches", "allocated"]
    body = [
        [
            name,
            str(cost.calls),
            duration(cost.forward_us),
            duration(cost.backward_us) if cost.backward_us else "–",
            str(cost.launches),
            _bytes(cost.allocated),
        ]
        for name, cost in islice(costs.items(), limit)
    ]
    lines = _table("<>>>>>", titles, body)
    return [*lines, f"and {len(costs) - limit} more"] if len(costs) > limit else lines


def _table(alignment: str, titles: list[str], body: list[list[str]]) -> list[str]:
    """Columns side by side; `alignment` has "<" or ">" for each."""
    rows = [titles, *([_cut(name), *cells] for name, *cells in body)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}"
            for cell, side, width in zip(row, alignment, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _bound_by(launches: Launches, moved: float, gb_per_s: float) -> str:
    """The regime of a call that launches kernels."""
    if launches.device_us == 0:
        return "–"
    calls = launches.calls
    regime = find_regime(
        launches.device_us / calls,
        0 if math.isnan(moved) else moved / calls,
        gb_per_s,
        host_us=launches.host_us / calls,
    )
    # Where the bytes are unknown, only overhead is certain: the host takes longer than the device.
    return "–" if math.isnan(moved) and regime.name != "overhead" else str(regime)


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def _cut(name: str, width: int = NAME_WIDTH) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
