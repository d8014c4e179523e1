"""The ranking, the bars that are missed, and what counts as an operation, as tables."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from diglot.bench import marks, reports
from diglot.bench.harness import RANKED
from diglot.bench.lines import RULE
from diglot.bench.ranking import LINES_HEADER, SAVED, TITLES, lines_cells, ranks, saved, saved_text
from diglot.tools.report import figures
from diglot.tools.report.cases import Provider, groups, is_of_op, kind_text, largest, shape_text
from diglot.tools.report.operations import find
from diglot.tools.report.results import File, Row
from diglot.tools.report.svg import number
from diglot.tools.report.tables import Cell, Column, Table, TableRow, number_cell, time_cell

# Two to a column, so that times are seen on a phone too.
CASE = tuple(map(Column, ("op, direction", "type, shape")))
TIMERS = {"device": "", "captured": ", as a CUDA graph"}  # as words behind the direction


def rankings(files: Sequence[File], providers: Mapping[str, Provider]) -> list[Table]:
    """Who is fastest: in each case of a ranking, with what each way costs; then ops without one."""
    found = [file for file in files if is_of_op(file)]
    ranked = [file for file in found if file.content.get("lines")]
    lines = {op: of for file in ranked for op, of in file.content["lines"].items()}
    rows = [row for file in ranked for row in file.rows if row.op in lines]
    others = [row for file in found for row in file.rows if row.op not in lines]
    missing = reports.incomplete(file.content for file in ranked)
    tables = [_five_ways(rows, missing), _lines(lines), _own_cases(others, providers)]
    return [table for table in tables if table.rows]


def _five_ways(rows: Sequence[Row], missing: str) -> Table:
    """The cases of `diglot bench --ranking`, every one."""
    columns = [*CASE, *_titles(RANKED)]
    columns += [Column(title, True, "the formula's → Triton's / CUDA's") for _, title, _ in SAVED]
    body = []
    for cases in groups(rows, "op", "kind", "dtype", "timer").values():
        for case in cases.values():
            figures_of = {name: row.content for name, row in case.items()}
            costs = [
                Cell(saved_text(figures_of, name, style), saved(figures_of, name))
                for name, _, style in SAVED
            ]
            body.append(_places(case, RANKED, costs))
    words = (
        "Five ways of writing each op, and the launches and the host's time of the formula with "
        "what is left of them in our kernels (Triton / CUDA, one number if they agree)."
    )
    return Table(f"{words} It is {missing}." if missing else words, columns, body)


def _lines(lines: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Table:
    """The lines of code of each way."""
    columns = [Column("op"), *(Column(title, True) for title in LINES_HEADER[1:])]
    body = []
    for op, ways in lines.items():
        counts = [ways[name]["own"] if name in ways else None for name in RANKED]
        texts = lines_cells(op, ways)[1:]
        body.append(TableRow([Cell(op), *map(Cell, texts, counts)], op))
    return Table(RULE, columns, body)


def _own_cases(rows: Iterable[Row], providers: Mapping[str, Provider]) -> Table:
    """The largest case of each op, direction and type."""
    timed = [row for row in rows if row.timer in figures.COLD]
    shown = [name for name in providers if any(row.provider == name for row in timed)]
    of_kinds = map(largest, groups(timed, "op", "kind", "dtype", "timer").values())
    body = [
        _places(case, shown)
        for case in of_kinds
        if any(row.time_us is not None for row in case.values())
    ]
    return Table(
        "Ops without results of diglot bench --ranking: of their own cases the largest of each "
        "direction and type, with other packages' kernels too. ✗ marks what misses its bar.",
        [*CASE, *_titles(shown)],
        body,
    )


def _titles(names: Iterable[str]) -> list[Column]:
    return [Column(TITLES.get(name, name), True, "median µs · place") for name in names]


def _places(case: Mapping[str, Row], names: Collection[str], more: Iterable[Cell] = ()) -> TableRow:
    """A case's row: what is timed, the times of `names` with their places, and what else."""
    places = ranks({name: row.content for name, row in case.items()}, names)
    best = min((case[name].time_us or math.inf for name in places), default=math.inf)
    row = next(iter(case.values()))
    words = kind_text(row) + TIMERS.get(row.timer, f", {row.timer}")
    head = [Cell(row.op, note=words), Cell(row.dtype, note=shape_text(row))]
    times = [_place(case.get(name), places.get(name), best) for name in names]
    return TableRow([*head, *times, *more], row.op)


def _place(row: Row | None, place: int | None, best: float) -> Cell:
    if row is None:
        return Cell("–")
    if row.time_us is None or place is None:
        return time_cell(row)
    kind = "bad" if row.is_missed else "best" if place == 1 else ""
    share = best / row.time_us
    return Cell(
        f"{_time(row.time_us)} · {place}{' ✗' if row.is_missed else ''}",
        row.time_us,
        kind,
        share,
        f"{share:.2f} of the fastest's speed",
        f"{_time(row.p20_us)}–{_time(row.p80_us)}{marks.mark(row.content, {})}",
    )


def _time(value: float | None) -> str:
    """Four digits: places are of differences that three do not show."""
    return number(value) if value is None or value >= 1000 else f"{value:.4g}"


def missed(files: Iterable[File]) -> Table:
    """What misses its bar, the worst first."""
    columns = [
        Column("op"),
        Column("by"),
        Column("case"),
        Column("bar"),
        Column("reached", True),
        Column("bar at", True),
        Column("missed by", True),
    ]
    found = [(bar, row) for file in files for row in file.rows for bar in row.bars if not bar.met]
    rows = []
    for bar, row in sorted(found, key=lambda of: -of[0].shortfall):
        cells = [
            Cell(row.op),
            Cell(row.provider),
            Cell(_case_text(row)),
            Cell(bar.name),
            time_cell(row) if bar.value is row.time_us is None else number_cell(bar.value),
            number_cell(bar.bound),
            Cell(f"{bar.shortfall:.0%}", bar.shortfall, "bad"),
        ]
        rows.append(TableRow(cells, row.op))
    return Table("Bars that are missed, the worst first.", columns, rows)


def _case_text(row: Row) -> str:
    parts = [row.workload, kind_text(row), row.dtype, shape_text(row), row.timer]
    return ", ".join(part for part in parts if part)


def counted(rows: Iterable[Row]) -> Table:
    """What counts as an operation of each op."""
    columns = [Column("op"), Column("direction"), Column("counted for each element")]
    found = {}
    for row in rows:
        of = find(row.op, row.direction)
        if of is not None and row.timer in figures.COLD:
            found[row.op, row.direction] = of.of
    body = [TableRow([Cell(op), Cell(to), Cell(of)], op) for (op, to), of in found.items()]
    return Table("Operations that count in the roofline: the definition's.", columns, body)
