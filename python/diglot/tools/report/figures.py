"""The figures of a report: which rows are drawn how."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from diglot.bench import plots
from diglot.bench.harness import Row
from diglot.pipeline import chart
from diglot.pipeline.report import PipelineReport
from diglot.tools import drawing, inline_svg
from diglot.tools.ceilings import Ceilings
from diglot.tools.drawing import INK, Case, Picture, Point, number
from diglot.tools.gpus import find_gpu
from diglot.tools.report.cases import kind_text, largest
from diglot.tools.report.operations import find, operations
from diglot.tools.report.results import File, finite
from diglot.tools.report.tables import (
    Cell,
    Column,
    Table,
    TableRow,
    any_cell,
    is_missed,
    number_cell,
)

DTYPES = ("float32", "bfloat16", "float16")
SMALL = 1e-30  # what is smaller is not drawn on a logarithmic scale


@dataclass(frozen=True)
class Figure:
    """A picture with its caption; `is_wide` where it takes the page's width."""

    title: str
    svg: Markup
    dtype: str = ""
    is_wide: bool = False


def figure(picture: Picture, dtype: str = "") -> Figure:
    """A picture as the page shows it."""
    svg = Markup(inline_svg.inline(picture))
    return Figure(picture.title, svg, dtype, picture.width > plots.WIDTH)


def of_op(rows: Iterable[Row]) -> list[Figure]:
    """Speed or time by case, for each direction, options and timer."""
    return [figure(picture) for picture in plots.pictures(rows).values()]


@dataclass(frozen=True)
class Place:
    """A case in a roofline: TFLOP/s by provider, at so many operations per byte."""

    name: str
    counted: str
    points: Mapping[str, Point]

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return next(iter(self.points.values())).at


def rooflines(
    rows: Sequence[Row], gpu: str, known: Ceilings | None
) -> tuple[list[Figure], list[Table]]:
    """For each dtype a roofline of the largest case of each op and direction, and it in numbers."""
    figures, tables = [], []
    found = {row["dtype"] for row in rows}
    for dtype in [*(d for d in DTYPES if d in found), *sorted(found - set(DTYPES))]:
        of_dtype = [row for row in rows if row["dtype"] == dtype]
        cases = largest(of_dtype, lambda row: (row["op"], kind_text(row), row["timer"]))
        places = [place for case in cases if (place := _place(case)) is not None]
        if places:
            roofs = _roofs(of_dtype, gpu, known)
            figures.append(figure(_roofline(dtype, roofs, places), dtype))
            tables.append(_numbers(dtype, places))
    return figures, tables


def _place(case: Mapping[str, Row]) -> Place | None:
    points = {}
    for name, row in case.items():
        count = operations(row["op"], row["direction"], row["shape"], row["options"])
        if count and row.get("bytes") and "time_us" in row:
            speed, intensity = count / row["time_us"] / 1e6, count / row["bytes"]
            words = f"{plots.shape_text(row)}, {number(row['time_us'])} µs"
            points[name] = Point(speed, intensity, note=words, is_missed=is_missed(row))
    if not points:
        return None
    counted = find(row["op"], row["direction"])
    assert counted is not None
    return Place(f"{row['op']} {kind_text(row)}", counted.of, points)


def constant(value: float) -> Callable[[float], float]:
    """A flat line."""
    return lambda _: value


Roofs = Mapping[str, tuple[str, Callable[[float], float]]]


def _roofs(rows: Sequence[Row], gpu: str, known: Ceilings | None) -> Roofs:
    """Lines that nothing gets above: by name their dashes, and TFLOP/s by operations per byte."""
    roofs: dict[str, tuple[str, Callable[[float], float]]] = {}
    copies = [row["copy_tb_per_s"] for row in rows if "copy_tb_per_s" in row]
    if copies:
        roofs[f"fastest copy, {number(max(copies))} TB/s"] = "--", lambda x: max(copies) * x
    sheet = find_gpu(gpu)
    peak = None if sheet is None else sheet.tflop_per_s["float32"]
    if sheet is not None and peak is not None:
        words = f"{sheet.name}, float32 outside tensor cores, data sheet: {number(peak)} TFLOP/s"
        roofs[words] = ":", constant(peak)
    measured = None if known is None else known.tflop_per_s("float32")
    if measured is not None:
        words = f"float32 product, measured: {number(measured)} TFLOP/s"
        roofs[words] = "-.", constant(measured)
    return roofs


def _roofline(dtype: str, roofs: Roofs, places: Sequence[Place]) -> Picture:
    """TFLOP/s against operations per byte, both logarithmic; marks say whose they are."""
    names = list(dict.fromkeys(name for place in places for name in place.points))
    xs = [place.intensity for place in places]
    ys = [point.value for place in places for point in place.points.values()]
    left, right = min(xs) / 1.5, max(*xs, 30) * 1.5
    bottom, top = min(ys) / 2, 2 * max([*ys, *(height(left) for _, height in roofs.values())])

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, (dashes, height) in roofs.items():
            ends = [height(left), height(right)]
            axes.plot([left, right], ends, color=INK, linestyle=dashes, label=name)
        for name, style in drawing.styles(names).items():
            of = [(place, place.points[name]) for place in places if name in place.points]
            said = [f"{place.name}, {drawing.words(name, p, ' TFLOP/s')}" for place, p in of]
            marks = [(p.at, p, words) for (_, p), words in zip(of, said, strict=True)]
            drawing.series(axes, name, style, marks, linestyle="none")
        axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
        drawing.ticks(axes.xaxis, drawing.powers_between(left, right))
        drawing.ticks(axes.yaxis, drawing.powers_between(bottom, top))
        axes.grid(True)
        axes.set_xlabel("operations per byte moved, logarithmic scale")
        axes.set_ylabel("TFLOP/s, logarithmic scale")
        drawing.legend(figure)

    return Picture(f"Roofline, {dtype}", draw, 8.6, 5.4)


