"""Every measurement as a row of a table, and of these what misses its bar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diglot.bench import marks
from diglot.bench.harness import Row
from diglot.bench.plots import shape_text
from diglot.bench.reports import TIMES, kind_text
from diglot.bench.result_files import TEXTS, File
from diglot.tools.numbers import number
from diglot.tools.report.tables import Cell, Column, Table, TableRow, any_cell, is_missed, time_cell

# What rows have beside a time: the entry, its column, a factor, and what the column means.
EXTRAS: tuple[tuple[str, str, float, str], ...] = (
    ("tb_per_s", "TB/s", 1, "each input and each output counted once"),
    ("share_of_copy", "of copy", 1, "share of a device copy of as many bytes, in the same run"),
    ("launches", "launches", 1, ""),
    ("host_us", "host µs", 1, ""),
    ("peak_bytes", "peak MB", 1e-6, ""),
    ("first_call_ms", "first call ms", 1, ""),
    ("worst_ulp", "worst ulp", 1, ""),
)
KNOWN = {*TEXTS, *TIMES, "tb_per_s", "copy_tb_per_s", "share_of_copy"}
KNOWN |= {"shape", "options", "bars", "verified", "reason"}


def measurements(caption: str, rows: Sequence[Row], is_of_ops: bool = True) -> Table:
    """Every row; of results of no op with whatever they have that is text or a number."""
    extras = [extra for extra in EXTRAS if any(extra[0] in row for row in rows)]
    if not is_of_ops:
        keys = dict.fromkeys(key for row in rows for key in row if key not in KNOWN)
        simple = (str, int, float, type(None))
        keep = [k for k in keys if all(isinstance(row.get(k), simple) for row in rows)]
        extras = [(key, key, 1, "") for key in keep]
    columns = [
        *map(Column, ("case", "timer", "by")),
        Column("bars", hint="or why there is no time"),
        Column("µs", True, "median"),
        Column("20th–80th", True, "percentiles, µs"),
        *(Column(title, True, hint) for _, title, _, hint in extras),
    ]
    has_ops = len({row["op"] for row in rows}) > 1
    body = []
    for row in rows:
        op = row["op"] if has_ops else ""
        words = (op, row["workload"], kind_text(row), row["dtype"], shape_text(row))
        band = [number(row[end]) for end in ("p20_us", "p80_us") if end in row]
        cells = [
            Cell(", ".join(filter(None, words)) or "–"),
            Cell(row["timer"] or "–"),
            Cell(row["provider"] or "–", note=marks.words(row)),
            _bars(row),
            time_cell(row),
            Cell("–".join(band) or "–"),
            *(any_cell(row.get(key), factor) for key, _, factor, _ in extras),
        ]
        body.append(TableRow(cells, op, row["provider"]))
    return Table(caption, columns, body)


def missed(files: Iterable[File]) -> Table:
    """What misses its bar, the worst first."""
    rows = [row for file in files for row in file.rows if is_missed(row)]
    ordered = sorted(rows, key=lambda row: -max(map(_shortfall, row["bars"])))
    return measurements("Bars that are missed, the worst first.", ordered)


def _bars(row: Row) -> Cell:
    """A row's bars; without any, why it has no time."""
    texts = []
    for bar in row["bars"]:
        sign, by = ("✓", "") if bar["met"] else ("✗", f", missed by {_shortfall(bar):.0%}")
        texts.append(
            f"{sign} {bar['name']} {number(bar['value'])} (bar {number(bar['bound'])}{by})"
        )
    kind = "" if not texts else "bad" if is_missed(row) else "good"
    return Cell("; ".join(texts) or str(row.get("reason") or "–"), kind=kind)


def _shortfall(bar: Row) -> float:
    """How far a bar is missed, as a share of the bound; without a value, wholly."""
    value, bound = bar["value"], bar["bound"]
    return 0.0 if bar["met"] else 1.0 if value is None or not bound else abs(value / bound - 1)
