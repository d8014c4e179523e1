"""What a report shows of results: for each GPU sections of pictures and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from diglot.bench import marks, plots, ranking, standing, summary
from diglot.bench.harness import COLD, RANKED, Row
from diglot.bench.lines import RULE
from diglot.bench.reports import incomplete, label
from diglot.bench.result_files import File, Results
from diglot.tools import ceilings
from diglot.tools.drawing import PROVIDERS, Picture
from diglot.tools.numbers import number
from diglot.tools.regimes import peak_gb_per_s
from diglot.tools.report.roofline import rooflines
from diglot.tools.table import Column, Table, of_mappings

STALE = "stale: the sources have changed since"
SHOWN_VERSIONS = ("diglot", "torch", "triton", "cuda", "driver", "python")


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        about: paragraphs.
        tables: by caption. They are folded; of an open section the first is not.
        stale: that results of it are stale, in words; "" if none is known to be.
    """

    name: str
    about: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    stale: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class Machine:
    """Everything that was measured on one GPU; `verdict` is that of `diglot bench`."""

    gpu: str
    verdict: str
    stale: str
    sections: Sequence[Section]


@dataclass(frozen=True)
class Page:
    """All of it."""

    machines: Sequence[Machine]
    files: Table
    left_out: Sequence[tuple[str, str]]
    is_compared: bool


def page_of(results: Results, sources: str = "") -> Page:
    """The page of results.

    Args:
        sources: the hash of the sources at hand. Results of others are stale. "" if it is not
            known.
    """
    gpus = Counter(file.gpu for file in results.files).most_common()  # of most results first
    machines = [
        _machine(gpu, [file for file in results.files if file.gpu == gpu], sources)
        for gpu, _ in gpus
    ]
    return Page(machines, _files(results.files, sources), results.left_out, bool(sources))


def _machine(gpu: str, files: Sequence[File], sources: str) -> Machine:
    ops = _by_op(files)
    of_ops = [file for file in files if file.kind == "ops"]
    rows = [row for parts in ops.values() for _, found in parts for row in found]
    stale = _stale(of_ops, sources)
    peak = peak_gb_per_s(gpu)
    sections = [
        _roofline(rows, gpu, files, stale),
        _ranking(ops, of_ops, stale),
        _missed(files, peak, stale),
        *(_op(op, parts, peak, sources) for op, parts in ops.items()),
        *(_tests(file, sources) for file in files if file.kind == "tests"),
    ]
    shown = [section for section in sections if section.about or section.pictures]
    verdict, _ = summary.verdict(rows, gpu)
    return Machine(gpu or "an unknown GPU", verdict if rows else "", stale, shown)


def _by_op(files: Iterable[File]) -> dict[str, list[tuple[File, list[Row]]]]:
    """Each op with its rows, file by file: of its own cases and of a ranking, say.

    A file may hold several ops, as `diglot bench gelu softmax --json FILE` writes it.
    """
    found: dict[str, list[tuple[File, list[Row]]]] = {}
    for file in files:
        for op in dict.fromkeys(row["op"] for row in file.rows) if file.kind == "ops" else ():
            found.setdefault(op, []).append((file, [row for row in file.rows if row["op"] == op]))
    return found


def _stale(files: Sequence[File], sources: str) -> str:
    """A remark beside results of these files; "" if no file is known to be stale."""
    count = sum(bool(file.sources and sources and file.sources != sources) for file in files)
    if not count:
        return ""
    return STALE if count == len(files) else f"{count} of {len(files)} files are {STALE}"


def _roofline(rows: Sequence[Row], gpu: str, files: Sequence[File], stale: str) -> Section:
    known = (ceilings.parse(of.content, of.path) for of in files if of.kind == "ceilings")
    cold = [row for row in rows if row["timer"] in COLD]
    pictures, tables = rooflines(cold, gpu, next(known, None))
    about = (
        "The largest case of each op and direction. What lies on the rising line is bound by "
        "memory, and moves bytes as fast as a copy does. A pointer that rests on a mark is told "
        "its case; the tables below have all of them."
    )
    return Section("Roofline", [about] if pictures else [], pictures, tables, stale)


