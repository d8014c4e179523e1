"""Numbers in words: as tables and pictures write them."""

from __future__ import annotations

import math

NOTHING = "–"


def number(value: float | None) -> str:
    """Three significant digits, or a whole number; of a count all digits."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value).replace("inf", "∞").replace("nan", "NaN")
    if 100 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 100 else f"{value:.2e}"


def duration(seconds: float) -> str:
    """A time in a unit that suits it, such as "3 h", "12 min", "40 s" or "1.5 µs"."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3:
        return f"{1e3 * seconds:.3g} ms"
    return f"{1e6 * seconds:.3g} µs"


def size(count: float, unit: str = "") -> str:
    """A count in powers of two: 4096 gives "4 Ki", and of bytes "4 KiB" by the unit "B"."""
    for power, prefix in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if count >= 1 << power:
            return f"{count / (1 << power):.3g} {prefix}{unit}"
    return f"{count:g} {unit}".strip()
