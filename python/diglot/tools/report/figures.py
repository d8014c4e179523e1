"""The figures of a report: which rows are drawn how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from diglot.tools.ceilings import Ceilings
from diglot.tools.gpus import find_gpu
from diglot.tools.report import charts
from diglot.tools.report.cases import Provider, groups, kind_text, largest, shape_text
from diglot.tools.report.charts import Group, Place, Point, Roof, Series
from diglot.tools.report.operations import operations
from diglot.tools.report.results import LARGEST, File, Row, finite
from diglot.tools.report.svg import number

# Timers whose times are of the device with cold caches, and have a ceiling.
COLD = {"device": "cold cache", "captured": "one call as a CUDA graph, cold cache"}
OTHER = {"graph": "µs per call in a CUDA graph", "host": "host µs per call"}
DTYPES = ("float32", "bfloat16", "float16")
WIDTH_OF_TEXT = 640


@dataclass(frozen=True)
class Figure:
    """A picture with its caption; `legend` has names and styles where the page's does not do."""

    title: str
    picture: Markup
    legend: Sequence[tuple[str, int]] = field(default=())
    dtype: str = ""


Providers = Mapping[str, Provider]


def _spread(row: Row, work: float) -> tuple[float | None, float | None]:
    """Rates at the 80th and the 20th percentile of the time."""
    if not row.p20_us or not row.p80_us:
        return None, None
    return work / row.p80_us, work / row.p20_us


def _speed_point(row: Row, x: float) -> Point:
    assert row.tb_per_s is not None
    low, high = _spread(row, row.tb_per_s * (row.time_us or 0))
    note = f"{shape_text(row)}, {number(row.time_us)} µs"
    if row.share_of_copy is not None:
        note += f", {row.share_of_copy:.2f} of a copy"
    return Point(x, row.tb_per_s, low, high, note, row.is_missed)


def _series(
    rows_of: Mapping[str, list[tuple[float, Row]]], providers: Providers
) -> tuple[Series, ...]:
    return tuple(
        Series(
            name,
            provider.style,
            provider.key,
            tuple(_speed_point(row, x) for x, row in rows_of[name]),
        )
        for name, provider in providers.items()
        if rows_of.get(name)
    )


def of_op(file: File, providers: Providers) -> list[Figure]:
    """Speed against size where there are several sizes, bars where there is one; other timers."""
    figures = []
    for timer, words in COLD.items():
        rows = [row for row in file.rows if row.timer == timer and row.tb_per_s]
        single: dict[str, list[Group]] = {}
        for (kind, dtype), cases in groups(rows, "kind", "dtype").items():
            title = f"{file.op} {kind}, {dtype}"
            if len(cases) > 1:
                picture = _against_size(f"{title}, {words}: TB/s against size", cases, providers)
                figures.append(Figure(title, picture))
            else:
                ((_, case),) = cases.items()
                single.setdefault(kind, []).append(_speed_bars(case, providers))
        for kind, bars in single.items():
            title = f"{file.op} {kind}, TB/s"
            figures.append(Figure(title, charts.bars(f"{title}, {words}", bars, f"TB/s, {words}")))
    for timer, words in OTHER.items():
        timed = [row for row in file.rows if row.timer == timer and row.time_us]
        found = [
            _time_bars(case, providers)
            for of in groups(timed, "kind", "dtype").values()
            for _, case in sorted(of.items())
        ]
        if found:
            title = f"{file.op}, {words}"
            figures.append(Figure(title, charts.bars(title, found, words, has_one_scale=False)))
    return figures


def _against_size(
    label: str, cases: Mapping[tuple[int, ...], dict[str, Row]], providers: Providers
) -> Markup:
    moved = [next(iter(rows.values())).bytes for rows in cases.values()]
    lengths = [shape[-1] for shape in cases]
    # Rows are of several lengths where shapes differ that move as many bytes.
    by_row = len(set(moved)) < len(cases) and len(set(lengths)) == len(cases)
    lines: dict[str, list[tuple[float, Row]]] = {}
    ceiling: dict[float, float] = {}
    for rows in cases.values():
        for name, row in rows.items():
            x = float(row.shape[-1] if by_row else row.bytes or 1)
            lines.setdefault(name, []).append((x, row))
            if row.copy_tb_per_s is not None:
                ceiling[x] = row.copy_tb_per_s
    return charts.lines(
        label,
        _series(lines, providers),
        "length of a row, elements" if by_row else "bytes moved",
        "TB/s",
        ceiling=sorted(ceiling.items()),
        unit="" if by_row else "B",
    )


def _speed_bars(case: Mapping[str, Row], providers: Providers, with_op: bool = False) -> Group:
    first = next(iter(case.values()))
    name = f"{first.op} {kind_text(first)}, " if with_op else ""
    ceilings = [row.copy_tb_per_s for row in case.values() if row.copy_tb_per_s is not None]
    bars = _series({name: [(0.0, row)] for name, row in case.items()}, providers)
    return Group(f"{name}{shape_text(first)}, {first.dtype}", bars, max(ceilings, default=None))


def _time_bars(case: Mapping[str, Row], providers: Providers) -> Group:
    first = next(iter(case.values()))
    bars = []
    for name, provider in providers.items():
        row = case.get(name)
        if row is not None and row.time_us is not None:
            point = Point(0, row.time_us, row.p20_us, row.p80_us, shape_text(row), row.is_missed)
            bars.append(Series(name, provider.style, provider.key, (point,)))
    return Group(f"{kind_text(first)}, {shape_text(first)}, {first.dtype}", bars)


