"""What a trace holds, as tables of text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from diglot.tools.flame import duration
from diglot.tools.module_costs import ModuleCost
from diglot.tools.trace import Trace

NAME_WIDTH, KERNEL_WIDTH = 80, 60
MOST_KERNELS = 3  # of an operator, that are named


def launch_table(trace: Trace, limit: int) -> list[str]:
    """Kernels by scope and by operator as text."""
    what = "kernels" if trace.has_device else "operators that compute"
    found = [*trace.kernels_by_scope().items(), *trace.kernels_by_op().items()]
    body = []
    for name, launches in found[:limit]:
        common = launches.kernels.most_common(MOST_KERNELS)
        kernels = ", ".join(f"{count} {_cut(kernel, KERNEL_WIDTH)}" for kernel, count in common)
        others = len(launches.kernels) - len(common)
        more = f", and {others} others" if others else ""
        body.append([name, str(launches.calls), f"{launches.per_call:.3g}", kernels + more])
    return _table("<>><", ["scope or operator", "calls", "per call", what], body)


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


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def _cut(name: str, width: int = NAME_WIDTH) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
