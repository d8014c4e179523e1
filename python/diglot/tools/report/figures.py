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
from diglot.bench.result_files import LARGEST, File
from diglot.pipeline.report import PipelineReport
from diglot.tools import drawing, inline_svg, stream_chart
from diglot.tools.drawing import Case, Picture, Point
from diglot.tools.numbers import number
from diglot.tools.report.tables import any_cell, is_missed

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
class Lines:
    """How results of no op are drawn: which entries of a row, or of its options, are what.

    Attributes:
        x: what goes along; the first of these that a row has.
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
        position, value = _positive(every.get(x)), _positive(row.get(how.y))
        if position is not None and value is not None:
            panel = f", {how.panel} {every[how.panel]}" if every.get(how.panel) else ""
            title = f"{file.op}{panel}: {NAMES.get(how.y, how.y)} by {NAMES.get(x, x)}"
            which = every.get(how.series)
            name = row["provider"] if which is None else f"{how.series} {which}"
            low, high = (row.get(f"p{n}_us") if how.y == "time_us" else None for n in (20, 80))
            series = panels.setdefault(title, {}).setdefault(x, {})
            series.setdefault(name, []).append(Point(value, position, low, high))
    return [
        figure(Picture(title, _lines(how, x, series), plots.WIDTH, 4.4))
        for title, by_x in panels.items()
        for x, series in by_x.items()
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
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and SMALL < value < LARGEST else None


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
    picture = stream_chart.picture(PipelineReport.from_json(json.dumps(file.content)))
    made = figure(picture)
    return Figure(f"{Path(file.path).stem}: {picture.title}", made.svg, is_wide=True)
