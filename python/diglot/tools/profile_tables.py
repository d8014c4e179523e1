"""What a trace holds, as tables of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from diglot.tools.flame import duration
from diglot.tools.trace import Row, Trace

NAME_WIDTH, KERNEL_WIDTH = 80, 60


def span_table(rows: Iterable[Row], limit: int, has_device: bool) -> list[str]:
    """Rows as text."""
    columns: Mapping[str, Callable[[Row], str]] = {
        **({"GPU": lambda r: duration(r.device_us)} if has_device else {}),
        **({"GPU self": lambda r: duration(r.device_self_us)} if has_device else {}),
        "CPU": lambda r: "–" if r.is_kernel else duration(r.cpu_us),
        "CPU self": lambda r: "–" if r.is_kernel else duration(r.cpu_self_us),
        "allocated": lambda r: _bytes(r.allocated),
        "calls": lambda r: str(r.calls),
    }
    rows = list(rows)
    names = [_cut(f"{r.name} {r.shapes}".strip()) for r in rows[:limit]]
    width = max([4, *map(len, names)])
    lines = [f"{'name':{width}}" + "".join(f"  {title:>9}" for title in columns)]
    for name, row in zip(names, rows, strict=False):
        lines.append(f"{name:{width}}" + "".join(f"  {cell(row):>9}" for cell in columns.values()))
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


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def _cut(name: str, width: int = NAME_WIDTH) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
