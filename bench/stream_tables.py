"""The tables of docs/pipeline.md, from what bench/stream_map.py and stream_cases.py measured."""

from __future__ import annotations

from typing import Any

from diglot.bench.harness import OURS
from diglot.bench.markdown import NOTHING, table
from diglot.bench.reports import measured_on

Reports = list[dict[str, Any]]


def cell(row: dict[str, Any] | None) -> str:
    """The time and speed of a provider, and the ideal time if its workload has one."""
    if row is None:
        return "–"
    if "time_us" not in row:
        return "wrong result"
    ideal = f"; ideal {row['ideal_us'] / 1e3:.4g} ms" if "ideal_us" in row else ""
    return f"{row['time_us'] / 1e3:.4g} ms, {row['gb_per_s']:.1f}{ideal}"


def _sign(bar: dict[str, Any]) -> str:
    value = "–" if bar["value"] is None else f"{bar['value']:.3g}"
    return value if bar["met"] else f"{value} ✗"


def _bars(rows: dict[str, dict[str, Any]]) -> str:
    """Each bar with what both backends reach."""
    bars = [rows[name]["bars"] for name in OURS if name in rows]
    texts = []
    for of in zip(*bars, strict=True):
        bound = f"at {'least' if of[0]['at_least'] else 'most'} {of[0]['bound']:g}"
        texts.append(f"{of[0]['name']} {' / '.join(map(_sign, of))} ({bound})")
    return "; ".join(texts)


def markdown(reports: Reports) -> str:
    """A line for each workload."""
    lines: list[str] = []
    for report in reports:
        lines += [
            f"{measured_on([report])}, {report['processors']} processors. {_said(report)} ✗ marks "
            "a figure that misses its bar.",
            "",
            *_workloads(report),
        ]
    return "\n".join(lines)


def _said(report: dict[str, Any]) -> str:
    if "ceilings_gb_per_s" not in report:  # of stream_cases.py
        return "Cells are those of the table above."
    ceilings = report["ceilings_gb_per_s"]
    return (
        "A cell has the time by the host's clock, from the call to the result, and GB/s each "
        "way. Times are medians of interleaved runs. Each result equals, bit for bit, the op's "
        "on the whole array in the same run. Copies alone, from pinned memory in chunks of 16 "
        f"MiB, reached {ceilings['h2d']:.1f} GB/s to the device and {ceilings['d2h']:.1f} GB/s "
        f"from it. In both directions at once they reached {ceilings['both']:.1f} GB/s each "
        f"way: the duplex ceiling. Maps were of {report['maps'].partition(' at ')[0]}."
    )


def _workloads(report: dict[str, Any]) -> list[str]:
    workloads: dict[str, dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        workloads.setdefault(row["workload"], {})[row["provider"]] = row
    body = []
    for name, rows in workloads.items():
        size = next(iter(rows.values()))["bytes"] / 2**30
        beside = "; ".join(f"{p} {cell(row)}" for p, row in rows.items() if p not in OURS)
        ours = [cell(rows.get(p)) for p in OURS]
        body.append([f"{name}, {size:g}", *ours, beside or NOTHING, _bars(rows)])
    header = ["workload, GiB each way", *OURS, "beside it", "reached (bar), cuda / triton"]
    return table(header, body)
