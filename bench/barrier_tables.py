"""The tables of docs/barriers.md, from what bench/barrier_designs printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diglot.bench.markdown import NOTHING, table
from diglot.tools.numbers import size as count

DESIGNS = (
    "diglot",
    "grid.sync()",
    "premature poll",
    "all threads poll",
    "flag apart",
    "clusters of 2 first",
    "clusters of 4 first",
    "clusters of 8 first",
    "text-book",
    "launches",
    "programmatic launches",
)
# Blocks vary at this many threads, and threads at one block per multiprocessor.
THREADS = 256


def _time(row: dict[str, Any] | None) -> str:
    if row is None:
        return NOTHING
    if "time_us" not in row:
        return "wrong result"
    return "does not fit" if row["time_us"] is None else f"{row['time_us']:.2f}"


def _heading(report: dict[str, Any], kind: str) -> list[str]:
    versions = report["versions"]
    samples = sorted({row["samples"] for row in report["rows"] if row.get("samples")})
    return [
        f"{report['gpu']}, driver {versions['driver']}, CUDA {versions['cuda']}, {report['date']}, "
        f"commit {report['commit']}. {kind} Figures are medians of "
        f"{'/'.join(map(str, samples))} interleaved runs. Each variant was verified first.",
        "",
    ]


def designs_table(report: dict[str, Any]) -> str:
    """Microseconds per barrier: a row for each design, a column for each grid."""
    cells: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in report["rows"]:
        if row["part"] == "barrier":
            options = row["options"]
            cells[row["provider"], options["blocks"], options["threads"]] = row
    one_each = report["multiprocessors"]
    grids = sorted(
        {(b, t) for _, b, t in cells if t == THREADS or b == one_each},
        key=lambda grid: (grid[1] != THREADS, grid),
    )
    present = {provider for provider, _, _ in cells}
    body = [
        [name, *(_time(cells.get((name, *grid))) for grid in grids)]
        for name in DESIGNS
        if name in present
    ]
    header = ["µs per barrier, or launch", *(f"{blocks} × {threads}" for blocks, threads in grids)]
    kind = "Columns are blocks × threads of a block."
    return "\n".join([*_heading(report, kind), *table(header, body)])


def _fastest(rows: Iterable[dict[str, Any]]) -> float | None:
    return min((row["time_us"] for row in rows if row.get("time_us")), default=None)


def use_table(report: dict[str, Any]) -> str:
    """Microseconds to reduce an array and rewrite it: a row for each size."""
    sizes: dict[int, dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        if row["part"] == "use":
            per = row["options"].get("blocks per multiprocessor")
            name = row["provider"] if per is None else f"barrier, {per} per multiprocessor"
            sizes.setdefault(row["options"]["bytes"], {})[name] = row
    names = list(dict.fromkeys(name for rows in sizes.values() for name in rows))
    body = []
    for size, rows in sorted(sizes.items()):
        one = _fastest(row for row in rows.values() if row["provider"] == "barrier")
        ratios = []
        for other in ("launches", "programmatic launches"):
            two = _fastest([rows[other]]) if other in rows else None
            ratios.append(NOTHING if one is None or two is None else f"{two / one:.2f}")
        body.append([count(size, "B"), *(_time(rows.get(name)) for name in names), *ratios])
    header = ["array, µs", *names, "launches over barrier", "programmatic over barrier"]
    kind = "Ratios compare with the fastest grid that has a barrier. Above 1, the barrier wins."
    return "\n".join([*_heading(report, kind), *table(header, body)])
