"""The tables of README.md and of pages in docs, from the committed results.

`python bench/tables.py` writes them. Every figure is a row of bench/results/<gpu>/<op>.json;
nothing is typed by hand. `--check` only says whether the documents are what it would write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diglot.bench import chosen_plans, marks, models, ranking
from diglot.bench.barrier_tables import designs_table, use_table
from diglot.bench.evidence import ROOT
from diglot.bench.harness import MODES
from diglot.bench.reports import label, measured_on, no_time
from diglot.bench.stream_tables import (
    charts_markdown,
    stream_cases_markdown,
    stream_map_markdown,
)
from diglot.bench.summary import REGIMES_SHOWN, regimes_markdown
from diglot.tools.report import cases, figures, page
from diglot.tools.report.results import read

PROVIDERS = (
    "cuda",
    "triton",
    "grid.sync()",
    "torch",
    *MODES,
    "liger",
    "quack",
    "flag_gems",
    "formula",
)


def _cell(
    row: dict[str, Any] | None, text: Callable[[dict[str, Any]], str], titles: dict[str, str]
) -> str:
    if row is None:
        return "–"
    if "time_us" not in row:
        return no_time(row)
    missed = any(not bar["met"] for bar in row["bars"])
    return f"{text(row)}{' ✗' if missed else ''}{marks.mark(row, titles)}"


def _grouped(reports: list[dict[str, Any]], timer: str) -> dict[str, dict[str, dict[str, Any]]]:
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for report in reports:
        for row in report["rows"]:
            if row["timer"] == timer:
                cases.setdefault(label(row), {})[row["provider"]] = row
    return cases


def _table(
    title: str, cases: dict[str, dict[str, dict[str, Any]]], text: Any, with_bars: bool = True
) -> list[str]:
    shown = [p for p in PROVIDERS if any(p in rows for rows in cases.values())]
    titles = marks.common(row for rows in cases.values() for row in rows.values())
    named = [marks.titled(name, titles[name]) for name in shown]
    header = [title, *named, *(["bar"] if with_bars else [])]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for case, rows in cases.items():
        cells = [_cell(rows.get(p), text, titles) for p in shown]
        lines.append(f"| {' | '.join([case, *cells, *([_bars(rows)] if with_bars else [])])} |")
    return [*lines, ""]


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


def _measured_on(reports: Reports, rows: Sequence[dict[str, Any]]) -> list[str]:
    """By what and how, and what the signs mean, and the words that rows have."""
    return [
        f"{measured_on(reports)}. Figures are medians of interleaved runs. Where a share is given, "
        "the L2 cache was cold. Bytes count each input once and each output once. The number in "
        "brackets is the share of a device copy of as many bytes in that run. ✗ marks a figure "
        "that misses the project's own bar. In the same run every element of ours was checked "
        "against float64 to the tolerance of its type, and the peers' more loosely.",
        "",
        *marks.paragraph(rows),
    ]


def _speed(row: dict[str, Any]) -> str:
    return f"{row['tb_per_s']:.2f} ({row['share_of_copy']:.2f})"


SPEED = "TB/s (share of copy)"
# Of the common harness's timers: a table's title, and the text of a row.
TIMERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "device": (SPEED, _speed),
    "captured": (
        "µs, one call as a CUDA graph (share of copy)",
        lambda row: f"{row['time_us']:.1f} ({row['share_of_copy']:.2f})",
    ),
    "warm": ("TB/s, warm caches (share of copy)", _speed),
    "graph": ("µs per call in a CUDA graph", lambda row: f"{row['time_us']:.2f}"),
    "host": ("host µs per call", lambda row: f"{row['time_us']:.2f}"),
}


def of_op(report: dict[str, Any]) -> list[str]:
    """The tables of an op's results of the common harness."""
    lines = []
    for timer, (title, text) in TIMERS.items():
        cases = _grouped([report], timer)
        if cases:
            lines += _table(title, cases, text)
    return lines


