"""Pictures of results of ops: speed or time by case, with what a device copy reaches.

`python bench/plots.py` draws pictures of the documents: those of pipelines from the committed
results, and that of errors from a comparison, which it runs. `pictures.py` has those of speed.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diglot.bench import reports
from diglot.bench.evidence import PICTURED, ROOT
from diglot.bench.harness import Row
from diglot.bench.summary import TIMERS
from diglot.files import check_writable, writing
from diglot.tools import drawing
from diglot.tools.drawing import Case, Picture, Point
from diglot.tools.numbers import number

CURVE = 3  # sizes from which on there is a curve
SPREAD = 20  # the largest value over the smallest, from which on a scale is logarithmic
WIDTH, FRAME = 5.0, 1.4  # inches: of a picture, and of the height that is not rows
# README's picture of errors: a command of its own, since errors need no GPU.
COMPARE = "compare gelu --input examples/activations.safetensors --plot docs/images/gelu.png"


def _figure_of(row: Row, us: float) -> float:
    """GB/s of a row for a time, or the time itself where speed says nothing."""
    if _is_time(row):
        return us
    return row["flops"] / us / 1e6 if "tflop_per_s" in row else row["bytes"] / us / 1e3


def _is_time(row: Row) -> bool:
    return row["timer"] in ("host", "graph")


def unit_of(row: Row) -> str:
    """What `cases_of` measures a row by."""
    if _is_time(row):
        return "µs per call"
    return "TFLOP/s" if "tflop_per_s" in row else "GB/s (each input once, each output once)"


def _ceiling(row: Row) -> float | None:
    if _is_time(row):
        return None
    copy = row.get("copy_tb_per_s")
    return row.get("product_tflop_per_s", None if copy is None else copy * 1e3)


def _point(row: Row, position: float = 0.0) -> Point:
    value, *ends = (_figure_of(row, row[name]) for name in reports.TIMES)
    words = f"{number(row['time_us'])} µs"
    if "share_of_copy" in row:
        words += f", {row['share_of_copy']:.2f} of a copy"
    missed = any(not bar["met"] for bar in row["bars"])
    return Point(value, position, min(ends), max(ends), words, missed)


def _groups(rows: Iterable[Row], *names: str) -> list[list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(repr([row[name] for name in names]), []).append(row)
    return list(found.values())


def name_of(row: Row) -> str:
    """The name of the picture that shows a row, without its ending."""
    options = [f"{name} {value}" for name, value in row["options"].items()]
    words = " ".join([row["op"], row["direction"], *options, row["timer"]])
    return re.sub(r"[^\w.]+", "_", words)


def pictures(rows: Iterable[Row], gpu: str = "") -> dict[str, Picture]:
    """A picture for each op, direction, options and timer, by its name; `gpu` is in its title."""
    timed = [row for row in rows if "time_us" in row and (_is_time(row) or row.get("bytes"))]
    groups = _groups(timed, "op", "direction", "options", "timer")
    return {name_of(group[0]): _picture(group, gpu) for group in groups}


def plot(rows: Iterable[Row], folder: Path, force: bool = False, gpu: str = "") -> list[Path]:
    """Draws `pictures` to files.

    Raises:
        ValueError: a file is there and `force` is not set, or it cannot be written.
        ImportError: matplotlib is not installed.
    """
    found = {folder / f"{name}.png": picture for name, picture in pictures(rows, gpu).items()}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for path in found:
        drawing.check_plot(path)
        check_writable(path, force)
    for path, picture in found.items():
        with writing(path):
            drawing.save(picture, path)
    return list(found)


def _is_sweep(rows: Sequence[Row]) -> bool:
    """Whether one size alone grows, so that a line through the cases says something."""
    shapes = {tuple(row["shape"]) for row in rows}
    if len(shapes) < CURVE or len({len(shape) for shape in shapes}) > 1:
        return False
    return sum(len(set(sizes)) > 1 for sizes in zip(*shapes, strict=True)) == 1


def _picture(rows: list[Row], gpu: str) -> Picture:
    first = rows[0]
    options = "".join(f", {name}={value}" for name, value in first["options"].items())
    timer = TIMERS.get(first["timer"], first["timer"])
    title = f"{first['op']}{options} · {first['direction']} · {timer}"
    title = "\n".join(filter(None, (title, gpu)))
    if _is_sweep(rows) and not _is_time(first):
        panels = _groups(rows, "dtype")
        height = FRAME + 2.4 * len(panels)
        return Picture(title, lambda figure: _sweep(figure, panels), WIDTH, height)
    return by_case(title, cases_of(rows), unit_of(first))


def cases_of(rows: Iterable[Row]) -> list[Case]:
    """Rows as cases, named by type and shape."""
    found = []
    for case in reports.by_case(sorted(rows, key=lambda r: (r["dtype"], r.get("bytes", 0)))):
        first = next(iter(case.values()))
        ceilings = [c for row in case.values() if (c := _ceiling(row)) is not None]
        name = f"{first['dtype']}\n{reports.shape_text(first)}"
        points = {provider: _point(row) for provider, row in case.items()}
        is_product = any("product_tflop_per_s" in row for row in case.values())
        ceiling_name = drawing.PRODUCT_CEILING if is_product else drawing.CEILING
        found.append(Case(name, points, max(ceilings, default=None), ceiling_name))
    return found


def by_case(title: str, cases: Sequence[Case], unit: str, width: float = WIDTH) -> Picture:
    """A row for each case, on one scale, which says so where it is logarithmic."""
    return Picture(
        title,
        lambda figure: _by_case(figure, cases, unit),
        width,
        FRAME + drawing.height_of(cases),
    )


def _by_case(figure: Any, cases: Sequence[Case], unit: str) -> None:
    axes = figure.subplots()
    drawing.dots(axes, cases)
    values = [point.value for case in cases for point in case.points.values()]
    if max(values) > SPREAD * min(values):
        axes.set_xlim(min(values) / 1.5, max(values) * 1.5)
        drawing.logarithmic(axes, "x")
        unit += "\nlogarithmic scale"
    axes.set_xlabel(unit)
    drawing.legend(figure)


def _sweep(figure: Any, panels: Sequence[list[Row]]) -> None:
    """Speed against size, a panel for each dtype."""
    all_axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axes, rows in zip(all_axes, panels, strict=True):
        by_provider = {group[0]["provider"]: group for group in _groups(rows, "provider")}
        drawing.lines(
            axes,
            {
                name: [_point(row, row["bytes"]) for row in group]
                for name, group in by_provider.items()
            },
            sorted({(row["bytes"], c) for row in rows if (c := _ceiling(row)) is not None}),
        )
        axes.set_title(rows[0]["dtype"])
        axes.set_ylabel(unit_of(rows[0]).partition(" (")[0])
        axes.set_xlabel("bytes moved, each input and output once, logarithmic scale")
        axes.set_ylim(bottom=0)
    drawing.legend(figure)


def main() -> None:
    """Draws the documents' pictures of errors and of pipelines."""
    from diglot.pipeline.report import PipelineReport

    assert ROOT is not None, "the documents are those of a source tree"
    subprocess.run(
        [sys.executable, "-m", "diglot_cli", *COMPARE.split(), "--force"], cwd=ROOT, check=True
    )
    for path in sorted(PICTURED.glob("stream_map/overlap*.json")):
        report = PipelineReport.from_json(path.read_text())
        if report.gpu is None:  # of several; the benchmark's own file says which
            gpu = json.loads(path.parent.with_suffix(".json").read_text())["gpu"]
            report = dataclasses.replace(report, gpu=gpu)
        report.plot(ROOT / f"docs/images/{path.stem}.png", force=True)


if __name__ == "__main__":
    main()
