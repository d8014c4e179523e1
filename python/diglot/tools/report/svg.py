"""SVG in a few words: elements, scales, marks. Colours are classes, and so the page's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup, escape


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """An element; what is no markup is escaped. `class_` is class, `text_anchor` text-anchor."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _value(value))
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(escape(child) for child in children)
    opening = Markup("<{}{}").format(Markup(name), written)
    return opening + (Markup(">{}</{}>").format(inner, Markup(name)) if children else Markup("/>"))


def _value(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def number(value: float | None) -> str:
    """Three to four digits, without an exponent; of a count all."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value).replace("inf", "∞").replace("nan", "NaN")
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    for limit, digits in ((100, 0), (10, 1), (0.01, 2)):
        if size >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.2g}"


def size(value: float) -> str:
    """A number in powers of two: 4096 gives "4 Ki"."""
    for power, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if value >= 1 << power:
            return f"{value / (1 << power):.3g} {unit}"
    return f"{value:g}"


@dataclass(frozen=True)
class Scale:
    """From values to positions; logarithmic if `log`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(max(value, 1e-300)), math.log(low), math.log(high)
        share = 0.5 if high == low else (value - low) / (high - low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values, about `count`; on a logarithmic scale powers of ten."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            powers = [10.0**power for power in range(first, last + 1)]
            if len(powers) > 2:
                return powers
            steps = [a * 10.0**p for p in range(first - 1, last + 1) for a in (1, 2, 5)]
            return [step for step in steps if self.low <= step <= self.high]
        span = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(span)) if span > 0 else 1.0
        step = next(power * of for of in (1, 2, 2.5, 5, 10) if power * of >= span)
        first = math.ceil(self.low / step)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def path(points: list[tuple[float, float]], **attributes: object) -> Markup:
    """A line through points."""
    steps = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    return tag("path", d=steps, fill="none", **attributes)


# Marks of radius 1 around the origin, told apart without colours.
MARKS = (
    "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0 -2 0z",
    "M0 -1.2L1.1 .8L-1.1 .8z",
    "M-.9 -.9H.9V.9H-.9z",
    "M0 -1.25L1.25 0L0 1.25L-1.25 0z",
    "M0 1.2L1.1 -.8L-1.1 -.8z",
    "M-.4 -1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4z",
    "M0 -1.2L1.14 -.37L.7 .97L-.7 .97L-1.14 -.37z",
    "M-1.1 -.6H1.1V.6H-1.1z",
)


def outline(style: int) -> str:
    """The outline of a style's mark: with as many colours as marks, each pair comes up once."""
    return MARKS[(style + style // len(MARKS)) % len(MARKS)]


def mark(x: float, y: float, style: int, radius: float = 4.5, missed: bool = False) -> Markup:
    """A mark of a series' style; of what misses its bar, with a ring around it."""
    shape = tag(
        "path",
        d=outline(style),
        transform=f"translate({x:.1f} {y:.1f}) scale({radius})",
        class_=f"f{style % len(MARKS)}",
    )
    ring = tag("circle", cx=x, cy=y, r=radius + 4, class_="missed", fill="none")
    return shape + ring if missed else shape


def text(x: float, y: float, words: str, anchor: str = "middle", **attributes: object) -> Markup:
    """Words."""
    return tag("text", words, x=x, y=y, text_anchor=anchor, **attributes)


def picture(width: float, height: float, label: str, *children: str, wide: bool = False) -> Markup:
    """An SVG picture; `label` is what a screen reader says."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=label,
        class_="wide" if wide else None,
        xmlns="http://www.w3.org/2000/svg",
    )
