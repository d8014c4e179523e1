"""Rows as tables of text: what `diglot bench` prints."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from diglot.bench import bar_tables, marks
from diglot.bench.harness import OURS, Row
from diglot.bench.reports import case_of, label, no_time
from diglot.tools.numbers import NOTHING, number
from diglot.tools.regimes import find_regime
from diglot.tools.table import Column

TIMERS = {
    "device": "cold",
    "captured": "cold, one call as a CUDA graph",
    "warm": "warm",
    "graph": "warm, in a CUDA graph",
    "host": "the host's time",
}
COLUMNS = (
    "case",
    "provider",
    Column("time\nµs"),
    Column("p20–p80\nµs"),
    Column("GB/s or\nTFLOP/s"),
    Column("of the\nceiling"),
    "bound by",
    Column("host\nµs"),
    Column("peak\nMB"),
    Column("first call\nms"),
    Column("worst error\nulp"),
    "bars",
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
            of_it = row.get(share)
            said = NOTHING if of_it is None else f"{100 * of_it:.0f} %"
            return [_figure(row, speed, scale), said]
    return [NOTHING, NOTHING]


def bars(row: Row) -> str:
    """Each bar of a row, the reached value and the bound."""
    return "; ".join(
        f"{'✓' if bar['met'] else '✗'} {bar['name']} {number(bar['value'])} (bar {bar['bound']:g})"
        for bar in row["bars"]
    )


def verdict(rows: Collection[Row], gpu: str | None) -> tuple[str, bool]:
    """What rows say in one line, and whether a result of ours is wrong or misses a bar."""
    ours = [row for row in rows if row["provider"] in OURS]
    wrong = sum(row.get("verified") is False for row in ours)
    means = [line.mean for line in bar_tables.lines(ours) if line.mean.bound is not None]
    met = [bar["met"] for row in ours for bar in row["bars"]]
    met += [not mean.is_missed for mean in means]
    cases = len({case_of(row) for row in rows})
    said = [f"{cases} case{'s' * (cases != 1)} on {gpu or 'no GPU'}"]
    said.append(f"{wrong} of {len(ours)} results of ours are wrong or failed" if wrong else "")
    said.append(f"{len(ours)} results of ours are right" if ours and not wrong else "")
    said.append(f"{met.count(True)} of {len(met)} bars are met" if met else "")
    return ", ".join(filter(None, said)), bool(wrong) or False in met


def _bound_by(row: Row, peak_gb_per_s: float | None) -> str:
    """Its regime; nothing of a row that has no time on the device.

    Nor of a formula, a kernel for each operation: what these move between them is not counted.
    """
    has_time = "time_us" in row and "bytes" in row and row["timer"] != "host"
    if peak_gb_per_s is None or not has_time or row["provider"] == "formula":
        return NOTHING
    is_eager = row["timer"] in ("device", "warm")
    host_us = row.get("host_us") if is_eager else None
    copy = row.get("copy_tb_per_s")
    copy_us = None if copy is None else row["bytes"] / copy / 1e6
    regime = find_regime(
        row["time_us"], row["bytes"], peak_gb_per_s, copy_us=copy_us, host_us=host_us
    )
    return str(regime)


def cells(row: Row, peak_gb_per_s: float | None = None) -> list[str]:
    """A row's cells under `COLUMNS`; the GPU's peak bandwidth is what regimes need."""
    spread, speed = NOTHING, [NOTHING, NOTHING]
    if "time_us" in row:
        spread, speed = f"{number(row['p20_us'])}–{number(row['p80_us'])}", _speed(row)
    return [
        f"{label(row)} [{TIMERS.get(row['timer'], row['timer'])}]",
        marks.titled(row["provider"], marks.words(row)),
        _figure(row, "time_us") if "time_us" in row else no_time(row),
        spread,
        *speed,
        _bound_by(row, peak_gb_per_s),
        _figure(row, "host_us"),
        _figure(row, "peak_bytes", 1e-6),
        _figure(row, "first_call_ms"),
        _figure(row, "worst_ulp"),
        bars(row),
    ]


def reasons(rows: Iterable[Row]) -> list[str]:
    """Why rows have no time, a line each."""
    return [
        f"{row['provider']}: {label(row)}: {row['reason']}" for row in rows if row.get("reason")
    ]
