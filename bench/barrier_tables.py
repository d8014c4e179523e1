"""The tables of docs/barriers.md, from what bench/barrier_designs printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diglot.bench.markdown import NOTHING, pivot, table
from diglot.tools.numbers import size as count

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
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in report["rows"]:
        blocks, threads = (row["options"].get(name) for name in ("blocks", "threads"))
        if row["part"] == "barrier" and (threads == THREADS or blocks == report["multiprocessors"]):
            found.setdefault((blocks, threads), []).append(row)
    grids = sorted(found, key=lambda grid: (grid[1] != THREADS, grid))
    cells = {
        (row["provider"], f"{grid[0]} × {grid[1]}"): _time(row)
        for grid in grids
        for row in found[grid]
    }
    kind = "Columns are blocks × threads of a block."
    return "\n".join([*_heading(report, kind), *pivot("µs per barrier, or launch", cells)])


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