def _ranking(
    ops: Mapping[str, Sequence[tuple[File, list[Row]]]], files: Sequence[File], stale: str
) -> Section:
    """How ours stand beside the best peer, every case with cold caches, and the lines of code."""
    reports = [
        {**parts[0][0].content, "op": op, "rows": [row for _, rows in parts for row in rows]}
        for op, parts in ops.items()
    ]
    # Our other ways to the same result, which have a comma in their names, take no places.
    rows = (row for of in reports for row in of["rows"] if "," not in row["provider"])
    timed = [row for row in rows if row["timer"] in COLD]
    known = {row["provider"] for row in timed}
    names = [name for name in dict.fromkeys((*RANKED, *PROVIDERS, *sorted(known))) if name in known]
    ranked = [file.content for file in files if file.content.get("lines")]
    lines = [ranking.lines_cells(*of) for content in ranked for of in content["lines"].items()]
    words = "Every case: the place, and the median in µs with its band."
    missing = incomplete(ranked)
    cases = ranking.table(timed, names=names)
    tables = {
        f"Our kernels beside the best peer. {standing.MEANING}": Table(
            standing.HEADER, standing.lines(reports)
        ),
        f"{words} {missing}." if missing else words: Table(_columns(ranking.header(names)), cases),
        RULE: Table(_columns(ranking.LINES_HEADER), lines),
    }
    noise = f"{ranking.NOISE:.0%}, or bands that overlap"
    about = f"Ways that differ by no more than noise share a place: {noise}."
    return Section("Ranking", [about] if timed else [], (), tables, stale, is_open=True)


def _columns(titles: Sequence[str]) -> list[Column | str]:
    """Columns of numbers after a first of texts."""
    return [titles[0], *map(Column, titles[1:])]


def _missed(files: Iterable[File], peak: float | None, stale: str) -> Section:
    """What misses its bar, the worst first."""
    rows = [row for f in files for row in f.rows if not all(bar["met"] for bar in row["bars"])]
    ordered = sorted(rows, key=lambda row: -max(map(_shortfall, row["bars"])))
    about = f"{len(rows)} results miss a bar, the worst first."
    tables = {"Bars missed.": _measured(ordered, peak)}
    return Section("Bars missed", [about] if rows else [], (), tables, stale)


def _shortfall(bar: Row) -> float:
    """How far a bar is missed, as a share of the bound; without a value, wholly."""
    value, bound = bar["value"], bar["bound"]
    return 0.0 if bar["met"] else 1.0 if value is None or not bound else abs(value / bound - 1)


def _measured(rows: Iterable[Row], peak: float | None) -> Table:
    return Table(summary.COLUMNS, [summary.cells(row, peak) for row in rows]).shown()


def _about(files: Sequence[File], rows: Sequence[Row]) -> list[str]:
    """The number of measurements, their date and commits, and how many bars are met."""
    commits = dict.fromkeys(file.commit[:12] for file in files if file.commit)
    parts = dict.fromkeys(file.incomplete for file in files if file.incomplete)
    met = [bar["met"] for row in rows for bar in row["bars"]]
    about = [
        f"{len(rows)} measurements, commit {', '.join(commits) or 'unknown'}, "
        f"{max(file.date for file in files)}.",
        f"Incomplete: {', '.join(parts)}." if parts else "",
        f"{sum(met)} of {len(met)} bars are met." if met else "",
        *marks.notes(rows),
    ]
    return [" ".join(filter(None, about))]


def _op(
    op: str, parts: Sequence[tuple[File, list[Row]]], peak: float | None, sources: str
) -> Section:
    """An op: its pictures, all that was measured, and why something has no time."""
    files, rows = [file for file, _ in parts], [row for _, found in parts for row in found]
    failed = [[row["provider"], label(row), row["reason"]] for row in rows if row.get("reason")]
    tables = {
        f"All measurements of {op}.": _measured(rows, peak),
        "Why there is no time.": Table(("by", "case", "reason"), failed),
    }
    drawn = list(plots.pictures(rows).values())
    return Section(op, _about(files, rows), drawn, tables, _stale(files, sources))


def _tests(file: File, sources: str) -> Section:
    """The GPU tests: how many passed, failed and were skipped, which and why."""
    content, tables = file.content, dict[str, Table]()
    counts = ", ".join(f"{content[key]} {key}" for key in ("passed", "failed", "skipped"))
    about = [", ".join(filter(None, (counts, f"commit {file.commit[:12]}", file.incomplete)))]
    failures, reasons = content.get("failures"), content.get("skip_reasons")
    if isinstance(failures, list):
        tables["Tests that failed."] = of_mappings([{"test": str(of)} for of in failures])
    if isinstance(reasons, dict):
        skipped = [{"reason": str(why), "tests": count} for why, count in reasons.items()]
        tables["Why tests were skipped."] = of_mappings(skipped)
    return Section(file.op, about, (), tables, _stale([file], sources))


def _files(files: Iterable[File], sources: str) -> Table:
    titles = ("file", "GPU", "date", "commit", "sources", *SHOWN_VERSIONS)
    rows = []
    for file in files:
        missed = sum(not bar["met"] for row in file.rows for bar in row["bars"])
        state = "of these sources" if sources and file.sources == sources else file.sources
        rows.append(
            [
                f"{file.path} (incomplete: {file.incomplete})" if file.incomplete else file.path,
                *(file.gpu, file.date, file.commit[:12], _stale([file], sources) or state),
                *(file.versions.get(name, "") for name in SHOWN_VERSIONS),
                *(number(len(file.rows)), number(missed)),
            ]
        )
    return Table([*titles, Column("rows"), Column("bars missed")], rows)
