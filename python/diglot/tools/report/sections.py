"""Parts of the page: of an op, and of what else was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diglot.bench import marks
from diglot.tools import ceilings
from diglot.tools.report import figures
from diglot.tools.report.cases import Provider, kind_text, shape_text
from diglot.tools.report.figures import Figure
from diglot.tools.report.results import File, Row
from diglot.tools.report.svg import number
from diglot.tools.report.tables import (
    Cell,
    Column,
    Table,
    TableRow,
    any_cell,
    number_cell,
    time_cell,
)


@dataclass(frozen=True)
class Section:
    """A part of the page: of an op, or of something else that was measured."""

    name: str
    about: str
    figures: Sequence[Figure] = field(default=())
    tables: Sequence[Table] = field(default=())
    op: str = ""


def of_op(file: File, providers: Mapping[str, Provider]) -> Section:
    """An op: its figures, and all that was measured."""
    missed = sum(not bar.met for row in file.rows for bar in row.bars)
    judged = sum(len(row.bars) for row in file.rows)
    about = f"{len(file.rows)} measurements, commit {file.commit or 'unknown'}, {file.date}."
    if file.incomplete:
        about += f" Incomplete: {file.incomplete}."
    if judged:
        about += f" {judged - missed} of {judged} bars are met."
    about = " ".join([about, *marks.notes([row.content for row in file.rows])])
    return Section(
        file.op, about, figures.of_op(file, providers), [_rows(file, providers)], op=file.op
    )


# What newer results have beside their times: the row's entry, the column, a factor.
EXTRAS = (
    ("launches", "launches", 1.0),
    ("host_us", "host µs", 1.0),
    ("peak_bytes", "peak MB", 1e-6),
    ("first_call_ms", "first call ms", 1.0),
    ("worst_ulp", "worst ulp", 1.0),
)


def _rows(file: File, providers: Mapping[str, Provider]) -> Table:
    extras = [of for of in EXTRAS if any(of[0] in row.others for row in file.rows)]
    columns = [
        Column("direction"),
        Column("type"),
        Column("shape"),
        Column("timer"),
        Column("by"),
        Column("µs", True, "median"),
        Column("20th", True, "20th percentile, µs"),
        Column("80th", True, "80th percentile, µs"),
        Column("TB/s", True, "each input and each output counted once"),
        Column("of copy", True, "share of a device copy of as many bytes, in the same run"),
        *(Column(title, True) for _, title, _ in extras),
        Column("bars", hint="or why there is no time"),
    ]
    body = []
    for row in file.rows:
        cells = [Cell(kind_text(row)), Cell(row.dtype), Cell(shape_text(row)), Cell(row.timer)]
        cells += [Cell(row.provider, note=marks.words(row.content)), time_cell(row)]
        cells += [number_cell(row.p20_us), number_cell(row.p80_us)]
        cells += [number_cell(row.tb_per_s), number_cell(row.share_of_copy)]
        for key, _, factor in extras:
            cells.append(any_cell(row.others.get(key), factor))
        texts = [
            f"{'✓' if bar.met else '✗'} {bar.name} {number(bar.value)} (bar {number(bar.bound)})"
            for bar in row.bars
        ]
        kind = "" if not texts else "bad" if row.is_missed else "good"
        cells.append(Cell("; ".join(texts) or row.reason or "–", kind=kind))
        key = providers[row.provider].key
        body.append(TableRow(cells, key=key))
    return Table(f"All measurements of {file.op}.", columns, body)


def of_others(files: Sequence[File]) -> list[Section]:
    """What is of no op: ceilings, results with options of their own, pipelines."""
    sections = [_ceilings(file) for file in files if file.kind == "ceilings"]
    sections += [_apart(file) for file in files if file.kind == "benchmark"]
    found = [figures.stages(file) for file in files if file.kind == "pipeline"]
    drawn = [figure for figure in found if figure is not None]
    if drawn:
        about = "When each stage of a pipeline was at work; chunks next to each other differ."
        sections.append(Section("pipelines", about, drawn))
    return sections


def _apart(file: File) -> Section:
    makers = {"l2": _l2, "grid_barrier_designs": _designs, "stream_map": _streams}
    made = makers[file.op](file) if file.op in makers else []
    about = f"{len(file.rows)} measurements, commit {file.commit[:12] or 'unknown'}, {file.date}."
    return Section(file.op, about, [figure for figure in made if figure], [_plain(file)])


def _l2(file: File) -> list[Figure | None]:
    by = dict.fromkeys(row.workload for row in file.rows)
    return [
        figures.over_options(
            [row for row in file.rows if row.workload == workload],
            f"{workload}: speed over that without persistence, by hit ratio",
            x="hot_mb",
            y="speed",
            series=_hit_ratio,
            x_title="hot set, MB",
            y_title="speed over none",
        )
        for workload in by
    ]


def _hit_ratio(row: Row) -> str:
    ratio = row.options.get("hit_ratio")
    return "none" if ratio is None else str(ratio)


def _design(row: Row) -> str:
    each = row.options.get("blocks per multiprocessor")
    return row.provider if each is None else f"{row.provider}, {each} blocks each"


def _designs(file: File) -> list[Figure | None]:
    found = []
    for threads in sorted({str(row.options.get("threads")) for row in file.rows}, key=_by_number):
        rows = [row for row in file.rows if str(row.options.get("threads")) == threads]
        of_barrier = threads != "None"
        found.append(
            figures.over_options(
                rows,
                f"A barrier, blocks of {threads} threads"
                if of_barrier
                else "An array standardized: one launch with a barrier beside several",
                x="blocks" if of_barrier else "bytes",
                y="time_us",
                series=_design,
                x_title="blocks" if of_barrier else "bytes of the array",
                y_title="µs",
                is_log=True,
            )
        )
    return found


def _by_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf")


def _streams(file: File) -> list[Figure | None]:
    limits = file.content.get("ceilings_gb_per_s")
    words = ""
    if isinstance(limits, dict):
        words = "; copies alone: " + ", ".join(f"{k} {any_cell(v).text}" for k, v in limits.items())
    return [figures.workloads(file.rows, f"Arrays in host memory, GB/s each way{words}")]


def _plain(file: File) -> Table:
    """All rows of any results: whatever they have that is text or a number."""
    head = ("workload", "provider", "timer")
    names = list(dict.fromkeys(key for row in file.rows for key in row.others))
    options = list(dict.fromkeys(key for row in file.rows for key in row.options))
    simple = [
        name
        for name in names
        if all(isinstance(r.others.get(name), (str, int, float, type(None))) for r in file.rows)
    ]
    columns = [
        *map(Column, head),
        *(
            Column(str(name), _numeric(row.options.get(name) for row in file.rows))
            for name in options
        ),
        Column("µs", True, "median"),
        *(Column(name, _numeric(row.others.get(name) for row in file.rows)) for name in simple),
        Column("bars"),
    ]
    body = []
    for row in file.rows:
        cells = [Cell(getattr(row, name) or "–") for name in head]
        cells += [any_cell(row.options.get(name)) for name in options]
        cells.append(time_cell(row))
        cells += [any_cell(row.others.get(name)) for name in simple]
        texts = [f"{'✓' if b.met else '✗'} {b.name} {number(b.value)}" for b in row.bars]
        kind = "" if not texts else "bad" if row.is_missed else "good"
        body.append(TableRow([*cells, Cell("; ".join(texts) or "–", kind=kind)]))
    return Table(f"All measurements of {file.op}.", columns, body)


def _numeric(values: Iterable[Any]) -> bool:
    return all(value is None or isinstance(value, (int, float)) for value in values)


def _ceilings(file: File) -> Section:
    known = ceilings.parse(file.content, file.path)
    columns = [
        Column("what"),
        Column("how"),
        Column("type"),
        Column("size"),
        Column("median µs", True),
        Column("20th", True),
        Column("80th", True),
        Column("rate", True),
        Column("unit"),
    ]
    rows = []
    for row in known.rows:
        size = (
            "×".join(map(str, row.shape)) if row.shape else f"{(row.bytes or 0) / 2**20:,.0f} MiB"
        )
        cells = [Cell(row.what), Cell(row.how), Cell(row.dtype), Cell(size)]
        cells += [number_cell(of) for of in (row.time_us, row.p20_us, row.p80_us, row.rate)]
        rows.append(TableRow([*cells, Cell(row.reason or row.unit)]))
    facts = json.dumps(known.device, ensure_ascii=False)
    table = Table("What the machine reaches at most.", columns, rows)
    return Section("ceilings", f"Measured {known.date}. The driver says: {facts}", tables=[table])
