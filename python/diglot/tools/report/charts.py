"""The charts of a report, as SVG whose colours are the page's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from diglot.tools.report.svg import Scale, mark, number, path, picture, size, tag, text

WIDTH, HEIGHT = 380, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 16, 40
WIDE, WIDE_HEIGHT = 860, 540
LETTER = 6.0  # about the width of one
NAME, BAR, GAP = 92, 13, 3  # of bars: width of a name, height of a bar, between two


@dataclass(frozen=True)
class Point:
    """A value with its spread.

    Attributes:
        x: where; of a bar, nothing.
        y: the value.
        low: the spread's lower end.
        high: its upper end.
        note: what a pointer that rests on it is told.
        is_missed: whether it misses what it had to reach.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    is_missed: bool = False


@dataclass(frozen=True)
class Series:
    """Points of one kind.

    Attributes:
        name: of the kind.
        style: its colour and its mark.
        key: by which the page shows and hides it; "" for what is always shown.
        points: in order.
    """

    name: str
    style: int
    key: str = ""
    points: Sequence[Point] = field(default=())


@dataclass(frozen=True)
class Group:
    """Bars of one case, and the ceiling of it."""

    title: str
    bars: Sequence[Series]  # of one point each
    ceiling: float | None = None


def _whisker(x: float, low: float, high: float, style: int) -> Markup:
    return path([(x, low), (x, high)], class_=f"whisker l{style % 8}")


def _axes(
    x: Scale, y: Scale, x_ticks: Sequence[tuple[float, str]], x_title: str, y_title: str = ""
) -> list[Markup]:
    drawn = []
    for value in y.ticks():
        drawn += [
            path([(x.begin, y(value)), (x.end, y(value))], class_="grid"),
            text(x.begin - 6, y(value) + 4, _tick(value), "end"),
        ]
    for value, words in x_ticks:
        drawn += [
            path([(x(value), y.begin), (x(value), y.begin + 4)], class_="axis"),
            text(x(value), y.begin + 16, words),
        ]
    return [
        *drawn,
        path([(x.begin, y.begin), (x.end, y.begin)], class_="axis"),
        text((x.begin + x.end) / 2, y.begin + 33, x_title, class_="title"),
        text(x.begin - LEFT + 4, y.end - 6, y_title, "start", class_="title"),
    ]


def _tick(value: float) -> str:
    return f"{value:g}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.0e}"


def _thinned(values: Sequence[float], x: Scale, least: float) -> list[float]:
    """Values whose labels do not touch each other."""
    kept: list[float] = []
    for value in values:
        if not kept or abs(x(value) - x(kept[-1])) >= least:
            kept.append(value)
    return kept


def lines(
    label: str,
    series: Sequence[Series],
    x_title: str,
    y_title: str,
    *,
    ceiling: Sequence[tuple[float, float]] = (),
    is_log: bool = False,
    unit: str = "",
) -> Markup:
    """Lines over sizes, which are on a logarithmic scale.

    Args:
        label: what a screen reader says.
        series: the lines.
        x_title: what the sizes are.
        y_title: what the values are.
        ceiling: what could be reached, as points.
        is_log: whether values are on a logarithmic scale too.
        unit: of sizes, "B" for bytes.
    """
    points = [point for of in series for point in of.points]
    xs = sorted({point.x for point in points})
    ys = [y for p in points for y in (p.y, p.low, p.high) if y is not None]
    ys += [y for _, y in ceiling]
    spread = xs[-1] / xs[0] if xs[0] > 0 else 1
    margin = max(spread**0.06, 1.15)
    x = Scale(xs[0] / margin, xs[-1] * margin, LEFT, WIDTH - RIGHT, log=True)
    low = min(ys) / 1.3 if is_log else 0.0
    high = max(ys) * (1.3 if is_log else 1.08) or 1.0
    y = Scale(low, high, HEIGHT - BOTTOM, TOP, log=is_log)
    ticks = [(v, f"{size(v)}{unit}") for v in _thinned(xs, x, 52)]
    drawn = _axes(x, y, ticks, x_title, y_title)
    if ceiling:
        edge = [(x.begin, y(ceiling[0][1])), *((x(a), y(b)) for a, b in ceiling)]
        drawn.append(path([*edge, (x.end, y(ceiling[-1][1]))], class_="ceiling"))
    for of in series:
        drawn.append(_line(of, x, y))
    return picture(WIDTH, HEIGHT, label, *drawn)


