"""Pictures of comparisons."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

from diglot.tools.comparison import Comparison, Row
from diglot.tools.resources import TensorLike
from diglot.tools.table import NOTHING, number

FORMATS = (".png", ".svg", ".pdf")

# By backend: colour (told apart by colour-blind readers and in grey), marker and its size, width of
# line, dashes. Lines that coincide stay visible: the ones that are drawn first are wider.
STYLES: dict[str, tuple[str, str, float, float, Any]] = {
    "torch": ("#8f8f8f", "s", 6.5, 3.0, "solid"),
    "triton": ("#e07b00", "^", 5.5, 1.8, "solid"),
    "cuda": ("#0b5fa5", "o", 3.2, 0.9, (0, (4, 2))),
}
GRID = {"color": "#d9d9d9", "linewidth": 0.6}
DPI = 150


def check_plot(path: str | Path) -> None:
    """Raises an error if no picture can be drawn to this file.

    Raises:
        ValueError: the format is unknown.
        ImportError: matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: a picture's name must end in one of {', '.join(FORMATS)}")
    _import_pyplot()


def _import_pyplot() -> Any:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'pictures need matplotlib, which is not installed: pip install "diglot[tools]"'
        ) from error
    del matplotlib
    return Figure


def plot(comparison: Comparison, path: Path) -> None:
    """Draws a comparison: error in ulps against x, and bandwidth where it was timed."""
    check_plot(path)
    timed = [row for row in comparison.rows if row.speed is not None]
    figure = _import_pyplot()(
        figsize=(12.5 if timed else 9.5, 5.4), layout="constrained", facecolor="white"
    )
    if timed:
        error_axes, speed_axes = figure.subplots(1, 2, width_ratios=(2.1, 1))
        _draw_speeds(speed_axes, comparison, timed)
    else:
        error_axes = figure.subplots()
    _draw_errors(error_axes, comparison)
    figure.suptitle(_title(comparison), fontsize=14, fontweight="bold", x=0.01, ha="left")
    figure.savefig(path, dpi=DPI)


def _title(comparison: Comparison) -> str:
    first = comparison.inputs[0]
    kind = first.dtype if isinstance(first, TensorLike) else ""
    shape = "×".join(map(str, first.shape)) if isinstance(first, TensorLike) else ""
    options = "".join(f", {name}={value}" for name, value in comparison.options.items())
    return (
        f"{comparison.op}{options} · {comparison.direction} · {kind} {shape} · {comparison.device}"
    )


def _styled(rows: tuple[Row, ...]) -> list[Row]:
    """Rows in the order in which they are drawn: wide lines first."""
    order = list(STYLES)
    return sorted(rows, key=lambda row: order.index(row.backend))


def _draw_errors(axes: Any, comparison: Comparison) -> None:
    drawn = [row for row in _styled(comparison.rows) if row.profile is not None]
    axes.set_title("Largest error against the fp64 oracle", loc="left", fontsize=11)
    axes.set_axisbelow(True)
    axes.grid(True, which="major", **GRID)
    hide_frame(axes)
    if not drawn:
        say(axes, "no floating-point result to judge")
        return
    highest, far = 1.0, False
    for place, row in enumerate(drawn):
        assert row.profile is not None
        color, marker, size, width, dashes = STYLES[row.backend]
        edges, worst = row.profile.edges, row.profile.worst_ulp
        far = far or max(abs(edges[0]), abs(edges[-1])) > 20
        centres = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
        # Empty bins interrupt the line: no error was seen there.
        ys = [math.nan if w is None or math.isinf(w) else w for w in worst]
        highest = max([highest, *(y for y in ys if not math.isnan(y))])
        axes.plot(
            centres,
            ys,
            color=color,
            linewidth=width,
            linestyle=dashes,
            marker=marker,
            markersize=size,
            markeredgewidth=0,
            label=_label(row),
            zorder=3 + place,
        )
        infinite = [x for x, w in zip(centres, worst, strict=True) if w == math.inf]
        if infinite:
            axes.plot(
                infinite,
                [0.985] * len(infinite),
                transform=axes.get_xaxis_transform(),
                color=color,
                linestyle="none",
                marker="x",
                label=f"{row.backend}: NaN or ∞, wrongly",
            )
    _draw_tolerance(axes, drawn)
    _scale_ulps(axes, highest)
    if far:
        _scale_far(axes, max(abs(edges[0]), abs(edges[-1])))
    first = next(iter(drawn[0].error.at), "x") if drawn[0].error else "x"
    axes.set_xlabel(f"x, the value of {first} (largest error in each of {len(worst)} bins)")
    axes.legend(loc="upper right", fontsize=9, framealpha=0.95, edgecolor="#d9d9d9")
    missing = [row for row in comparison.rows if row.reason is not None]
    if missing:
        names = ", ".join(row.backend for row in missing)
        axes.text(
            0.01,
            0.985,
            f"did not run here: {names}",
            transform=axes.transAxes,
            va="top",
            fontsize=9,
            color="#555555",
        )


