"""The tables of docs/graphs.md, from the committed results of bench/graphs.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diglot.bench.harness import Row
from diglot.bench.markdown import NOTHING, table
from diglot.bench.reports import measured_on

MIB = 1 << 20


def graphs_markdown(reports: Sequence[Mapping[str, Any]]) -> str:
    """The bars with their values, and every time and size."""
    lines: list[str] = []
    for report in reports:
        rows = report["rows"]
        lines += [
            f"{measured_on([report])}. Times are medians; results were checked in that run.",
            "",
            *table(["workload", "way", "figure", "bar", "reached", ""], _bars(rows)),
            *table(["workload", "way", "µs", "p99, µs", "memory"], map(_figures, rows)),
        ]
        lines += [f"- {row['workload']}: {row['reason']}" for row in rows if "reason" in row]
    return "\n".join(lines)


def _bars(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        for bar in row["bars"]:
            yield [
                row["workload"],
                row["provider"],
                bar["name"],
                f"{'≥' if bar['at_least'] else '≤'} {bar['bound']:g}",
                f"{bar['value']:.2f}",
                "✓" if bar["met"] else "✗",
            ]


def _figures(row: Row) -> list[str]:
    num_bytes = row.get("pool_bytes", row.get("reserved_bytes"))
    if num_bytes is not None and num_bytes < 0:  # others gave memory back meanwhile
        num_bytes = None
    return [
        row["workload"],
        row["provider"],
        *(f"{row[name]:,.2f}" if name in row else NOTHING for name in ("time_us", "p99_us")),
        NOTHING if num_bytes is None else f"{num_bytes / MIB:,.0f} MiB",
    ]
