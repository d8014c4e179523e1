"""What a trace holds, as tables of text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

from diglot.tools.module_costs import ModuleCost
from diglot.tools.numbers import NOTHING, duration, size
from diglot.tools.regimes import find_regime
from diglot.tools.table import Column, Table
from diglot.tools.trace import Launches, Trace

NAME_WIDTH, KERNEL_WIDTH = 80, 60
MOST_KERNELS = 3  # of an operator, that are named


def launch_table(
    trace: Trace,
    limit: int,
    gb_per_s: float | None = None,
    moved: Mapping[str, float] | None = None,
) -> str:
    """Kernels by scope and by operator as text.

    Args:
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
        cells = [_cut(name), str(launches.calls), f"{launches.per_call:.3g}"]
        if gb_per_s is not None:
            cells.append(_bound_by(launches, (moved or {}).get(name, launches.moved), gb_per_s))
        body.append([*cells, kernels + more])
    bound = [] if gb_per_s is None else ["bound by"]
    return str(
        Table(["scope or operator", Column("calls"), Column("per call"), *bound, what], body)
    )


def module_table(costs: Mapping[str, ModuleCost], limit: int, has_device: bool) -> str:
    """Modules as text, in the order in which they were called."""
    where = "GPU" if has_device else "CPU"
    titles = ("calls", f"forward, {where}", "backward", "launches", "allocated")
    body = [
        [
            _cut(name),
            str(cost.calls),
            duration(cost.forward_us / 1e6),
            duration(cost.backward_us / 1e6) if cost.backward_us else NOTHING,
            str(cost.launches),
            size(cost.allocated, "B"),
        ]
        for name, cost in islice(costs.items(), limit)
    ]
    more = f"\nand {len(costs) - limit} more" if len(costs) > limit else ""
    return f"{Table(['module', *map(Column, titles)], body)}{more}"


def _bound_by(launches: Launches, moved: float, gb_per_s: float) -> str:
    """The regime of a call that launches kernels."""
    if launches.device_us == 0:
        return NOTHING
    calls = launches.calls
    regime = find_regime(
        launches.device_us / calls,
        0 if math.isnan(moved) else moved / calls,
        gb_per_s,
        host_us=launches.host_us / calls,
    )
    # Where the bytes are unknown, only overhead is certain: the host takes longer than the device.
    return NOTHING if math.isnan(moved) and regime.name != "overhead" else str(regime)


def _cut(name: str, width: int = NAME_WIDTH) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
