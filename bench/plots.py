"""Pictures of results: speed against size, and bars per shape, with the ceiling drawn."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diglot.bench.harness import Row, Rows
from diglot.bench.reports import by_case
from diglot.bench.summary import TIMERS
from diglot.files import check_writable, writing
from diglot.tools.plots import DPI, GRID, STYLES, check_plot, hide_frame, say

# Beside the backends': colour, told apart by colour-blind readers (Okabe and Ito's), and marker.
PEERS = {
    "torch.compile": ("#009e73", "D"),
    "formula": ("#cc79a7", "v"),
    "liger": ("#d55e00", "P"),
    "quack": ("#f0c000", "X"),
    "flag_gems": ("#56b4e9", "*"),
}
OTHER = ("#222222", ".")
CURVE = 3  # sizes from which on there is a curve; fewer are bars


def _style(provider: str) -> tuple[str, str]:
    if provider in STYLES:
        color, marker, *_ = STYLES[provider]
        return color, marker
    return PEERS.get(provider, OTHER)


def _figure_of(row: Row, us: float) -> float:
    """GB/s of a row for a time, or the time itself where nothing is moved or speed says nothing."""
    if _is_time(row):
        return us
    if "tflop_per_s" in row:
        return row["flops"] / us / 1e6
    return row["bytes"] / us / 1e3


def _is_time(row: Row) -> bool:
    return row["timer"] == "host" or not row.get("bytes")


def _unit(row: Row) -> str:
    if _is_time(row):
        return "µs per call"
    return "TFLOP/s" if "tflop_per_s" in row else "GB/s (each input once, each output once)"


def _ceiling(row: Row) -> float | None:
    if "product_tflop_per_s" in row:
        return row["product_tflop_per_s"]
    return row["copy_tb_per_s"] * 1e3 if "copy_tb_per_s" in row else None


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


def plot(rows: Sequence[Row], folder: Path, force: bool = False) -> list[Path]:
    """Draws a picture for each op, direction, options and timer, with a panel for each dtype.

    Args:
        rows: results of the common harness.
        folder: where to, made if it is not there.
        force: whether files may be overwritten.

    Returns:
        The files written.

    Raises:
        ValueError: a file is there and `force` is not set, or it cannot be written.
        ImportError: matplotlib is not installed.
    """
    timed = [row for row in rows if "time_us" in row]
    groups = _groups(timed, "op", "direction", "options", "timer")
    paths = [folder / f"{name_of(group[0])}.png" for group in groups]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        check_plot(path)
        check_writable(path, force)
    for path, group in zip(paths, groups, strict=True):
        with writing(path):
            _draw(group, path)
    return paths


def _is_sweep(rows: Iterable[Row]) -> bool:
    """Whether shapes are one that grows, so that a line through them says something."""
    shapes = {tuple(row["shape"]): row["bytes"] for row in rows}
    growing = sorted(shapes, key=lambda shape: shapes[shape])
    return len(growing) >= CURVE and all(
        len(a) == len(b) and all(x <= y for x, y in zip(a, b, strict=True))
        for a, b in itertools.pairwise(growing)
    )


def _draw(rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    panels = _groups(rows, "dtype")
    figure = Figure(figsize=(1 + 5.4 * len(panels), 4.8), layout="constrained", facecolor="white")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, of in zip(all_axes, panels, strict=True):
        _draw_frame(axes, of[0])
        draw = _draw_curves if _is_sweep(of) and not _is_time(of[0]) else _draw_bars
        draw(axes, of)
        axes.set_ylim(bottom=0)
    named: dict[str, Any] = {}
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    figure.legend(
        named.values(),
        named.keys(),
        loc="outside lower center",
        ncols=min(len(named), 4 * len(panels)),
        frameon=False,
        fontsize=9,
    )
    first = rows[0]
    options = "".join(f", {name}={value}" for name, value in first["options"].items())
    timer = TIMERS.get(first["timer"], first["timer"])
    figure.suptitle(
        f"{first['op']}{options} · {first['direction']} · {timer}",
        fontsize=13,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=DPI)


def _draw_frame(axes: Any, row: Row) -> None:
    axes.set_title(row["dtype"], loc="left", fontsize=11)
    axes.set_ylabel(_unit(row))
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", **GRID)
    hide_frame(axes)


def _draw_curves(axes: Any, rows: list[Row]) -> None:
    """Speed against bytes, with a band from the 20th to the 80th percentile."""
    for of in _groups(rows, "provider"):
        of.sort(key=lambda row: row["bytes"])
        color, marker = _style(of[0]["provider"])
        sizes = [row["bytes"] for row in of]
        middle, low, high = (
            [_figure_of(row, row[name]) for row in of] for name in ("time_us", "p80_us", "p20_us")
        )
        axes.fill_between(sizes, low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(sizes, middle, color=color, marker=marker, markersize=5, label=of[0]["provider"])
    ceilings = sorted({(row["bytes"], c) for row in rows if (c := _ceiling(row)) is not None})
    if ceilings:
        axes.plot(*zip(*ceilings, strict=True), color="#222222", linestyle="--", label="ceiling")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bytes moved")


def _draw_bars(axes: Any, rows: list[Row]) -> None:
    """A group of bars for each shape, with whiskers from the 20th to the 80th percentile."""
    cases = by_case(rows)
    providers = list(dict.fromkeys(row["provider"] for row in rows))
    if not cases:
        say(axes, "nothing was timed")
        return
    width = 0.84 / len(providers)
    for place, provider in enumerate(providers):
        having = [(at, of[provider]) for at, of in enumerate(cases) if provider in of]
        middle = [_figure_of(row, row["time_us"]) for _, row in having]
        ends = [
            sorted(_figure_of(row, row[name]) for name in ("p20_us", "p80_us")) for _, row in having
        ]
        whiskers = [
            [max(0.0, m - low) for m, (low, _) in zip(middle, ends, strict=True)],
            [max(0.0, high - m) for m, (_, high) in zip(middle, ends, strict=True)],
        ]
        axes.bar(
            [at + (place - (len(providers) - 1) / 2) * width for at, _ in having],
            middle,
            width=0.9 * width,
            color=_style(provider)[0],
            yerr=whiskers,
            error_kw={"ecolor": "#222222", "linewidth": 0.8, "capsize": 2},
            label=provider,
        )
    _draw_ceilings(axes, cases)
    shapes = ["×".join(map(str, next(iter(of.values()))["shape"])) for of in cases]
    slanted = {"rotation": 25, "ha": "right"} if len(cases) > 3 else {}
    axes.set_xticks(range(len(cases)), shapes, fontsize=9, **slanted)


def _draw_ceilings(axes: Any, cases: list[Rows]) -> None:
    label: str | None = "ceiling"
    for at, of in enumerate(cases):
        height = _ceiling(next(iter(of.values())))
        if height is not None:
            axes.hlines(height, at - 0.46, at + 0.46, color="#222222", linestyle="--", label=label)
            label = None