def _numbers(dtype: str, places: Sequence[Place]) -> Table:
    names = list(dict.fromkeys(name for place in places for name in place.points))
    columns = [Column("case"), Column("operations per byte", True)]
    columns += [*(Column(name, True) for name in names), Column("operations of an element")]
    rows = []
    for place in places:
        values = [place.points[name].value if name in place.points else None for name in names]
        cells = [Cell(place.name), number_cell(place.intensity), *map(number_cell, values)]
        rows.append(TableRow([*cells, Cell(place.counted)], place.name.split()[0]))
    return Table(
        f"The roofline of {dtype} in TFLOP/s. Operations that count are the definition's.",
        columns,
        rows,
    )


@dataclass(frozen=True)
class Lines:
    """How results of no op are drawn: which entries of a row, or of its options, are what.

    Attributes:
        x: what goes along; the first of these that a row has.
        y: what goes up.
        series: what tells a provider's lines apart, if anything does.
        panel: what has a picture of its own.
        is_log: whether y is on a logarithmic scale.
    """

    x: tuple[str, ...]
    y: str
    series: str
    panel: str
    is_log: bool = False


APART = {
    "l2": Lines(("hot_mb",), "speed", "hit_ratio", "workload"),
    "grid_barrier_designs": Lines(
        ("bytes", "blocks"), "time_us", "blocks per multiprocessor", "threads", is_log=True
    ),
}


NAMES = {"time_us": "µs", "speed": "speed over none", "hot_mb": "hot set, MB"}


def apart(file: File) -> list[Figure]:
    """Pictures of results of no op: lines over an option, or GB/s of each workload."""
    how = APART.get(file.op)
    if how is None:
        return _workloads(file)
    panels: dict[str, dict[str, dict[str, list[Point]]]] = {}
    for row in file.rows:
        every = {**row, **row["options"]}
        x = next((name for name in how.x if name in every), "")
        at, value = _positive(every.get(x)), _positive(row.get(how.y))
        if at is not None and value is not None:
            panel = f", {how.panel} {every[how.panel]}" if every.get(how.panel) else ""
            title = f"{file.op}{panel}: {NAMES.get(how.y, how.y)} by {NAMES.get(x, x)}"
            which = every.get(how.series)
            name = row["provider"] if which is None else f"{how.series} {which}"
            low, high = (row.get(f"p{n}_us") if how.y == "time_us" else None for n in (20, 80))
            series = panels.setdefault(title, {}).setdefault(x, {})
            series.setdefault(name, []).append(Point(value, at, low, high))
    return [
        figure(Picture(title, _lines(how, x, series), plots.WIDTH, 4.4))
        for title, of in panels.items()
        for x, series in of.items()
    ]


def _lines(how: Lines, x: str, series: Mapping[str, Sequence[Point]]) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        drawing.lines(axes, series)
        if how.is_log:
            axes.set_yscale("log")
            drawing.ticks(axes.yaxis, drawing.powers_between(*axes.get_ylim()))
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(f"{NAMES.get(x, x)}, logarithmic scale")
        axes.set_ylabel(NAMES.get(how.y, how.y) + ", logarithmic scale" * how.is_log)
        drawing.legend(figure)

    return draw


def _positive(value: Any) -> float | None:
    found = finite(value)
    return found if found is not None and found > SMALL else None


def _workloads(file: File) -> list[Figure]:
    """GB/s of each workload."""
    found: dict[str, dict[str, Point]] = {}
    for row in file.rows:
        rate = _positive(row.get("gb_per_s"))
        if rate is not None and "time_us" in row:
            points = found.setdefault(row["workload"], {})
            words = f"{number(row['time_us'])} µs"
            points[row["provider"]] = Point(rate, note=words, is_missed=is_missed(row))
    limits = file.content.get("ceilings_gb_per_s")
    known = limits.items() if isinstance(limits, dict) else ()
    alone = ", ".join(f"{name} {any_cell(value).text}" for name, value in known)
    title = f"{file.op}, GB/s each way" + (f"; copies alone: {alone}" if alone else "")
    cases = [Case(name, points) for name, points in found.items()]
    return [figure(plots.by_case(title, cases, "GB/s each way", width=8.6))] if cases else []


def stages(file: File) -> Figure:
    """When the stages of a pipeline's chunks were at work."""
    picture = chart.picture(PipelineReport.from_json(json.dumps(file.content)))
    made = figure(picture)
    return Figure(f"{Path(file.path).stem}: {picture.title}", made.svg, is_wide=True)
