"""What a report shows of results: figures and tables, for each GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diglot.bench.regressions import NOISE
from diglot.tools import ceilings
from diglot.tools.report import figures, sections
from diglot.tools.report.cases import Provider, by_op, is_of_op, providers_of
from diglot.tools.report.figures import Figure
from diglot.tools.report.operations import find
from diglot.tools.report.ranking import counted, missed, rankings
from diglot.tools.report.results import File, Results
from diglot.tools.report.sections import Section
from diglot.tools.report.tables import Cell, Column, Table, TableRow, any_cell


@dataclass(frozen=True)
class Tile:
    """A figure that the page begins with; `kind` as a cell's."""

    value: str
    words: str
    kind: str = ""


@dataclass(frozen=True)
class Machine:
    """Everything that was measured on one GPU."""

    gpu: str
    tiles: Sequence[Tile]
    rooflines: Sequence[Figure]
    not_on_roofline: Sequence[str]
    counted: Table
    ranking: Sequence[Table]
    missed: Table
    ops: Sequence[Section]
    others: Sequence[Section]
    suites: Sequence[Section]


@dataclass(frozen=True)
class Page:
    """All of it."""

    machines: Sequence[Machine]
    providers: Sequence[Provider]
    ops: Sequence[str]
    files: Table
    left_out: Sequence[tuple[str, str]]
    is_compared: bool
    noise: str


def page_of(results: Results, sources: str = "") -> Page:
    """What is shown of results.

    Args:
        results: what was read.
        sources: the hash of the sources at hand: what was measured with others is stale. "" if
            that is not known.
    """
    providers = providers_of(results.files)
    counts = Counter(file.gpu for file in results.files if file.kind != "pipeline")
    gpus = [gpu for gpu, _ in counts.most_common()]  # that of most results first
    of_gpu: dict[str, list[File]] = {gpu: [] for gpu in gpus or [""]}
    for file in results.files:
        # A pipeline's report does not say its GPU: it is shown with the first.
        of_gpu[file.gpu if file.kind != "pipeline" else next(iter(of_gpu))].append(file)
    machines = [_machine(gpu, files, providers, sources) for gpu, files in of_gpu.items()]
    ops = list(dict.fromkeys(section.op for machine in machines for section in machine.ops))
    return Page(
        machines,
        list(providers.values()),
        ops,
        _files(results.files, sources),
        results.left_out,
        bool(sources),
        f"{NOISE:.0%}",
    )


def _machine(
    gpu: str, files: Sequence[File], providers: Mapping[str, Provider], sources: str
) -> Machine:
    of_ops = by_op(files)
    known = next(
        (ceilings.parse(file.content, file.path) for file in files if file.kind == "ceilings"), None
    )
    rows = [row for file in of_ops for row in file.rows]
    suites = [_suite(file, sources) for file in files if file.kind == "tests"]
    names = dict.fromkeys(row.op for row in rows if row.timer in figures.COLD)
    return Machine(
        gpu or "an unknown GPU",
        _tiles(files, of_ops),
        figures.rooflines(of_ops, providers, known),
        [op for op in names if not any(find(op, r.direction) for r in rows if r.op == op)],
        counted(rows),
        rankings(files, providers),
        missed(files),
        [sections.of_op(file, providers) for file in of_ops],
        sections.of_others([file for file in files if file.kind != "tests" and not is_of_op(file)]),
        suites,
    )


def _tiles(files: Sequence[File], of_ops: Sequence[File]) -> list[Tile]:
    rows = [row for file in files for row in file.rows]
    bars = [bar for row in rows for bar in row.bars]
    wrong = sum(row.was_run and not row.verified for row in rows)
    missed = sum(not bar.met for bar in bars)
    tiles = [
        Tile(str(len(of_ops)), "ops measured"),
        Tile(f"{len(rows):,}", "measurements"),
        Tile(f"{len(bars) - missed}/{len(bars)}", "bars met", "bad" if missed else "good"),
        Tile(str(wrong), "results not verified, without a speed", "bad" if wrong else "good"),
    ]
    for file in files:
        if file.kind == "tests":
            failed = file.content["failed"]
            words = f"GPU tests passed, {failed} failed"
            tiles.append(Tile(f"{file.content['passed']:,}", words, "bad" if failed else "good"))
    return tiles


def _state(file: File, sources: str) -> Cell:
    if not file.sources:
        return Cell("–")
    if not sources:
        return Cell(file.sources)
    if file.sources == sources:
        return Cell("of these sources", kind="good")
    return Cell("stale: the sources have changed since", kind="bad")


SHOWN_VERSIONS = ("diglot", "torch", "triton", "cuda", "driver", "python")


def _files(files: Iterable[File], sources: str) -> Table:
    columns = [
        Column("file"),
        Column("GPU"),
        Column("date"),
        Column("commit"),
        Column("sources"),
        *(Column(name) for name in SHOWN_VERSIONS),
        Column("rows", True),
        Column("bars missed", True),
    ]
    rows = []
    for file in files:
        missed = sum(not bar.met for row in file.rows for bar in row.bars)
        versions = [
            Cell(file.versions.get(name, "–"), hint=name + " of what ran")
            for name in SHOWN_VERSIONS
        ]
        cells = [
            Cell(file.path, kind="bad", note=f"incomplete: {file.incomplete}")
            if file.incomplete
            else Cell(file.path),
            Cell(file.gpu or "–"),
            Cell(file.date or "–"),
            Cell(file.commit[:12] or "–", hint=file.commit),
            _state(file, sources),
            *versions,
            Cell(str(len(file.rows)) if file.rows else "–", float(len(file.rows))),
            Cell(str(missed), float(missed), "bad" if missed else ""),
        ]
        rows.append(TableRow(cells))
    return Table("Each file, what it was measured on and with.", columns, rows)


def _suite(file: File, sources: str) -> Section:
    content, state = file.content, _state(file, sources)
    counts = ", ".join(f"{content[key]} {key}" for key in ("passed", "failed", "skipped"))
    if file.incomplete:
        counts += f"; {file.incomplete}"
    about = f"{counts}; {content.get('gpus', 1)} GPU(s), commit {file.commit[:12]}, {state.text}."
    tables = []
    failures, reasons = content.get("failures"), content.get("skip_reasons")
    if isinstance(failures, list) and failures:
        failed = [TableRow([Cell(str(name), kind="bad")]) for name in failures]
        tables.append(Table("Tests that failed.", [Column("test")], failed))
    if isinstance(reasons, dict) and reasons:
        skipped = [TableRow([Cell(str(k)), any_cell(v)]) for k, v in reasons.items()]
        columns = [Column("reason"), Column("tests", True)]
        tables.append(Table("Why tests were skipped.", columns, skipped))
    return Section(file.op, about, tables=tables)
