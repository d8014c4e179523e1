"""Rooflines: operations per second against operations per byte, as pictures and in numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diglot.bench.harness import Row
from diglot.bench.reports import kind_text, largest, shape_text
from diglot.tools import drawing
from diglot.tools.ceilings import Ceilings
from diglot.tools.drawing import INK, Picture, Point
from diglot.tools.gpus import find_gpu
from diglot.tools.numbers import number
from diglot.tools.report.operations import operations
from diglot.tools.table import Column, Table

# By name the dashes of a line that nothing gets above, and its TFLOP/s by operations per byte.
Roofs = Mapping[str, tuple[str, Callable[[float], float]]]


@dataclass(frozen=True)
class Place:
    """A case in a roofline: TFLOP/s by provider, at its operations per byte."""

    name: str
    points: Mapping[str, Point]

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return next(iter(self.points.values())).position


def rooflines(
    rows: Sequence[Row], gpu: str, known: Ceilings | None
) -> tuple[list[Picture], dict[str, Table]]:
    """For each dtype a roofline of the largest case of each op and direction, and it in numbers."""
    pictures, tables = [], {}
    for dtype in sorted({row["dtype"] for row in rows}):
        of_dtype = [row for row in rows if row["dtype"] == dtype]
        cases = largest(of_dtype, lambda row: (row["op"], kind_text(row), row["timer"]))
        places = [place for case in cases if (place := _place(case)) is not None]
        if places:
            pictures.append(_roofline(dtype, _roofs(of_dtype, gpu, known), places))
            tables[f"The roofline of {dtype} in TFLOP/s."] = _numbers(places)
    return pictures, tables


def _place(case: Mapping[str, Row]) -> Place | None:
    points = {}
    for name, row in case.items():
        # The benchmark counts those of a product, whose shapes differ from op to op.
        count = row.get("flops") or operations(
            row["op"], row["direction"], row["shape"], row["options"]
        )
        if count and row.get("bytes") and "time_us" in row:
            speed, intensity = count / row["time_us"] / 1e6, count / row["bytes"]
            words = f"{shape_text(row)}, {number(row['time_us'])} µs"
            is_missed = not all(bar["met"] for bar in row["bars"])
            points[name] = Point(speed, intensity, note=words, is_missed=is_missed)
    if not points:
        return None
    return Place(f"{row['op']} {kind_text(row)}", points)


def _roofs(rows: Sequence[Row], gpu: str, known: Ceilings | None) -> Roofs:
    """Of this GPU: the fastest copy, and the data sheet's and the measured rate of float32."""
    roofs: dict[str, tuple[str, Callable[[float], float]]] = {}
    copies = [row["copy_tb_per_s"] for row in rows if "copy_tb_per_s" in row]
    if copies:
        roofs[f"fastest copy, {number(max(copies))} TB/s"] = "--", lambda x: max(copies) * x
    sheet = find_gpu(gpu)
    peak = None if sheet is None else sheet.tflop_per_s["float32"]
    if sheet is not None and peak is not None:
        words = f"{sheet.name}, float32 outside tensor cores, data sheet: {number(peak)} TFLOP/s"
        roofs[words] = ":", lambda _: peak
    measured = None if known is None else known.tflop_per_s("float32")
    if measured is not None:
        words = f"float32 product, measured: {number(measured)} TFLOP/s"
        roofs[words] = "-.", lambda _: measured
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
            found = [(place.name, place.points[name]) for place in places if name in place.points]
            marks = [
                (p.position, p, f"{case}, {drawing.words(name, p, ' TFLOP/s')}")
                for case, p in found
            ]
            drawing.series(axes, name, style, marks, linestyle="none")
        axes.set(xlim=(left, right), ylim=(bottom, top))
        drawing.logarithmic(axes, "x")
        drawing.logarithmic(axes, "y")
        axes.grid(True)
        axes.set_xlabel("operations per byte moved, logarithmic scale")
        axes.set_ylabel("TFLOP/s, logarithmic scale")
        drawing.legend(figure)

    return Picture(f"Roofline, {dtype}", draw, 8.6, 5.4)


def _numbers(places: Sequence[Place]) -> Table:
    names = list(dict.fromkeys(name for place in places for name in place.points))
    titles: list[Column | str] = ["case", *map(Column, ("operations per byte", *names))]
    rows = []
    for place in places:
        values = [place.points[name].value if name in place.points else None for name in names]
        rows.append([place.name, *map(number, (place.intensity, *values))])
    return Table(titles, rows)
