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
from diglot.tools.drawing import INK, SOFT, Case, Picture, Point, number
from diglot.tools.gpus import find_gpu
from diglot.tools.report.cases import kind_text, largest
from diglot.tools.report.operations import find, operations
from diglot.tools.report.results import File, finite
from diglot.tools.report.tables import Cell, Column, Table, TableRow, is_missed, number_cell

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
class Roof:
    """A line that nothing gets above: TB/s of one that rises, or TFLOP/s of a flat one."""

    name: str
    slope: float | None = None
    height: float | None = None
    is_measured: bool = True


@dataclass(frozen=True)
class Place:
    """A case in a roofline: TFLOP/s by provider, at so many operations per byte."""

    name: str
    counted: str
    intensity: float
    points: Mapping[str, Point]


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
    name = f"{row['op']} {kind_text(row)}"
    return Place(name, counted.of, next(iter(points.values())).at, points)


def _roofs(rows: Sequence[Row], gpu: str, known: Ceilings | None) -> list[Roof]:
    copies = [row["copy_tb_per_s"] for row in rows if "copy_tb_per_s" in row]
    roofs = []
    if copies:
        roofs.append(Roof(f"fastest copy, {number(max(copies))} TB/s", slope=max(copies)))
    sheet = find_gpu(gpu)
    peak = None if sheet is None else sheet.tflop_per_s["float32"]
    if sheet is not None and peak is not None:
        words = f"{sheet.name}, float32 outside tensor cores, data sheet: {number(peak)} TFLOP/s"
        roofs.append(Roof(words, height=peak, is_measured=False))
    measured = None if known is None else known.tflop_per_s("float32")
    if measured is not None:
        words = f"float32 product, measured: {number(measured)} TFLOP/s"
        roofs.append(Roof(words, height=measured))
    return roofs


def _roofline(dtype: str, roofs: Sequence[Roof], places: Sequence[Place]) -> Picture:
    """TFLOP/s against operations per byte, both logarithmic; marks say whose they are."""
    by_provider: dict[str, list[tuple[Place, Point]]] = {}
    for place in places:
        for name, point in place.points.items():
            by_provider.setdefault(name, []).append((place, point))
    xs = [place.intensity for place in places]
    ys = [point.value for place in places for point in place.points.values()]
    left, right = min(xs) / 1.5, max(*xs, 30) * 1.5
    bottom, top = min(ys) / 2, 2 * max(*ys, *(roof.height or 0 for roof in roofs), 0)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for roof in roofs:
            ends = [roof.height or (roof.slope or 0) * x for x in (left, right)]
            style = {"color": INK if roof.is_measured else SOFT, "linestyle": "--"}
            style["linestyle"] = "--" if roof.slope else "-." if roof.is_measured else ":"
            axes.plot([left, right], ends, label=roof.name, **style)
        for name, (color, marker) in drawing.styles(by_provider).items():
            notes = [
                f"{place.name}, {name}: {number(point.value)} TFLOP/s ({point.note})"
                for place, point in by_provider[name]
            ]
            at = [point.at for _, point in by_provider[name]]
            of = [point.value for _, point in by_provider[name]]
            style = {"color": color, "marker": marker, "linestyle": "none"}
            gid = drawing.about(name, notes)
            axes.plot(at, of, label=drawing.shown(name), gid=gid, **style)
            missed = [(p.at, p.value) for _, p in by_provider[name] if p.is_missed]
            drawing.ring(axes, name, missed)
        axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
        drawing.decades(axes.xaxis, drawing.powers_between(left, right))
        drawing.decades(axes.yaxis, drawing.powers_between(bottom, top))
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


def over_options(
    rows: Iterable[Row],
    title: str,
    *,
    x: str,
    y: str,
    series: Callable[[Row], str],
    x_title: str,
    y_title: str,
    is_log: bool = False,
) -> list[Figure]:
    """Lines over an option; none where there is nothing to draw.

    Args:
        rows: of results that are of no op.
        title: the caption.
        x: the option that goes along.
        y: what goes up: "time_us", or one of the row's others.
        series: the name of the line that a row is on.
        x_title: what x is.
        y_title: what y is.
        is_log: whether y is on a logarithmic scale.
    """
    found: dict[str, list[Point]] = {}
    for row in rows:
        at, value = _positive(row["options"].get(x)), _positive(row.get(y))
        if at is not None and value is not None:
            low, high = (row.get(end) if y == "time_us" else None for end in ("p20_us", "p80_us"))
            found.setdefault(series(row), []).append(Point(value, at, low, high))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        drawing.lines(axes, found)
        if is_log:
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            drawing.decades(axes.yaxis, drawing.powers_between(low, high))
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(f"{x_title}, logarithmic scale")
        axes.set_ylabel(f"{y_title}, logarithmic scale" if is_log else y_title)
        drawing.legend(figure)

    return [figure(Picture(title, draw, plots.WIDTH, 3.8))] if found else []


def _positive(value: Any) -> float | None:
    found = finite(value)
    return found if found is not None and found > SMALL else None


def workloads(rows: Iterable[Row], title: str) -> list[Figure]:
    """GB/s of each workload."""
    found: dict[str, dict[str, Point]] = {}
    for row in rows:
        rate = _positive(row.get("gb_per_s"))
        if rate is not None and "time_us" in row:
            low, high = (
                rate * row["time_us"] / row[end] if end in row else None
                for end in ("p80_us", "p20_us")
            )
            words = f"{number(row['time_us'])} µs"
            point = Point(rate, 0, low, high, words, is_missed(row))
            found.setdefault(row["workload"], {})[row["provider"]] = point
    cases = [Case(name, points) for name, points in found.items()]
    return [figure(plots.by_case(title, cases, "GB/s each way", width=8.6))] if cases else []


def stages(file: File) -> Figure:
    """When the stages of a pipeline's chunks were at work."""
    picture = chart.picture(PipelineReport.from_json(json.dumps(file.content)))
    made = figure(picture)
    return Figure(f"{Path(file.path).stem}: {picture.title}", made.svg, is_wide=True)
