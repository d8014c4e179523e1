"""Workloads that take the host too: each done in several ways, in turns, by the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import diglot
from diglot.bench.harness import OURS, Bar, Row, Rows
from diglot.bench.running import judge
from diglot.pipeline.report import PipelineReport
from diglot.tools.measure import Timing

Call = Callable[[], object]


@dataclass(frozen=True)
class Provider:
    """A way of doing a workload.

    Attributes:
        call: does it, and returns when it is done.
        prepare: before each call, untimed: spoils earlier results, or makes a new file.
        is_right: whether what the last call left is right; None for what computes nothing.
    """

    call: Call
    prepare: Call | None = None
    is_right: Callable[[], bool] | None = None


@dataclass
class Workload:
    """Something to do, in several ways."""

    name: str
    bytes: int  # of the input, and as many of the output
    rounds: int
    providers: dict[str, Provider]
    bars: list[Bar]
    options: dict[str, Any] = field(default_factory=dict)


def bar(name: str, value: Callable[[Row, Rows], float], bound: float, at_least: bool = True) -> Bar:
    """What the pipeline must reach in a workload."""
    return Bar(name, lambda row: True, value, lambda row: bound, at_least)


def faster_than(other: str) -> Callable[[Row, Rows], float]:
    """Speed over that of another provider of the workload, or of its form for the same backend."""

    def value(row: Row, rows: Rows) -> float:
        found = rows.get(other) or rows[f"{other} {row['provider']}"]
        return found["time_us"] / row["time_us"]

    return value


def once(provider: Provider) -> float:
    if provider.prepare is not None:
        provider.prepare()
    begin = time.perf_counter()
    provider.call()
    return time.perf_counter() - begin


def measured(workload: Workload, reports: dict[tuple[str, str], PipelineReport]) -> list[Row]:
    """A row for each provider. Results are checked before and after the timed calls."""
    print(f"stream_map: {workload.name}", flush=True)
    verified = {}
    for name, provider in workload.providers.items():
        once(provider)
        verified[name] = provider.is_right is None or provider.is_right()
    times: dict[str, list[float]] = {name: [] for name, right in verified.items() if right}
    for _ in range(workload.rounds):
        for name, of in times.items():
            of.append(1e6 * once(workload.providers[name]))
            if name in OURS:
                report = diglot.last_stream_report()
                assert report is not None
                reports[workload.name, name] = report
    for name in times:
        provider = workload.providers[name]
        if provider.is_right is not None:
            once(provider)
            verified[name] = provider.is_right()
    rows: Rows = {}
    for name in workload.providers:
        row: Row = {
            "op": "stream_map",
            "provider": name,
            "workload": workload.name,
            "options": workload.options,
            "timer": "wall",
            "bytes": workload.bytes,
            "verified": verified[name],
            "bars": [],
        }
        rows[name] = row
        if not verified[name]:
            continue
        timing = Timing.of(times[name])
        row |= {**timing.figures(), "gb_per_s": workload.bytes / timing.median_us / 1e3}
        if (workload.name, name) in reports:
            report = reports[workload.name, name]
            row["run"] = {
                **{key: getattr(report, key) for key in ("engine", "chunk_rows", "chunks")},
                **{key: getattr(report, key) for key in ("num_slots", "device_bytes", "notes")},
                "busy": report.busy,
                "stalls": report.stalls,
            }
    judge(workload.bars, rows)
    for row in rows.values():
        what = (
            f"{row['time_us'] / 1e3:9.2f} ms {row['gb_per_s']:6.1f} GB/s"
            if row["verified"]
            else "wrong"
        )
        if "ideal_us" in row:
            what += f", ideal {row['ideal_us'] / 1e3:.2f} ms"
        bars = ", ".join(f"{b['name']} {b['value'] or 0:.3f} ({b['bound']})" for b in row["bars"])
        print(f"  {row['provider']:16} {what}  {bars}", flush=True)
    return list(rows.values())