def _line(of: Series, x: Scale, y: Scale) -> Markup:
    ordered = sorted(of.points, key=lambda point: point.x)
    parts = [path([(x(p.x), y(p.y)) for p in ordered], class_=f"line l{of.style % 8}")]
    for point in ordered:
        if point.low is not None and point.high is not None:
            parts.append(_whisker(x(point.x), y(point.low), y(point.high), of.style))
        words = f"{of.name}: {number(point.y)}{f' ({point.note})' if point.note else ''}"
        shape = mark(x(point.x), y(point.y), of.style, missed=point.is_missed)
        parts.append(tag("g", tag("title", words), shape))
    return tag("g", *parts, class_="series", data_p=of.key or None)


def _longest(group: Group) -> float:
    values = [point.high or point.y for of in group.bars for point in of.points]
    return max([*values, group.ceiling or 0.0])


def bars(
    label: str,
    groups: Sequence[Group],
    title: str,
    *,
    has_one_scale: bool = True,
    width: float = WIDTH,
) -> Markup:
    """Horizontal bars, a group for each case.

    Args:
        label: what a screen reader says.
        groups: the cases.
        title: what the values are.
        has_one_scale: all groups are drawn on one scale; otherwise each on its own.
        width: of the picture.
    """
    longest = max(map(_longest, groups))
    top, drawn = 14.0, [text(0, 11, title, "start", class_="title")]
    for group in groups:
        x = Scale(0, longest if has_one_scale else _longest(group), NAME, width - 62)
        top += 21
        drawn.append(text(0, top - 6, group.title, "start", class_="group"))
        if group.ceiling is not None:  # below the bars, and their values before it
            end = top + len(group.bars) * (BAR + GAP)
            at = x(group.ceiling)
            drawn.append(path([(at, top - 2), (at, end)], class_="ceiling"))
        for of in group.bars:
            drawn.append(_bar(of, x, top))
            top += BAR + GAP
        top += 3
    return picture(width, top, label, *drawn)


def _bar(of: Series, x: Scale, top: float) -> Markup:
    parts: list[Markup] = [text(NAME - 6, top + 10, of.name, "end")]
    for point in of.points:
        width = max(1.0, x(point.y) - x.begin)
        shape = tag(
            "rect",
            x=x.begin,
            y=top,
            width=width,
            height=BAR,
            rx=2,
            class_=f"f{of.style % 8}",
        )
        words = f"{of.name}: {number(point.y)}{f' ({point.note})' if point.note else ''}"
        parts.append(tag("g", tag("title", words), shape))
        end = x(point.y)
        if point.low is not None and point.high is not None:
            middle = top + BAR / 2
            parts.append(
                path([(x(point.low), middle), (x(point.high), middle)], class_="whisker ink")
            )
            end = max(end, x(point.high))
        sign = " ✗" if point.is_missed else ""
        kind = "value bad" if point.is_missed else "value"
        parts.append(text(end + 5, top + 10, f"{number(point.y)}{sign}", "start", class_=kind))
    return tag("g", *parts, class_="series", data_p=of.key or None)


@dataclass(frozen=True)
class Roof:
    """A line that nothing gets above.

    Attributes:
        name: what is written on it.
        slope: 10^12 bytes/s, of a roof that rises; None if it is flat.
        height: 10^12 operations/s, of a flat one.
        is_measured: if not, it is a data sheet's.
    """

    name: str
    slope: float | None = None
    height: float | None = None
    is_measured: bool = True


@dataclass(frozen=True)
class Place:
    """An op in a roofline: what it is called, operations per byte, what reaches what there."""

    name: str
    intensity: float
    series: Sequence[Series]


