"""The ranking, the bars that are missed, and what counts as an operation, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from diglot.tools.report import figures
from diglot.tools.report.cases import NOISE, Provider, groups, kind_text, largest, shape_text
from diglot.tools.report.operations import find
from diglot.tools.report.results import File, Row
from diglot.tools.report.svg import number
from diglot.tools.report.tables import Cell, Column, Table, TableRow, number_cell, time_cell


def ranking(rows: Sequence[Row], providers: Mapping[str, Provider]) -> Table:
    """Who is fastest, in the largest case of each op, direction and type."""
    timed = [row for row in rows if row.timer in figures.COLD]
    shown = [name for name in providers if any(row.provider == name for row in timed)]
    head = ["op", "direction", "type", "shape"]
    columns = [*map(Column, head), *(Column(name, True, _RANK_HINT) for name in shown)]
    body = []
    for (op, kind, dtype, timer), cases in groups(timed, "op", "kind", "dtype", "timer").items():
        case = largest(cases)
        times = {name: row.time_us for name, row in case.items() if row.time_us is not None}
        if not times:
            continue
        best = min(times.values())
        any_row = next(iter(case.values()))
        words = f"{kind}, as a CUDA graph" if timer == "captured" else kind
        cells = [Cell(op), Cell(words), Cell(dtype), Cell(shape_text(any_row))]
        cells += [_rank_cell(case.get(name), times, best) for name in shown]
        body.append(TableRow(cells, op))
    return Table(
        "Speed as a share of the fastest, of the largest case of each op, direction and type, and "
        f"the place in the ranking; within {NOISE:.0%} of each other two share a place. ✗ marks "
        "what misses its bar.",
        columns,
        body,
    )


_RANK_HINT = "share of the fastest's speed; place"


def _rank_cell(row: Row | None, times: Mapping[str, float], best: float) -> Cell:
    if row is None:
        return Cell("–")
    if row.time_us is None:
        return time_cell(row)
    time = row.time_us
    place = 1 + sum(of * (1 + NOISE) < time for of in times.values())
    share = best / time
    words = f"{number(row.time_us)} µs (20th to 80th percentile {number(row.p20_us)} to "
    words += f"{number(row.p80_us)})"
    kind = "bad" if row.is_missed else "best" if place == 1 else ""
    sign = " ✗" if row.is_missed else ""
    return Cell(f"{share:.2f} · {place}{sign}", share, kind, share, words)


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
