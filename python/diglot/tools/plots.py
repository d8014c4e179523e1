"""Pictures of comparisons: error against x."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

from diglot.tools import drawing
from diglot.tools.comparison import Comparison, Row
from diglot.tools.drawing import BAD, INK, PROVIDERS, Picture
from diglot.tools.numbers import number
from diglot.tools.resources import TensorLike

# Size of marker and width of line, in the order in which they are drawn: lines that coincide stay
# visible, since the wider ones lie below.
WIDTHS = {"torch": (6.5, 3.0), "triton": (5.5, 1.8), "cuda": (3.2, 0.9)}
FAR = 20  # of x: beyond, the scale is logarithmic


def plot(comparison: Comparison, path: Path) -> None:
    """Draws `picture` to a file."""
    drawing.save(picture(comparison), path)


def picture(comparison: Comparison) -> Picture:
    """Error in ulps against x."""

    def draw(figure: Any) -> None:
        _draw_errors(figure.subplots(), comparison)
        drawing.legend(figure)

    return Picture(_title(comparison), draw, 8.0, 5.2)


def _title(comparison: Comparison) -> str:
    first = comparison.inputs[0]
    kind = (
        f"{first.dtype} {'×'.join(map(str, first.shape))}" if isinstance(first, TensorLike) else ""
    )
    options = "".join(f", {name}={value}" for name, value in comparison.options.items())
    words = [f"{comparison.op}{options}", comparison.direction, kind, comparison.device]
    missing = ", ".join(row.backend for row in comparison.rows if row.reason is not None)
    return " · ".join(words) + (f"\ndid not run here: {missing}" if missing else "")


def _draw_errors(axes: Any, comparison: Comparison) -> None:
    order = list(WIDTHS)
    drawn = sorted(
        (row for row in comparison.rows if row.profile is not None),
        key=lambda row: order.index(row.backend),
    )
    axes.set_title("Largest error against the fp64 oracle")
    if not drawn:
        drawing.say(axes, "no floating-point result to judge")
        return
    axes.grid(True)
    highest, farthest, bins = 1.0, 0.0, 0
    for row in drawn:
        assert row.profile is not None
        edges, worst = row.profile.edges, row.profile.worst_ulp
        farthest, bins = max(farthest, *map(abs, edges)), len(worst)
        centres = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
        # Empty bins interrupt the line: no error was seen there.
        ys = [math.nan if w is None or math.isinf(w) else w for w in worst]
        highest = max([highest, *(y for y in ys if not math.isnan(y))])
        color, marker = PROVIDERS[row.backend]
        size, width = WIDTHS[row.backend]
        style = {"color": color, "marker": marker, "markersize": size, "markeredgewidth": 0}
        axes.plot(centres, ys, linewidth=width, label=_label(row), **style)
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
    tolerance = next((row.error.tolerance_ulp for row in drawn if row.error is not None), 0.0)
    if tolerance:
        axes.axhline(tolerance, color=BAD, linestyle=":", label=f"tolerance: {tolerance:g} ulp")
    _scale(axes, highest, farthest)
    first = next(iter(drawn[0].error.at), "x") if drawn[0].error else "x"
    far = "; linear near 0, logarithmic beyond ±1" if farthest > FAR else ""
    axes.set_xlabel(f"value of {first}, in {bins} bins{far}")


def _label(row: Row) -> str:
    worst = max((e.worst_ulp for e in row.errors), default=math.nan)
    how = " (interpreted)" if row.interpreted else ""
    return f"{row.backend}{how}: worst {number(worst)} ulp"


def _scale(axes: Any, highest: float, farthest: float) -> None:
    decades = math.ceil(math.log10(max(highest * 1.5, 3)))
    # Linear up to one ulp, where good results are and a quarter of the height is theirs.
    axes.set_yscale("symlog", linthresh=1, linscale=max(1.2, decades / 3))
    axes.set_ylim(-0.03, 10**decades)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.axhline(1, color=INK, linewidth=0.6)
    axes.set_ylabel("error, ulp; linear below the line at 1, logarithmic above")
    if farthest > FAR:
        axes.set_xscale("asinh", linear_width=1)
        axes.xaxis.set_major_formatter("{x:g}")