def markdown(reports: Reports) -> str:
    """The tables of results of the common harness, op by op."""
    lines = _measured_on(reports, [row for report in reports for row in report["rows"]])
    lines[0] += " The last column says what the bar is (of two, cuda's and triton's)."
    for report in reports:
        lines += [f"## {report['op']}", "", f"Commit {report['commit'][:12]}.", "", *of_op(report)]
    return "\n".join(lines)


# What README shows: sizes, and types.
SHOWN = ([16384, 16384], [32768, 4096], [8192, 65536])
SHOWN_TYPES = ("float32", "bfloat16")


def summary(reports: Reports) -> str:
    """A few of them."""
    cases = {
        label: rows
        for label, rows in _grouped(reports, "device").items()
        if all(row["shape"] in SHOWN and row["dtype"] in SHOWN_TYPES for row in rows.values())
    }
    shown = [row for rows in cases.values() for row in rows.values()]
    table = _table(SPEED, cases, _speed, with_bars=False)
    return "\n".join([*_measured_on(reports, shown), *table])


PICTURE = "docs/images/speed.svg"
# What it shows: ops, forward, in bfloat16, of these options.
PICTURED = {"gelu": {"approximate": "tanh"}, "dropout": {"p": 0.1}, "softmax": {}}
PICTURED |= {"layer_norm": {}, "rms_norm": {}, "add_rms_norm": {}}


def picture(paths: list[Path]) -> str:
    """README's picture of speed: ours and the others, of a few ops, as SVG."""
    files = [file for file in read(paths).files if file.op in PICTURED]
    shown = []
    for file in sorted(files, key=lambda file: list(PICTURED).index(file.op)):
        rows = [
            row
            for row in file.rows
            if (row.timer, row.direction, row.dtype) == ("device", "forward", "bfloat16")
            and row.options == PICTURED[file.op]
            and list(row.shape) in SHOWN[:2]
        ]
        shown += [case for of in cases.groups(rows, "op").values() for case in of.values()]
    return page.alone(figures.side_by_side(shown, cases.providers_of(files)))


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
    "ceilings": [],
    "l2": [("docs/l2.md", "bench", l2_markdown)],
    "stream_cases": [("docs/pipeline.md", "cases", stream_cases_markdown)],
    "stream_map": [
        ("docs/pipeline.md", "bench", stream_map_markdown),
        ("docs/pipeline.md", "charts", charts_markdown),
    ],
}


def render() -> dict[Path, str]:
    """The documents' texts with their tables made anew."""
    assert ROOT is not None, "the documents are those of a source tree"
    root = ROOT
    found = sorted(root.glob("bench/results/*/*.json"))
    texts: dict[Path, str] = {}

    def put(document: str, mark: str, paths: list[Path], make: Callable[[Reports], str]) -> None:
        path = root / document
        before, rest = texts.setdefault(path, path.read_text()).split(f"<!-- {mark}:begin -->")
        _, after = rest.split(f"<!-- {mark}:end -->")
        reports = [json.loads(p.read_text()) for p in paths]
        tables = make(reports) if reports else "No results are committed yet.\n"
        texts[path] = f"{before}<!-- {mark}:begin -->\n{tables}<!-- {mark}:end -->{after}"

    common = [p for p in found if p.stem not in ("tests", *APART)]
    put("README.md", "bench", common, summary)
    texts[ROOT / PICTURE] = picture(common)
    put("docs/speed.md", "bench", common, markdown)
    shown = [p for p in common if p.stem in REGIMES_SHOWN]
    put("docs/regimes.md", "regimes", shown, regimes_markdown)
    drawn = sorted(root.glob("bench/distributions/*/models/*.json"))
    put("docs/speed.md", "models", drawn, models.markdown)
    judged = sorted(root.glob("bench/distributions/*/plans/*.json"))
    put("docs/tuning.md", "plans", judged, chosen_plans.markdown)
    rankings = sorted(root.glob("bench/results/*/ranking/*.json"))
    put("docs/benchmarks.md", "ranking", rankings, ranking.markdown)
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
