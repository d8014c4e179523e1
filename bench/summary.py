"""Rows as tables of text: what `diglot bench` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diglot.bench import marks
from diglot.bench.harness import Row
from diglot.bench.markdown import NOTHING
from diglot.bench.regressions import GONE, SAME, Change
from diglot.bench.reports import label, no_time
from diglot.tools.table import Column, number

TIMERS = {
    "device": "cold",
    "captured": "cold, one call as a CUDA graph",
    "warm": "warm",
    "graph": "warm, in a CUDA graph",
    "host": "the host's time",
}
COLUMNS = (
    Column("case", False),
    Column("provider", False),
    Column("time\nµs"),
    Column("p20–p80\nµs"),
    Column("GB/s or\nTFLOP/s"),
    Column("of the\nceiling"),
    Column("host\nµs"),
    Column("peak\nMB"),
    Column("first call\nms"),
    Column("worst error\nulp"),
    Column("bars", False),
)


def _figure(row: Row, name: str, scale: float = 1) -> str:
    value = row.get(name)
    return NOTHING if value is None else number(float(value) * scale)


def _speed(row: Row) -> list[str]:
    for speed, share, scale in (
        ("tflop_per_s", "share_of_product", 1.0),
        ("tb_per_s", "share_of_copy", 1e3),
    ):
        if speed in row:
            return [_figure(row, speed, scale), f"{100 * row[share]:.0f} %"]
    return [NOTHING, NOTHING]


def _bars(row: Row) -> str:
    return "; ".join(
        f"{'✓' if bar['met'] else '✗'} {bar['name']} {bar['bound']:g}" for bar in row["bars"]
    )


def cells(row: Row) -> list[str]:
    """A row's cells under `COLUMNS`."""
    spread, speed = NOTHING, [NOTHING, NOTHING]
    if "time_us" in row:
        spread, speed = f"{number(row['p20_us'])}–{number(row['p80_us'])}", _speed(row)
    return [
        f"{label(row)} [{TIMERS.get(row['timer'], row['timer'])}]",
        marks.titled(row["provider"], marks.words(row)),
        _figure(row, "time_us") if "time_us" in row else no_time(row),
        spread,
        *speed,
        _figure(row, "host_us"),
        _figure(row, "peak_bytes", 1e-6),
        _figure(row, "first_call_ms"),
        _figure(row, "worst_ulp"),
        _bars(row),
    ]


def reasons(rows: Iterable[Row]) -> list[str]:
    """Why rows have no time, a line each."""
    return [
        f"{row['provider']}: {label(row)}: {row['reason']}" for row in rows if row.get("reason")
    ]


CHANGE_COLUMNS = (
    Column("case", False),
    Column("provider", False),
    Column("verdict", False),
    Column("new over old"),
    Column("of", False),
    Column("old, µs"),
    Column("new, µs"),
)


def _band(row: dict[str, Any] | None) -> str:
    if row is None or "time_us" not in row:
        return NOTHING
    p20, p80 = number(row["p20_us"]), number(row["p80_us"])
    return f"{number(row['time_us'])} ({p20}–{p80})"


def change_cells(change: Change) -> list[str]:
    """A change's cells under `CHANGE_COLUMNS`."""
    row = change.row
    return [
        f"{label(row)} [{TIMERS.get(row['timer'], row['timer'])}]",
        row["provider"],
        change.verdict,
        NOTHING if change.ratio is None else f"{change.ratio:.3f}",
        change.by or NOTHING,
        _band(change.old),
        NOTHING if change.verdict == GONE else _band(row),
    ]


def count_changes(changes: Iterable[Change]) -> str:
    """How many of each verdict there are, in words."""
    counts: dict[str, int] = {}
    for change in changes:
        counts[change.verdict] = counts.get(change.verdict, 0) + 1
    named = {SAME: "within noise"}
    return ", ".join(f"{count} {named.get(verdict, verdict)}" for verdict, count in counts.items())
