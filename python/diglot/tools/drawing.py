"""Draws, by matplotlib: the styles, marks and scales that every picture of diglot shares.

A picture is a function that draws on a figure. `save` makes a file of it, and
`diglot.tools.inline_svg` a part of a page.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diglot.tools.numbers import number, size

FORMATS = (".png", ".svg", ".pdf")
DPI = 150
LONGEST = 40  # letters of a name
# By the names that a page's style sheet gives them, in the mode that files are drawn in.
COLORS = {"ink": "#1b1e23", "soft": "#59616d", "rule": "#dfe2e7", "bad": "#b3261e"}
COLORS |= {"card": "#ffffff", "c0": "#0b5fa5", "c1": "#c96a00", "c2": "#767d88", "c3": "#8448b8"}
COLORS |= {"c4": "#8c5a2b", "c5": "#1b7f4d", "c6": "#0b838f", "c7": "#b03a86"}
INK, SOFT, RULE, BAD, CARD = (COLORS[name] for name in ("ink", "soft", "rule", "bad", "card"))
SERIES = tuple(COLORS[f"c{i}"] for i in range(8))
# A colour and a marker for each provider: markers alone tell them apart.
PROVIDERS = {
    "cuda": (SERIES[0], "o"),
    "triton": (SERIES[1], "^"),
    "torch": (SERIES[2], "s"),
    "torch.compile": (SERIES[3], "D"),
    "max-autotune": (SERIES[3], "d"),
    "formula": (SERIES[4], "v"),
    "liger": (SERIES[5], "P"),
    "quack": (SERIES[6], "X"),
    "flag_gems": (SERIES[7], "*"),
}
# What other names share out: none is a provider's.
SPARE = [
    (SERIES[i], "o^sDvPX*"[(i + shift) % len(SERIES)])
    for shift in range(1, len(SERIES))
    for i in range(len(SERIES))
]
CEILING, PRODUCT_CEILING = "device copy", "large product by PyTorch"
MISSED = "misses its bar"
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "diglot",
    "text.parse_math": False,  # names come from files
    "text.color": INK,
    "font.size": 10,
    "figure.facecolor": CARD,
    "figure.constrained_layout.use": True,
    "axes.facecolor": "none",
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.bottom": False,  # grids lead to labels
    "ytick.left": False,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.markersize": 4.5,
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.5,
}


@dataclass(frozen=True)
class Picture:
    """A function that draws, a title above, and the size in inches."""

    title: str
    draw: Callable[[Any], None]
    width: float
    height: float


@dataclass(frozen=True)
class Point:
    """A value, where along the other axis it is, its spread, and what the pointer is told."""

    value: float
    position: float = 0.0
    low: float | None = None
    high: float | None = None
    note: str = ""
    is_missed: bool = False


@dataclass(frozen=True)
class Case:
    """Points of a case by provider, and what a device copy reaches, or what `ceiling_name` says."""

    name: str
    points: Mapping[str, Point]
    ceiling: float | None = None
    ceiling_name: str = CEILING


# A point at its place along the other axis, with what its mark says.
Place = tuple[float, Point, str]


def check_plot(path: str | Path) -> None:
    """Raises an error if no picture can be drawn to this file.

    Raises:
        ValueError: the format is unknown.
        ImportError: matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: a picture's name must end in one of {', '.join(FORMATS)}")
    _matplotlib()


def _matplotlib() -> Any:
    try:
        import matplotlib.figure
    except ImportError as error:
        raise ImportError(
            'pictures need matplotlib, which is not installed: pip install "diglot[tools]"'
        ) from error
    return matplotlib


def save(picture: Picture, path: Path) -> None:
    """Draws a picture to a file."""
    check_plot(path)
    with drawn(picture) as figure:
        figure.savefig(path, dpi=DPI)