def rooflines(files: Iterable[File], providers: Providers, known: Ceilings | None) -> list[Figure]:
    """A roofline for each dtype, of the largest case of each op and direction."""
    rows = [
        row
        for file in files
        for row in file.rows
        if row.timer in COLD and row.tb_per_s and row.bytes
    ]
    gpu = next((file.gpu for file in files), "")
    figures = []
    found = {row.dtype for row in rows}
    for dtype in [*(d for d in DTYPES if d in found), *sorted(found - set(DTYPES))]:
        places = _places([row for row in rows if row.dtype == dtype], providers)
        if places:
            roofs = _roofs([row for row in rows if row.dtype == dtype], gpu, known)
            title = f"Roofline, {dtype}"
            label = f"{title}: TFLOP/s against operations per byte of {len(places)} cases"
            figures.append(Figure(title, charts.roofline(label, roofs, places), dtype=dtype))
    return figures


def _places(rows: Sequence[Row], providers: Providers) -> list[Place]:
    places = []
    for (op, kind), cases in groups(rows, "op", "kind").items():
        case = largest(cases)
        points: dict[str, Point] = {}
        intensity = None
        for name, row in case.items():
            count = operations(row.op, row.direction, row.shape, row.options)
            if not count or not row.bytes or not row.time_us:
                continue
            intensity = count / row.bytes
            note = f"{shape_text(row)}, {number(row.time_us)} µs"
            points[name] = Point(0, count / row.time_us / 1e6, note=note, is_missed=row.is_missed)
        if intensity is not None:
            series = [
                Series(name, provider.style, provider.key, (points[name],))
                for name, provider in providers.items()
                if name in points
            ]
            places.append(Place(f"{op} {kind}", intensity, series))
    return places


def _roofs(rows: Sequence[Row], gpu: str, known: Ceilings | None) -> list[Roof]:
    roofs = []
    copies = [row.copy_tb_per_s for row in rows if row.copy_tb_per_s is not None]
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
) -> Figure | None:
    """Lines over an option; None where there is nothing to draw.

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
        at = _positive(row.options.get(x))
        value = _positive(row.time_us if y == "time_us" else row.others.get(y))
        if at is None or value is None:
            continue
        low, high = (row.p20_us, row.p80_us) if y == "time_us" else (None, None)
        found.setdefault(series(row), []).append(Point(at, value, low, high))
    if not found:
        return None
    drawn = [Series(name, style, "", of) for style, (name, of) in enumerate(found.items())]
    picture = charts.lines(f"{title}: {y_title}", drawn, x_title, y_title, is_log=is_log)
    return Figure(title, picture, [(of.name, of.style) for of in drawn])


def _positive(value: Any) -> float | None:
    found = finite(value)
    return found if found is not None and found > 1 / LARGEST else None


def side_by_side(cases: Iterable[Mapping[str, Row]], providers: Providers, gpu: str) -> Markup:
    """Bars of TB/s, wide enough for a page of text, a group for each case; `gpu` says on what."""
    bars = [_speed_bars(case, providers, with_op=True) for case in cases]
    label = f"Speed of each op beside others, TB/s on {gpu}; the dashed line is a device copy"
    words = f"TB/s; dashed: a device copy. {gpu}"
    return charts.bars(label, bars, words, width=WIDTH_OF_TEXT)


def workloads(rows: Iterable[Row], title: str) -> Figure | None:
    """Bars of GB/s, a group for each workload."""
    styles = {"cuda": 0, "triton": 1}
    found: dict[str, list[Series]] = {}
    for row in rows:
        rate = _positive(row.others.get("gb_per_s"))
        if rate is None or not row.time_us:
            continue
        low, high = _spread(row, rate * row.time_us)
        point = Point(0, rate, low, high, f"{number(row.time_us)} µs", row.is_missed)
        style = styles.get(row.provider, 2)
        found.setdefault(row.workload, []).append(Series(row.provider, style, "", (point,)))
    if not found:
        return None
    bars = [Group(name, of) for name, of in found.items()]
    return Figure(title, charts.bars(title, bars, "GB/s each way"))


def stages(file: File) -> Figure | None:
    """When the stages of a pipeline's chunks were at work."""
    names = ("read", "h2d", "compute", "d2h", "write")
    content = file.content
    devices, timelines = content.get("devices"), content.get("timelines")
    if not isinstance(devices, list) or not isinstance(timelines, list):
        return None
    lanes = []
    for device, chunks in zip(devices, timelines, strict=False):
        for stage, name in enumerate(names):
            spans = []
            for chunk in chunks if isinstance(chunks, list) else []:
                times = chunk[2 * stage : 2 * stage + 2] if isinstance(chunk, list) else []
                begin, end = (finite(of) for of in times) if len(times) == 2 else (None, None)
                if begin is not None and end is not None:  # a stage that there was
                    spans.append((begin, end))
            if spans:
                lanes.append((f"{device} {name}" if len(devices) > 1 else name, spans))
    if not lanes:
        return None
    title = f"{Path(file.path).stem}: {file.op}, {len(devices)} GPU{'s' * (len(devices) > 1)}"
    return Figure(title, charts.timeline(title, lanes))
