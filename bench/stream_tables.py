"""The tables and charts of docs/pipeline.md, from what bench/stream_map.py and
stream_cases.py measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diglot.bench.evidence import ROOT

OURS = ("cuda", "triton")
Reports = list[dict[str, Any]]


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    if "time_us" not in row:
        return "wrong result"
    return f"{row['time_us'] / 1e3:.4g} ms, {row['gb_per_s']:.1f}"


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


def stream_map_markdown(reports: Reports) -> str:
    """A line for each workload."""
    lines: list[str] = []
    for report in reports:
        v, ceilings = report["versions"], report["ceilings_gb_per_s"]
        lines += [
            f"{report['gpu']}, {report['processors']} processors, driver {v['driver']}, torch "
            f"{v['torch']}, Triton {v['triton']}, {report['date']}, commit {report['commit']}. "
            "A cell has the time by the host's clock, from the call to the result, and GB/s each "
            "way. Times are medians of interleaved runs. Each result equals, bit for bit, the op's "
            "on the whole array in the same run. Copies alone, from pinned memory in chunks of 16 "
            f"MiB, reached {ceilings['h2d']:.1f} GB/s to the device and {ceilings['d2h']:.1f} GB/s "
            f"from it. In both directions at once they reached {ceilings['both']:.1f} GB/s each "
            "way: the duplex ceiling. Maps were of "
            f"{report['maps'].partition(' at ')[0]}. ✗ marks a figure that misses its bar.",
            "",
            *_workloads(report),
            "",
        ]
    return "\n".join(lines)


def stream_cases_markdown(reports: Reports) -> str:
    """The same for new results, small arrays and homework 7."""
    lines: list[str] = []
    for report in reports:
        v = report["versions"]
        lines += [
            f"{report['gpu']}, {report['processors']} processors, driver {v['driver']}, torch "
            f"{v['torch']}, Triton {v['triton']}, {report['date']}, commit {report['commit']}. "
            "Cells are those of the table above. ✗ marks a figure that misses its bar.",
            "",
            *_workloads(report),
            "",
        ]
    return "\n".join(lines)


def _workloads(report: dict[str, Any]) -> list[str]:
    lines = [
        "| workload, GiB each way | cuda | triton | beside it | reached (bar), cuda / triton |",
        "|---|---|---|---|---|",
    ]
    workloads: dict[str, dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        workloads.setdefault(row["workload"], {})[row["provider"]] = row
    for name, rows in workloads.items():
        size = next(iter(rows.values()))["bytes"] / 2**30
        beside = "; ".join(f"{p} {_cell(row)}" for p, row in rows.items() if p not in OURS)
        cells = [f"{name}, {size:g}", *(_cell(rows.get(p)) for p in OURS), beside or "–"]
        lines.append(f"| {' | '.join([*cells, _bars(rows)])} |")
    return lines


def charts_markdown(reports: Reports, images: Path | None = None) -> str:
    """The committed charts, for docs/pipeline.md."""
    del reports
    images = images or (ROOT or Path.cwd()) / "docs/images"
    titles = {
        "overlap": "Pinned memory, backend {}",
        "overlap_pageable": "Pageable memory, backend {}",
        "overlap_2gpus": "Two GPUs, backend {}",
    }
    lines = []
    for stem, title in titles.items():
        for backend in OURS:
            if (images / f"{stem}_{backend}.png").exists():
                lines += [f"![{title.format(backend)}](images/{stem}_{backend}.png)", ""]
    return "\n".join(lines or ["No charts are committed yet.", ""])