def _label(row: Row) -> str:
    worst = max((e.worst_ulp for e in row.errors), default=math.nan)
    how = " (interpreted)" if row.interpreted else ""
    return f"{row.backend}{how}: worst {number(worst)} ulp"


def _draw_tolerance(axes: Any, rows: list[Row]) -> None:
    tolerance = next((row.error.tolerance_ulp for row in rows if row.error is not None), 0.0)
    if tolerance:
        axes.axhline(tolerance, color="#b00020", linewidth=0.9, linestyle=":", zorder=2)
        axes.annotate(
            f"tolerance {tolerance:g} ulp",
            (0.003, tolerance),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8,
            color="#b00020",
        )


def _scale_ulps(axes: Any, highest: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter

    decades = math.ceil(math.log10(max(highest * 1.5, 3)) + 0.35)
    # Linear up to one ulp, where good results are and a quarter of the height is theirs;
    # logarithmic beyond.
    axes.set_yscale("symlog", linthresh=1, linscale=max(1.2, decades / 3))
    axes.set_ylim(-0.03, 10**decades)
    powers: list[float] = [10.0**d for d in range(1, decades + 1, max(1, decades // 6))]
    axes.yaxis.set_major_locator(FixedLocator([0, 0.5, 1, *powers]))
    axes.yaxis.set_minor_locator(FixedLocator([]))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda y, _: f"{y:g}" if y < 1e4 else f"$10^{{{round(math.log10(y))}}}$")
    )
    axes.set_ylabel("error, ulp")


def _scale_far(axes: Any, farthest: float) -> None:
    """The scale of the bins: linear near zero, logarithmic far from it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    axes.set_xscale("asinh", linear_width=1)
    decades = math.ceil(math.log10(farthest))
    powers = [10.0**d for d in range(0, decades + 1, max(1, decades // 5))]
    axes.xaxis.set_major_locator(FixedLocator([*(-p for p in powers), 0, *powers]))
    axes.xaxis.set_minor_locator(FixedLocator([]))

    def name(x: float, _: Any) -> str:
        if abs(x) < 1e4:
            return f"{x:g}"
        return f"${'-' if x < 0 else ''}10^{{{round(math.log10(abs(x)))}}}$"

    axes.xaxis.set_major_formatter(FuncFormatter(name))


def _draw_speeds(axes: Any, comparison: Comparison, rows: list[Row]) -> None:
    ceiling = comparison.ceiling
    assert ceiling is not None
    axes.set_title("Bandwidth", loc="left", fontsize=11)
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", **GRID)
    hide_frame(axes)
    top = ceiling.gb_per_s
    for place, row in enumerate(rows):
        speed = row.speed
        assert speed is not None
        color = STYLES[row.backend][0]
        axes.bar(place, speed.gb_per_s, width=0.62, color=color, zorder=3)
        bounds = [comparison.bytes / us / 1e3 for us in (speed.p80_us, speed.p20_us)]
        spread = [[speed.gb_per_s - bounds[0]], [bounds[1] - speed.gb_per_s]]
        spread = [[max(0.0, side[0])] for side in spread]
        axes.errorbar(
            place, speed.gb_per_s, yerr=spread, color="#222222", capsize=4, linewidth=1, zorder=4
        )
        share = NOTHING if speed.of_ceiling is None else f"{100 * speed.of_ceiling:.0f} %"
        axes.text(
            place,
            speed.gb_per_s / 2,
            f"{speed.gb_per_s:.0f}\n{share}\n{number(speed.median_us)} µs",
            ha="center",
            va="center",
            color="white",
            fontsize=10,
            fontweight="bold",
            zorder=5,
        )
        top = max(top, bounds[1])
    axes.axhline(ceiling.gb_per_s, color="#222222", linestyle="--", linewidth=1.2, zorder=4)
    axes.annotate(
        f"copy, same bytes: {ceiling.gb_per_s:.0f} GB/s",
        (0.995, ceiling.gb_per_s),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    axes.set_ylim(0, top * 1.14)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xticks(range(len(rows)), [row.backend for row in rows], fontsize=11)
    axes.set_ylabel("GB/s (each input once, each output once)")
    axes.set_xlabel("median; whiskers: 20th to 80th percentile")


def hide_frame(axes: Any) -> None:
    """Leaves a picture's lines on the left and below alone."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def say(axes: Any, text: str) -> None:
    """Says in a picture why nothing is in it."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#555555")
    axes.set_xticks([])
    axes.set_yticks([])
