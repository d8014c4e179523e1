"""Flame graphs: times by stack, as an SVG picture that needs nothing else.

A box is a frame, as wide as the time spent in it and in what it calls, which lies above it. (The
form is Brendan Gregg's: "The Flame Graph", Communications of the ACM 59(6), 2016.)
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from diglot.tools.numbers import duration

WIDTH, ROW, MARGIN, TOP = 1200, 18, 10, 50
LETTER = 6.6  # width of a letter of the font
NARROWEST = 0.3  # narrower boxes are left out, and so are those above them


@dataclass
class Frame:
    """A frame with what it calls.

    Attributes:
        us: time in it and in what it calls, in microseconds.
    """

    name: str
    us: float = 0.0
    parts: dict[str, Frame] = field(default_factory=dict)


def merge(stacks: Mapping[tuple[str, ...], float]) -> Frame:
    """One tree of stacks, which are given outermost frame first, with times in microseconds."""
    root = Frame("all")
    for stack, us in stacks.items():
        frame = root
        frame.us += us
        for name in stack:
            frame = frame.parts.setdefault(name, Frame(name))
            frame.us += us
    return root


def folded(stacks: Mapping[tuple[str, ...], float]) -> str:
    """The form of text that other renderers read: `a;b;c 12`, in whole microseconds.

    Shorter times are left out.
    """
    lines = []
    for stack, us in stacks.items():
        names = (name.replace(";", ":").replace("\n", " ") for name in stack)
        if us >= 1:
            lines.append(f"{';'.join(names)} {int(us)}\n")
    return "".join(lines)


def render(stacks: Mapping[tuple[str, ...], float], title: str) -> str:
    """An SVG of stacks, which are given outermost frame first, with times in microseconds.

    A box's full name and time are its title, which viewers show under the pointer.

    Raises:
        ValueError: there is no time in the stacks.
    """
    root = merge(stacks)
    if root.us <= 0:
        raise ValueError("there is nothing to draw: the stacks hold no time")
    scale = (WIDTH - 2 * MARGIN) / root.us
    # Not by recursion: stacks may be deeper than Python's own.
    boxes, waiting = [], [(root, float(MARGIN), 0)]
    while waiting:
        frame, x, level = waiting.pop()
        if frame.us * scale < NARROWEST:
            continue
        boxes.append((frame, x, level))
        for part in frame.parts.values():
            waiting.append((part, x, level + 1))
            x += part.us * scale
    levels = 1 + max(level for _, _, level in boxes)
    height = TOP + ROW * levels + MARGIN
    drawn = "\n".join(
        _box(frame, x, height - MARGIN - ROW * (level + 1), scale, root.us)
        for frame, x, level in boxes
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" \
width="{WIDTH}" height="{height}" role="img">
<style>text {{ font: 11px ui-monospace, monospace }} g:hover rect {{ stroke: black }}</style>
<rect width="100%" height="100%" fill="white"/>
<text x="{MARGIN}" y="20" style="font-size: 15px">{_text(title)}</text>
<text x="{MARGIN}" y="37">{duration(root.us / 1e6)} in all; what a box calls lies above it</text>
{drawn}
</svg>
"""


def _box(frame: Frame, x: float, y: float, scale: float, whole: float) -> str:
    width = frame.us * scale
    room = int((width - 4) / LETTER)
    label = ""
    if room >= 3:
        shown = frame.name if len(frame.name) <= room else frame.name[: room - 1] + "…"
        label = f'<text x="{x + 2:.1f}" y="{y + 13}">{_text(shown)}</text>'
    return (
        f"<g><title>{_text(frame.name)}: {duration(frame.us / 1e6)}, {100 * frame.us / whole:.3g} %"
        f'</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}" '
        f'fill="{_colour(frame.name)}"/>{label}</g>'
    )


def _text(text: str) -> str:
    """For XML, which has no control characters."""
    return escape("".join(letter if letter.isprintable() else " " for letter in text))


def _colour(name: str) -> str:
    """Warm for what runs in Python, cool for operators and kernels; the same for the same name."""
    shade = zlib.crc32(name.encode()) % 30
    is_python = ".py(" in name or name.startswith(("<built-in", "nn.Module: "))
    return f"hsl({(25 if is_python else 190) + shade}, 75%, {68 + shade // 3}%)"
