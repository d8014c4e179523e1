"""The tables of README.md, from the committed results: `python bench/tables.py` writes them.

Every figure is a row of bench/results/<gpu>/<op>.json; nothing is typed by hand. `--check` only
says whether the README is what it would write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
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


def render(readme: str) -> str:
    """README's text with its tables made anew."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    found = sorted(ROOT.glob("bench/results/*/*.json"))
    tables = markdown([path for path in found if path.name != "tests.json"])
    return f"{before}{BEGIN}\n{tables}{END}{after}"


def main() -> None:
    """Writes the README's tables, or with --check says whether they are up to date."""
    text = README.read_text()
    made = render(text)
    if "--check" in sys.argv[1:]:
        raise SystemExit(
            0 if made == text else "error: README.md's tables are not what the results say"
        )
    README.write_text(made)


if __name__ == "__main__":
    main()
