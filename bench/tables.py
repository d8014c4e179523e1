"""The tables of README.md and of pages in docs, from the committed results.

`python bench/tables.py` writes them. Every figure is a row of bench/results/<gpu>/<op>.json;
nothing is typed by hand. `--check` only says whether the documents are what it would write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.barrier_tables import designs_table, use_table
from bench.evidence import ROOT

PROVIDERS = (
    "cuda",
    "triton",
    "grid.sync()",
    "torch",
    "torch.compile",
    "liger",
    "quack",
    "formula",
)


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
    bounds: dict[str, dict[str, float]] = {}
    for provider in ("cuda", "triton"):
        for bar in rows.get(provider, {}).get("bars", []):
            bounds.setdefault(bar["name"], {})[provider] = bar["bound"]
    texts = []
    for name, of in sorted(bounds.items()):
        if len(set(of.values())) == 1:
            texts.append(f"{name} {next(iter(of.values())):g}")
        else:
            texts.append(f"{name} {' / '.join(f'{bound:g}' for bound in of.values())}")
    return "; ".join(texts) or "–"


Reports = list[dict[str, Any]]


def markdown(reports: Reports) -> str:
    """The tables of results of the common harness."""
    first = reports[0]
    commits = ", ".join(sorted({report["commit"] for report in reports}))
    v = first["versions"]
    lines = [
        f"{first['gpu']}, driver {v['driver']}, torch {v['torch']}, Triton {v['triton']}, "
        f"{first['date']}, commit {commits}. Medians of interleaved runs, with a cold L2 cache "
        "where there is a share; bytes count each input and each output once; the number in "
        "brackets is the share of a device copy of as many bytes in the same run. ✗ marks a figure "
        "that misses the project's own bar, the last column (of two, cuda's and triton's). In the "
        "same run every element of ours was checked against float64 to the tolerance of its type, "
        "and the peers' only to an absolute error of 1.",
        "",
    ]
    device = _grouped(reports, "device")
    if device:

        def speed(row: dict[str, Any]) -> str:
            return f"{row['tb_per_s']:.2f} ({row['share_of_copy']:.2f})"

        lines += [*_table("TB/s (share of copy)", device, speed, ("bar", _bars)), ""]
    captured = _grouped(reports, "captured")
    if captured:
        title = "µs, one call as a CUDA graph (share of copy)"

        def time(row: dict[str, Any]) -> str:
            return f"{row['time_us']:.1f} ({row['share_of_copy']:.2f})"

        lines += [*_table(title, captured, time, ("bar", _bars)), ""]
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


def l2_markdown(reports: Reports) -> str:
    """The tables of results of L2 persistence: a cell for each hot set and hit ratio."""
    lines = []
    for report in reports:
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


def designs_markdown(reports: Reports) -> str:
    """The tables of designs of a grid barrier."""
    return "\n".join(map(designs_table, reports))


def use_markdown(reports: Reports) -> str:
    """The tables of one launch with a barrier beside two."""
    return "\n".join(map(use_table, reports))


# Of results that are not the common harness's: a page's place, by its mark, and what makes it.
APART: dict[str, list[tuple[str, str, Callable[[Reports], str]]]] = {
    "barrier_designs": [
        ("docs/barriers.md", "designs", designs_markdown),
        ("docs/barriers.md", "use", use_markdown),
    ],
    "l2": [("docs/l2.md", "bench", l2_markdown)],
}


def of_results(paths: list[Path]) -> str:
    """The tables of result files that are of one kind."""
    reports = [json.loads(path.read_text()) for path in paths]
    if not reports:
        return "No results are committed yet.\n"
    places = APART.get(paths[0].stem, [("README.md", "bench", markdown)])
    return "\n".join(make(reports) for _, _, make in places)


def render() -> dict[Path, str]:
    """The documents' texts with their tables made anew."""
    found = sorted(ROOT.glob("bench/results/*/*.json"))
    texts: dict[Path, str] = {}

    def put(document: str, mark: str, paths: list[Path], make: Callable[[Reports], str]) -> None:
        path = ROOT / document
        before, rest = texts.setdefault(path, path.read_text()).split(f"<!-- {mark}:begin -->")
        _, after = rest.split(f"<!-- {mark}:end -->")
        reports = [json.loads(p.read_text()) for p in paths]
        tables = make(reports) if reports else "No results are committed yet.\n"
        texts[path] = f"{before}<!-- {mark}:begin -->\n{tables}<!-- {mark}:end -->{after}"

    put("README.md", "bench", [p for p in found if p.stem not in ("tests", *APART)], markdown)
    for stem, places in APART.items():
        for document, mark, make in places:
            put(document, mark, [p for p in found if p.stem == stem], make)
    return texts


def main() -> None:
    """Writes the documents' tables, or with --check says whether they are up to date."""
    for path, made in render().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(made)
        elif made != path.read_text():
            raise SystemExit(f"error: the tables of {path.name} are not what the results say")


if __name__ == "__main__":
    main()