@contextlib.contextmanager
def drawn(
    picture: Picture, has_title: bool = True, style: Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """The figure of a picture, in whose style it is to be saved."""
    matplotlib = _matplotlib()
    with matplotlib.rc_context(STYLE | dict(style or {})):
        figure = matplotlib.figure.Figure(figsize=(picture.width, picture.height))
        if has_title:
            title = shown(picture.title)
            figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        picture.draw(figure)
        yield figure


def shown(text: str) -> str:
    """Text for XML, which has no control characters except the end of a line."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def short(text: str) -> str:
    """Text that leaves room for the drawing: no line is longer than names may be."""
    lines = shown(text).split("\n")
    return "\n".join(f"{line[:LONGEST]}…" if len(line) > LONGEST else line for line in lines)


def styles(names: Collection[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each name, no two the same."""
    known = {name: PROVIDERS[name] for name in names if name in PROVIDERS}
    colors, markers = map(set, zip(*known.values(), strict=True)) if known else ((), ())
    spare = sorted(SPARE, key=lambda pair: (pair[1] in markers, pair[0] in colors))
    unknown = zip((n for n in names if n not in known), itertools.cycle(spare), strict=False)
    found = known | dict(unknown)
    return {name: found[name] for name in names}


def series(
    axes: Any, name: str, style: tuple[str, str], places: Sequence[Place], **options: Any
) -> None:
    """Marks of one provider, with whiskers, and rings where bars are missed.

    Args:
        places: the points, each at its place along the other axis, with what a mark says.
        options: `across`: values go along x. Others are the line's.
    """
    across = options.pop("across", False)
    color, marker = style

    def put(found: Sequence[Place], **style: Any) -> None:
        ends = [(p.value, place) if across else (place, p.value) for place, p, _ in found]
        axes.plot(*zip(*ends, strict=True), clip_on=False, **style)

    spread = [(place, p.low, p.high) for place, p, _ in places if p.low is not None]
    if spread:
        whiskers = axes.hlines if across else axes.vlines
        whiskers(*zip(*spread, strict=True), color=color, linewidth=1, clip_on=False)
    gid = json.dumps([" ".join(shown(words).split()) for _, _, words in places])
    put(places, gid=gid, color=color, marker=marker, label=short(name), **options)
    missed = [place for place in places if place[1].is_missed]
    if missed:
        ring = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
        put(missed, color=BAD, label=MISSED, **ring)


def lines(
    axes: Any,
    by_provider: Mapping[str, Sequence[Point]],
    ceiling: Sequence[tuple[float, float]] = (),
) -> None:
    """Lines over sizes, on a logarithmic scale; whiskers are the spread."""
    for name, style in styles(by_provider).items():
        points = sorted(by_provider[name], key=lambda point: point.position)
        series(axes, name, style, [(p.position, p, words(name, p)) for p in points])
    if ceiling:
        axes.plot(*zip(*sorted(ceiling), strict=True), color=INK, linestyle="--", label=CEILING)
    logarithmic(axes, "x", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: size(x))
    axes.grid(True, axis="y")


def dots(axes: Any, cases: Sequence[Case]) -> None:
    """Values along x: a row for each case, and in it a lane for each provider."""
    names = list(dict.fromkeys(name for case in cases for name in case.points))
    lanes = len(names) if any(len(case.points) > 1 for case in cases) else 1
    for lane, (name, style) in enumerate(styles(names).items()):
        offset = 0.8 * ((lane % lanes + 0.5) / lanes - 0.5)
        places = [
            (row + offset, case.points[name], f"{case.name}, {words(name, case.points[name])}")
            for row, case in enumerate(cases)
            if name in case.points
        ]
        series(axes, name, style, places, across=True, linestyle="none")
    ceilings = [(c.ceiling, r - 0.45, r + 0.45) for r, c in enumerate(cases) if c.ceiling]
    if ceilings:
        said = cases[0].ceiling_name
        axes.vlines(*zip(*ceilings, strict=True), color=INK, linestyle="--", label=said)
    ends = [end for c in cases for p in c.points.values() for end in (p.value, p.high, c.ceiling)]
    axes.set_xlim(0, 1.05 * max(end or 0.0 for end in ends))
    stripe = {"color": RULE, "alpha": 0.4, "linewidth": 0, "zorder": 0, "clip_on": False}
    for row in range(1, len(cases), 2):
        axes.axhspan(row - 0.5, row + 0.5, **stripe)
    axes.set_ylim(len(cases) - 0.5, -0.5)  # the first on top
    axes.set_yticks(range(len(cases)), [short(case.name) for case in cases])
    axes.grid(True, axis="x")


def height_of(cases: Sequence[Case]) -> float:
    """Inches that the rows of `dots` take."""
    names = {name for case in cases for name in case.points}
    return len(cases) * (0.16 + 0.07 * len(names))


def words(name: str, point: Point, unit: str = "") -> str:
    """What a mark says."""
    note = f" ({point.note})" if point.note else ""
    return f"{name}: {number(point.value)}{unit}{note}"


def legend(figure: Any) -> None:
    """One legend below all axes, in as many columns as there is room for."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if found:
        names = sorted(found, key=(CEILING, PRODUCT_CEILING, MISSED).count)  # these last
        columns = figure.get_figwidth() / (0.45 + 0.075 * max(map(len, names)))
        place = {"loc": "outside lower left", "ncols": max(2, int(columns)), "columnspacing": 1}
        figure.legend([found[name] for name in names], names, fontsize=9, **place)


def say(axes: Any, text: str) -> None:
    """Says in a picture why nothing is in it."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=SOFT)
    axes.set_xticks([])
    axes.set_yticks([])


def logarithmic(axes: Any, which: str, base: int = 10) -> None:
    """Makes the axis "x" or "y" logarithmic, with few ticks, written without mathematics."""
    from matplotlib.ticker import LogLocator

    getattr(axes, f"set_{which}scale")("log", base=base)
    axis, (low, high) = getattr(axes, f"{which}axis"), getattr(axes, f"get_{which}lim")()
    is_short = base == 10 and high < 1e4 * low
    axis.set_major_locator(LogLocator(base, subs=(1, 2, 5) if is_short else (1,), numticks=7))
    axis.set_major_formatter("{x:g}")
    axis.set_ticks([], minor=True)
