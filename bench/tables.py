"""The tables of README.md and docs/l2.md, from the committed results.

`python bench/tables.py` writes them. Every figure is a row of bench/results/<gpu>/<op>.json;
nothing is typed by hand. `--check` only says whether the documents are what it would write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
PROVIDERS = ("cuda", "triton", "grid.sync()", "torch", "torch.compile", "formula")


def _cell(row: dict[str, Any] | None, text: str) -> str:
    if row is None:
        return "–"
    if "time_us" not in row:
        return "wrong result"
    missed = any(not bar["met"] for bar in row["bars"])
    return f"{text} ✗" if missed else text


def _label(row: dict[str, Any]) -> str:
    options = ", ".join(
        {"none": "erf"}.get(value, value) if isinstance(value, str) else f"{name} {value}"
        for name, value in row["options"].items()
    )
    shape = "×".join(map(str, row["shape"]))
    name = f"{row['op']} {options}".strip()
    return f"{name} {row['direction']}, {shape}, {row['dtype']}"


def _grouped(reports: list[dict[str, Any]], timer: str) -> dict[str, dict[str, dict[str, Any]]]:
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for report in reports:
        for row in report["rows"]:
            if row["timer"] == timer:
                cases.setdefault(_label(row), {})[row["provider"]] = row
    return cases


def _table(
    title: str, cases: dict[str, dict[str, dict[str, Any]]], text: Any, extra: tuple[str, Any]
) -> list[str]:
    shown = [p for p in PROVIDERS if any(p in rows for rows in cases.values())]
    header = f"| {title} | {' | '.join(shown)} | {extra[0]} |"
    lines = [header, f"|---|{'---|' * (len(shown) + 1)}"]
    for label, rows in cases.items():
        cells = [
            _cell(rows.get(p), text(rows[p]) if "time_us" in rows.get(p, {}) else "") for p in shown
        ]
        lines.append(f"| {label} | {' | '.join(cells)} | {extra[1](rows)} |")
    return lines


def _bars(rows: dict[str, dict[str, Any]]) -> str:
    names = {
        (bar["name"], bar["bound"])
        for provider in ("cuda", "triton")
        for bar in rows.get(provider, {}).get("bars", [])
    }
    return "; ".join(f"{name} {bound:g}" for name, bound in sorted(names)) or "–"


def markdown(paths: list[Path]) -> str:
    """The tables of result files."""
    reports = [json.loads(path.read_text()) for path in paths]
    if not reports:
        return "No results are committed yet.\n"
    first = reports[0]
    commits = ", ".join(sorted({report["commit"] for report in reports}))
    v = first["versions"]
    lines = [
        f"{first['gpu']}, driver {v['driver']}, torch {v['torch']}, Triton {v['triton']}, "
        f"{first['date']}, commit {commits}. Medians of interleaved runs with a cold L2 cache; "
        "bytes count each input and each output once; the number in brackets is the share of a "
        "device copy of as many bytes in the same run. ✗ marks a figure that misses the project's "
        "own bar, the last column. In the same run every element of ours was checked against "
        "float64 to the tolerance of its type, and the peers' only to an absolute error of 1.",
        "",
    ]
    device = _grouped(reports, "device")
    if device:

        def speed(row: dict[str, Any]) -> str:
            return f"{row['tb_per_s']:.2f} ({row['share_of_copy']:.2f})"

        lines += [*_table("TB/s (share of copy)", device, speed, ("bar", _bars)), ""]
    for timer, title in (("graph", "µs per call in a CUDA graph"), ("host", "host µs per call")):
        cases = _grouped(reports, timer)
        if cases:
            lines += [*_table(title, cases, lambda r: f"{r['time_us']:.2f}", ("bar", _bars)), ""]
    return "\n".join(lines)


def _l2_cell(row: dict[str, Any], piece: str) -> str:
    if "time_us" not in row:
        return "wrong result"
    whole = piece == "turn"
    text = f"{row['time_us'] if whole else row['pieces_us'][piece]:.1f}"
    if row["provider"] == "persist" and "speed" in row:
        text += f" ({row['speed'] if whole else row['pieces_speed'][piece]:.2f})"
    if whole:
        text += "".join(" ✓" if bar["met"] else " ✗" for bar in row["bars"])
    return text


def _l2_table(title: str, rows: list[dict[str, Any]], piece: str) -> list[str]:
    cells: dict[int, dict[float | None, str]] = {}
    for row in rows:
        options = row["options"]
        cells.setdefault(options["hot_mb"], {})[options["hit_ratio"]] = _l2_cell(row, piece)
    ratios = list(next(iter(cells.values())))
    titles = ["none" if ratio is None else f"{ratio:g}" for ratio in ratios]
    lines = [f"| {title} | {' | '.join(titles)} |", f"|---|{'---|' * len(ratios)}"]
    for hot, texts in cells.items():
        lines.append(f"| {hot} MB | {' | '.join(texts[ratio] for ratio in ratios)} |")
    return [*lines, ""]


# Workload, piece (or the whole turn), title.
L2_TABLES = (
    ("walks", "turn", "walks and a pass, µs"),
    ("walks", "walks", "the walks of these"),
    ("walks", "pass", "the pass of these"),
    ("gathers", "turn", "gathers, µs"),
)


def l2_markdown(paths: list[Path]) -> str:
    """The tables of result files of L2 persistence: a cell for each hot set and hit ratio."""
    lines = []
    for report in (json.loads(path.read_text()) for path in paths):
        v = report["versions"]
        lines += [
            f"{report['gpu']}, driver {v['driver']}, torch {v['torch']}, Triton {v['triton']}, "
            f"{report['date']}, commit {report['commit']}. A line for each size of the hot set, a "
            "column for each hit ratio, the first without persistence. Medians of interleaved runs "
            "in µs, with the speed against the first column in brackets; ✓ or ✗ says whether the "
            "best cell meets the project's bar, 1.2. Results were checked in the same run.",
            "",
        ]
        for workload, piece, title in L2_TABLES:
            rows = [row for row in report["rows"] if row["workload"] == workload]
            lines += _l2_table(title, rows, piece)
    return "\n".join(lines)


def of_results(paths: list[Path]) -> str:
    """The tables of result files that are of one kind."""
    return (l2_markdown if any(path.stem == "l2" for path in paths) else markdown)(paths)


def render() -> dict[Path, str]:
    """The documents' texts with their tables made anew."""
    found = sorted(ROOT.glob("bench/results/*/*.json"))
    results = {
        "README.md": [path for path in found if path.stem not in ("tests", "l2")],
        "docs/l2.md": [path for path in found if path.stem == "l2"],
    }
    documents = {}
    for name, paths in results.items():
        before, rest = (ROOT / name).read_text().split(BEGIN)
        _, after = rest.split(END)
        tables = of_results(paths) if paths else markdown([])
        documents[ROOT / name] = f"{before}{BEGIN}\n{tables}{END}{after}"
    return documents


def main() -> None:
    """Writes the documents' tables, or with --check says whether they are up to date."""
    for path, made in render().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(made)
        elif made != path.read_text():
            raise SystemExit(f"error: the tables of {path.name} are not what the results say")


if __name__ == "__main__":
    main()