def roofline(label: str, roofs: Sequence[Roof], places: Sequence[Place]) -> Markup:
    """10^12 operations/s against operations per byte, both logarithmic."""
    left, right, bottom = 54.0, 16.0, 44.0
    top = 50 + LETTER * 0.77 * max(len(place.name) for place in places)  # at 50 degrees
    points = [p.y for place in places for of in place.series for p in of.points]
    flat = [roof.height for roof in roofs if roof.height is not None]
    rising = [roof.slope for roof in roofs if roof.slope is not None]
    ends = [place.intensity for place in places]
    x = Scale(min(ends) / 1.5, max(*ends, 30) * 1.5, left, WIDE - right, log=True)
    y = Scale(min(points) / 2, max([*points, *flat]) * 2, WIDE_HEIGHT - bottom, top, log=True)
    drawn = _axes(
        x,
        y,
        [(v, _tick(v)) for v in x.ticks()],
        "operations per byte moved",
    )
    drawn.append(text(4, top - 12, "TFLOP/s", "start", class_="title"))
    for roof in roofs:
        kind = "ceiling" if roof.is_measured else "ceiling sheet"
        if roof.slope is not None:
            end = min([*(h / roof.slope for h in flat[:1]), x.high])
            run = [(v, v * roof.slope) for v in (max(x.low, y.low / roof.slope), end)]
            drawn.append(path([(x(a), y(b)) for a, b in run], class_=kind))
            drawn.append(_along(x, y, run, roof.name))
        elif roof.height is not None:
            begin = min([*(roof.height / slope for slope in rising[:1]), x.high / 3])
            ends_at = [(x(begin), y(roof.height)), (x.end, y(roof.height))]
            drawn.append(path(ends_at, class_=kind))
            above = roof.height == max(flat)  # so that no name lies on another's line
            at = y(roof.height) + (-6 if above else 16)
            drawn.append(text(x.end, at, roof.name, "end", class_="note"))
    return picture(WIDE, WIDE_HEIGHT, label, *drawn, *_places(places, x, y, top), wide=True)


def _along(x: Scale, y: Scale, run: Sequence[tuple[float, float]], name: str) -> Markup:
    """A name that lies on a rising line, near its end."""
    (a, b), (c, d) = ((x(v), y(w)) for v, w in run)
    angle = math.degrees(math.atan2(d - b, c - a))
    at = (a + 0.8 * (c - a), b + 0.8 * (d - b))
    turn = f"rotate({angle:.1f} {at[0]:.1f} {at[1]:.1f})"
    return text(at[0], at[1] - 7, name, "end", transform=turn, class_="note")


def _places(places: Sequence[Place], x: Scale, y: Scale, top: float) -> list[Markup]:
    """Names stand above the picture in order, and a thin line leads from each to its points."""
    ordered = sorted(places, key=lambda place: place.intensity)
    room = x.end - x.begin - LETTER * 0.64 * len(ordered[-1].name)
    slots = [x.begin + room * (i + 0.5) / len(ordered) for i in range(len(ordered))]
    drawn = []
    for place, slot in zip(ordered, slots, strict=True):
        points = [p for of in place.series for p in of.points]
        at = x(place.intensity)
        leader = [(slot, top - 26), (at, top - 8), (at, min(y(p.y) for p in points))]
        drawn.append(path(leader, class_="leader"))
        turn = f"rotate(-50 {slot:.1f} {top - 30:.1f})"
        drawn.append(text(slot + 2, top - 28, place.name, "start", transform=turn))
    for place in ordered:
        for of in place.series:
            for point in of.points:
                words = f"{place.name}, {of.name}: {number(point.y)} TFLOP/s ({point.note})"
                shape = mark(x(place.intensity), y(point.y), of.style, 4, point.is_missed)
                inner = tag("g", tag("title", words), shape)
                drawn.append(tag("g", inner, class_="series", data_p=of.key or None))
    return drawn


def timeline(label: str, lanes: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> Markup:
    """When stages were at work: a lane for each, its intervals in seconds from the begin."""
    end = max((stop for _, spans in lanes for _, stop in spans), default=1.0) or 1.0
    x = Scale(0, end * 1e3, 130, WIDE - 20)
    height, top = 24.0, 8.0
    drawn = []
    for name, spans in lanes:
        drawn.append(text(122, top + 15, name, "end"))
        for parity, style in enumerate(("f0", "f6")):  # chunks next to each other are told apart
            steps = "".join(
                f"M{x(a * 1e3):.1f} {top:.1f}H{x(b * 1e3):.1f}v{height - 5:g}H{x(a * 1e3):.1f}z"
                for a, b in itertools.islice(spans, parity, None, 2)
            )
            if steps:
                drawn.append(tag("path", d=steps, class_=style))
        top += height
    drawn.append(path([(x.begin, top), (x.end, top)], class_="axis"))
    for value in x.ticks(8):
        drawn.append(path([(x(value), top), (x(value), top + 4)], class_="axis"))
        drawn.append(text(x(value), top + 16, _tick(value)))
    drawn.append(text((x.begin + x.end) / 2, top + 32, "ms", class_="title"))
    return picture(WIDE, top + 40, label, *drawn, wide=True)
