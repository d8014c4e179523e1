"""What a trace holds, as tables of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from diglot.tools.flame import duration
from diglot.tools.regimes import find_regime
from diglot.tools.trace import Row, Trace

NAME_WIDTH, KERNEL_WIDTH = 80, 60


def span_table(
    rows: Iterable[Row],
    limit: int,
    has_device: bool,
    gb_per_s: float | None = None,
    moved: Mapping[str, float] | None = None,
) -> list[str]:
    """Rows as text.

    Args:
        rows: what ran.
        limit: how many are shown.
        has_device: whether a GPU's work is among them.
        gb_per_s: the GPU's peak bandwidth; None: unknown, and no row says what bounds it.
        moved: bytes that rows must move, by name, where more is known of it than rows say.
    """
    columns: dict[str, Callable[[Row], str]] = {
        **({"GPU": lambda r: duration(r.device_us)} if has_device else {}),
        **({"GPU self": lambda r: duration(r.device_self_us)} if has_device else {}),
        "CPU": lambda r: "–" if r.is_kernel else duration(r.cpu_us),
        "CPU self": lambda r: "–" if r.is_kernel else duration(r.cpu_self_us),
        "allocated": lambda r: _bytes(r.allocated),
        "calls": lambda r: str(r.calls),
    }
    if has_device and gb_per_s is not None:
        columns["bound by"] = lambda r: _bound_by(r, (moved or {}).get(r.name, r.moved), gb_per_s)
    rows = list(rows)
    names = [_cut(f"{r.name} {r.shapes}".strip()) for r in rows[:limit]]
    width = max([4, *map(len, names)])
    lines = [f"{'name':{width}}" + "".join(f"  {title:>{_width(title)}}" for title in columns)]
    for name, row in zip(names, rows, strict=False):
        cells = (f"  {cell(row):>{_width(title)}}" for title, cell in columns.items())
        lines.append(f"{name:{width}}" + "".join(cells))
    if len(rows) > limit:
        lines.append(f"and {len(rows) - limit} more")
    return lines


def launch_table(trace: Trace, limit: int) -> list[str]:
    """Kernels by scope and by operator as text."""
    what = "kernels" if trace.has_device else "operators that compute"
    found = [*trace.kernels_by_scope().items(), *trace.kernels_by_op().items()]
    names = [_cut(name) for name, _ in found[:limit]]
    width = max([16, *map(len, names)])
    lines = [f"{'scope or operator':{width}}  {'calls':>6}  {'per call':>8}  {what}"]
    for name, (_, of) in zip(names, found, strict=False):
        kernels = ", ".join(f"{n} {_cut(k, KERNEL_WIDTH)}" for k, n in of.kernels.most_common(3))
        more = f", and {len(of.kernels) - 3} others" if len(of.kernels) > 3 else ""
        lines.append(f"{name:{width}}  {of.calls:>6}  {of.per_call:>8.3g}  {kernels}{more}")
    return lines


def _width(title: str) -> int:
    return 14 if title == "bound by" else 9


def _bound_by(row: Row, moved: float, gb_per_s: float) -> str:
    """The regime of what launches kernels by itself."""
    if row.is_kernel or row.device_self_us == 0:
        return "–"
    regime = find_regime(
        row.device_self_us / row.calls,
        0 if math.isnan(moved) else moved / row.calls,
        gb_per_s,
        host_us=row.cpu_us / row.calls,
    )
    # Of unknown bytes only that is certain: that the host takes longer than all of the device.
    return "–" if math.isnan(moved) and regime.name != "overhead" else str(regime)


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def _cut(name: str, width: int = NAME_WIDTH) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
