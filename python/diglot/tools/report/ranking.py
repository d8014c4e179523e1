"""The ranking and the bars that are missed, as tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

from diglot.bench import marks, reports
from diglot.bench.harness import RANKED, Row, Rows
from diglot.bench.lines import RULE
from diglot.bench.plots import shape_text
from diglot.bench.ranking import LINES_HEADER, SAVED, TITLES, lines_cells, ranks, saved, saved_text
from diglot.bench.result_files import File
from diglot.tools.numbers import number
from diglot.tools.report.cases import COLD, providers_of
from diglot.tools.report.tables import (
    Cell,
    Column,
    Table,
    TableRow,
    is_missed,
    time_cell,
)

# Two to a column, so that times are seen on a phone too.
CASE = tuple(map(Column, ("op, direction", "type, shape")))
TIMERS = {"device": "", "captured": ", as a CUDA graph"}  # as words behind the direction


def rankings(files: Sequence[File]) -> list[Table]:
    """Each case with cold caches, with what each way costs; and the lines of code of each way."""
    found = [file for file in files if file.is_of_ops]
    rows = [row for file in found for row in file.rows if row["timer"] in COLD]
    ranked = [file for file in found if file.content.get("lines")]
    lines = {op: ways for file in ranked for op, ways in file.content["lines"].items()}
    missing = reports.incomplete(file.content for file in ranked)
    tables = [_cases(rows, providers_of(found), missing), _lines(lines)]
    return [table for table in tables if table.rows]


def summary(files: Sequence[File]) -> Table:
    """How often each provider is first, and how close to the fastest it is on average."""
    rows = [row for f in files if f.is_of_ops for row in f.rows if row["timer"] in COLD]
    by_op: dict[str, list[Rows]] = {}
    for case in reports.by_case(rows):
        if len([row for row in case.values() if "time_us" in row]) > 1:
            by_op.setdefault(next(iter(case.values()))["op"], []).append(case)
    timed = {name for cases in by_op.values() for case in cases for name in case}
    names = [name for name in providers_of(files) if name in timed]
    body = []
    for op, cases in by_op.items():
        found: dict[str, list[tuple[bool, float]]] = {}
        for case in cases:
            places = ranks(case, names)
            best = min(case[name]["time_us"] for name in places)
            for name, place in places.items():
                found.setdefault(name, []).append((place == 1, best / case[name]["time_us"]))
        body.append(TableRow([Cell(op), *(_often(found.get(name, [])) for name in names)], op))
    return Table(
        "In how many of its cases each way is the fastest, or within noise of it, and below that "
        "its speed as a share of the fastest's, the geometric mean over its cases.",
        [Column("op"), *_titles(names, "cases in which it is first, of how many")],
        body,
    )


def _often(found: Sequence[tuple[bool, float]]) -> Cell:
    if not found:
        return Cell("–")
    firsts = sum(is_first for is_first, _ in found)
    mean = statistics.geometric_mean(share for _, share in found)
    kind = "best" if 2 * firsts > len(found) else ""
    return Cell(f"{firsts} of {len(found)}", firsts, kind, mean, note=f"{mean:.2f}")


def _cases(rows: Iterable[Row], names: Sequence[str], missing: str) -> Table:
    """Each case: times and places, and of the ranking's what is saved."""
    columns = [*CASE, *_titles(names)]
    columns += [Column(title, True, "the formula's → Triton's / CUDA's") for _, title, _ in SAVED]
    body = []
    for case in reports.by_case(rows):
        if any("time_us" in row for row in case.values()):
            costs = [
                Cell(saved_text(case, name, style), saved(case, name)) for name, _, style in SAVED
            ]
            body.append(_places(case, names, costs))
    words = (
        "Every case. In each cell are the median in µs and the place, and below them the band from "
        "the 20th to the 80th percentile. Launches and the host's time are the formula's, with "
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


def _titles(names: Iterable[str], hint: str = "median µs · place") -> list[Column]:
    return [Column(TITLES.get(name, name), True, hint) for name in names]


def _places(case: Rows, names: Collection[str], more: Iterable[Cell] = ()) -> TableRow:
    """A case's row: what is timed, the times of `names` with their places, and what else."""
    places = ranks(case, names)
    best = min((case[name]["time_us"] for name in places), default=math.inf)
    row = next(iter(case.values()))
    words = reports.kind_text(row) + TIMERS.get(row["timer"], f", {row['timer']}")
    head = [Cell(row["op"], note=words), Cell(row["dtype"], note=shape_text(row))]
    times = [_place(case.get(name), places.get(name), best) for name in names]
    return TableRow([*head, *times, *more], row["op"])


def _place(row: Row | None, place: int | None, best: float) -> Cell:
    if row is None:
        return Cell("–")
    if place is None:
        return time_cell(row)
    kind = "bad" if is_missed(row) else "best" if place == 1 else ""
    share = best / row["time_us"]
    return Cell(
        f"{_time(row['time_us'])} · {place}{' ✗' if is_missed(row) else ''}",
        row["time_us"],
        kind,
        share,
        note=f"{_time(row['p20_us'])}–{_time(row['p80_us'])}{marks.mark(row, {})}",
    )


def _time(value: float) -> str:
    """Four digits: places are of differences that three do not show."""
    return number(value) if value >= 1000 else f"{value:.4g}"
