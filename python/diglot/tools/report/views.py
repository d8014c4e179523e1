"""What a report shows of results: figures and tables, for each GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from diglot.bench import marks
from diglot.bench.harness import Row
from diglot.bench.regressions import NOISE
from diglot.bench.result_files import File, Results
from diglot.tools import ceilings
from diglot.tools.report import figures, ranking
from diglot.tools.report.cases import COLD, by_op, providers_of
from diglot.tools.report.figures import Figure
from diglot.tools.report.measurements import measurements, missed
from diglot.tools.report.operations import find
from diglot.tools.report.roofline import rooflines
from diglot.tools.report.tables import Cell, Column, Table, TableRow, any_cell, number_cell, was_run

STALE = "stale: the sources have changed since"


@dataclass(frozen=True)
class Tile:
    """A figure that the page begins with; `kind` as a cell's."""

    value: str
    words: str
    kind: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: of an op, or of something else that was measured."""

    name: str
    about: str
    figures: Sequence[Figure] = field(default=())
    tables: Sequence[Table] = field(default=())
    op: str = ""
    stale: str = ""


@dataclass(frozen=True)
class Machine:
    """Everything that was measured on one GPU."""

    gpu: str
    tiles: Sequence[Tile]
    stale: str
    rooflines: Sequence[Figure]
    not_on_roofline: Sequence[str]
    roofline_tables: Sequence[Table]
    summary: Table
    ranking: Sequence[Table]
    missed: Table
    ops: Sequence[Section]
    others: Sequence[Section]
    suites: Sequence[Section]


@dataclass(frozen=True)
class Page:
    """All of it."""

    machines: Sequence[Machine]
    providers: Sequence[str]
    ops: Sequence[str]
    files: Table
    left_out: Sequence[tuple[str, str]]
    is_compared: bool
    noise: str


def page_of(results: Results, sources: str = "") -> Page:
    """What is shown of results.

    Args:
        sources: the hash of the sources at hand: what was measured with others is stale. "" if
            that is not known.
    """
    counts = Counter(file.gpu for file in results.files if file.kind != "pipeline")
    gpus = [gpu for gpu, _ in counts.most_common()]  # that of most results first
    of_gpu: dict[str, list[File]] = {gpu: [] for gpu in gpus or [""]}
    for file in results.files:
        # A pipeline's report may not say its GPU: it is shown with the first.
        of_gpu[file.gpu if file.gpu in of_gpu else next(iter(of_gpu))].append(file)
    machines = [_machine(gpu, files, sources) for gpu, files in of_gpu.items()]
    return Page(
        machines,
        providers_of(results.files),
        list(dict.fromkeys(section.op for machine in machines for section in machine.ops)),
        _files(results.files, sources),
        results.left_out,
        bool(sources),
        f"{NOISE:.0%}",
    )


def _machine(gpu: str, files: Sequence[File], sources: str) -> Machine:
    known = next(
        (ceilings.parse(file.content, file.path) for file in files if file.kind == "ceilings"), None
    )
    of_ops = by_op(files)
    rows = [row for parts in of_ops.values() for _, found in parts for row in found]
    cold = [row for row in rows if row["timer"] in COLD]
    drawn, numbers = rooflines(cold, gpu, known)
    lost = [op for op in of_ops if not any(find(op, r["direction"]) for r in cold if r["op"] == op)]
    kinds = ("benchmark", "ceilings")
    apart = [file for file in files if file.kind in kinds and not file.is_of_ops]
    return Machine(
        gpu or "an unknown GPU",
        _tiles(files, len(of_ops), sources),
        _stale([file for file in files if file.is_of_ops], sources),
        drawn,
        [op for op in lost if any(row["op"] == op for row in cold)],
        numbers,
        ranking.summary(files),
        ranking.rankings(files),
        missed(files),
        [_op(op, parts, sources) for op, parts in of_ops.items()],
        [
            *(_apart(file, sources) for file in apart),
            *_pipelines(files),
            *(_lessons(file, sources) for file in files if file.kind == "lessons"),
        ],
        [_suite(file, sources) for file in files if file.kind == "tests"],
    )


def _tiles(files: Sequence[File], ops: int, sources: str) -> list[Tile]:
    rows = [row for file in files for row in file.rows]
    bars = [bar for row in rows for bar in row["bars"]]
    wrong = sum(was_run(row) and not row.get("verified") for row in rows)
    missed = sum(not bar["met"] for bar in bars)
    tiles = [
        Tile(str(ops), "ops measured"),
        Tile(f"{len(rows):,}", "measurements"),
        Tile(f"{len(bars) - missed}/{len(bars)}", "bars met", "bad" if missed else "good"),
        Tile(str(wrong), "results not verified, without a speed", "bad" if wrong else "good"),
    ]
    for file in files:
        if file.kind == "tests":
            failed = file.content["failed"]
            stale = _stale([file], sources)
            words = f"GPU tests passed, {failed} failed" + (f", {stale}" if stale else "")
            tiles.append(Tile(f"{file.content['passed']:,}", words, "bad" if failed else "good"))
    return tiles


def _is_stale(file: File, sources: str) -> bool:
    return bool(file.sources and sources and file.sources != sources)


def _stale(files: Sequence[File], sources: str) -> str:
    """What is said where results of these files are shown; "" if none is known to be stale."""
    count = sum(_is_stale(file, sources) for file in files)
    if not count:
        return ""
    return STALE if count == len(files) else f"{count} of {len(files)} files are {STALE}"


def _about(files: Sequence[File], rows: Sequence[Row]) -> str:
    """How much was measured, when and of which commits, and how many bars are met."""
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
    return " ".join(filter(None, about))


def _op(op: str, parts: Sequence[tuple[File, list[Row]]], sources: str) -> Section:
    """An op: its figures, and all that was measured."""
    files, rows = [file for file, _ in parts], [row for _, found in parts for row in found]
    drawn = figures.of_op(rows)
    table = measurements(f"All measurements of {op}.", rows)
    return Section(op, _about(files, rows), drawn, [table], op, _stale(files, sources))


def _apart(file: File, sources: str) -> Section:
    """What is of no op: ceilings, results with options of their own."""
    about, drawn = _about([file], file.rows), figures.apart(file)
    device = file.content.get("device")
    if isinstance(device, dict):
        about += (
            f" The driver says: {', '.join(f'{name} {fact}' for name, fact in device.items())}."
        )
    table = measurements(f"All measurements of {file.op}.", file.rows, is_of_ops=False)
    return Section(file.op, about, drawn, [table], stale=_stale([file], sources))


def _pipelines(files: Sequence[File]) -> list[Section]:
    drawn = [figures.stages(file) for file in files if file.kind == "pipeline"]
    return [Section("pipelines", "When each stage was at work.", drawn)] if drawn else []


def _lessons(file: File, sources: str) -> Section:
    """The lessons' figures: each lesson's tables have columns of their own."""
    tables = []
    for lesson in file.content["rows"]:
        rows = lesson["rows"]
        titles = list(dict.fromkeys(title for row in rows for title in row))
        columns = [
            Column(title, all(isinstance(row.get(title, 0), (int, float)) for row in rows))
            for title in titles
        ]
        shown = [TableRow([any_cell(row.get(title)) for title in titles]) for row in rows]
        tables.append(Table(f"{lesson['workload']}: {lesson['title']}.", columns, shown))
    about = f"What {len(tables)} tables of lessons show, commit {file.commit[:12]}, {file.date}."
    return Section(file.op, about, tables=tables, stale=_stale([file], sources))


def _state(file: File, sources: str) -> Cell:
    if not file.sources or not sources:
        return Cell(file.sources or "–")
    if file.sources == sources:
        return Cell("of these sources", kind="good")
    return Cell(STALE, kind="bad")


SHOWN_VERSIONS = ("diglot", "torch", "triton", "cuda", "driver", "python")


def _files(files: Iterable[File], sources: str) -> Table:
    titles = ("file", "GPU", "date", "commit", "sources", *SHOWN_VERSIONS)
    columns = [*map(Column, titles), Column("rows", True), Column("bars missed", True)]
    rows = []
    for file in files:
        missed = sum(not bar["met"] for row in file.rows for bar in row["bars"])
        note = f"incomplete: {file.incomplete}" if file.incomplete else ""
        cells = [
            Cell(file.path, kind="bad" if note else "", note=note),
            Cell(file.gpu or "–"),
            Cell(file.date or "–"),
            Cell(file.commit[:12] or "–", hint=file.commit),
            _state(file, sources),
            *(Cell(file.versions.get(name, "–")) for name in SHOWN_VERSIONS),
            number_cell(len(file.rows) or None),
            number_cell(missed, "bad" if missed else ""),
        ]
        rows.append(TableRow(cells))
    return Table("Each file, what it was measured on and with.", columns, rows)


def _suite(file: File, sources: str) -> Section:
    content = file.content
    counts = ", ".join(f"{content[key]} {key}" for key in ("passed", "failed", "skipped"))
    if file.incomplete:
        counts += f"; {file.incomplete}"
    about = f"{counts}; {content.get('gpus', 1)} GPU(s), commit {file.commit[:12]}."
    tables = []
    failures, reasons = content.get("failures"), content.get("skip_reasons")
    if isinstance(failures, list) and failures:
        failed = [TableRow([Cell(str(name), kind="bad")]) for name in failures]
        tables.append(Table("Tests that failed.", [Column("test")], failed))
    if isinstance(reasons, dict) and reasons:
        skipped = [TableRow([Cell(str(k)), any_cell(v)]) for k, v in reasons.items()]
        columns = [Column("reason"), Column("tests", True)]
        tables.append(Table("Why tests were skipped.", columns, skipped))
    return Section(file.op, about, tables=tables, stale=_stale([file], sources))
