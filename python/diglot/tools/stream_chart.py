"""A run through the pipeline as a Gantt chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diglot.pipeline.report import STAGES, PipelineReport, intervals_of
from diglot.tools.plots import DPI, GRID, check_plot, hide_frame, say

# The first chunks are drawn closely: the pipeline fills, and is full.
CLOSE_CHUNKS = 12
# Of each stage: its lane's name and its colour, told apart by colour-blind readers and in grey.
LANES = {
    "read": ("host read", "#b9b9b9"),
    "h2d": ("H2D copy", "#0b5fa5"),
    "compute": ("compute", "#e07b00"),
    "d2h": ("D2H copy", "#56b4e9"),
    "write": ("host write", "#6f6f6f"),
}
LANE_HEIGHT = 0.84  # of the distance between lanes
GAP = 0.7  # between slots, in lanes
NARROWEST_NUMBERED = 0.017  # of the width: a bar with its chunk's number


def draw(report: PipelineReport, path: Path) -> None:
    """Draws what each slot of the first device did while the first chunks went through, a lane for
    each stage, and below what each stage of every device did in the whole run.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    stages = [name for name in STAGES if name in report.busy]
    slots = min(report.num_slots, max((len(of) for of in report.timelines), default=0))
    close_lanes = max(3, slots * len(stages) + round(GAP * (slots - 1)))
    whole_lanes = max(2, len(report.timelines) * len(stages))
    heights = (0.235 * close_lanes, 0.235 * whole_lanes)
    figure = Figure(figsize=(12.5, sum(heights) + 2.3), layout="constrained", facecolor="white")
    close, whole = figure.subplots(2, 1, height_ratios=heights)
    figure.suptitle(_title(report), fontsize=12, fontweight="bold", x=0.01, ha="left")
    for axes in (close, whole):
        axes.set_axisbelow(True)
        axes.grid(True, axis="x", **GRID)
        axes.set_xlabel("ms since the run began")
        hide_frame(axes)
    if not stages:
        for axes in (close, whole):
            say(axes, "no chunk was done")
    else:
        _draw_close(close, report, stages, slots)
        _draw_whole(whole, report, stages)
    figure.savefig(path, dpi=DPI)


def _title(report: PipelineReport) -> str:
    return (
        f"{report.op} · backend {report.backend}, {report.engine} engine · "
        f"{', '.join(report.devices)} · {report.chunks:,} chunks in {1e3 * report.seconds:.4g} ms: "
        f"{report.gb_per_s_in:.3g} GB/s in, {report.gb_per_s_out:.3g} GB/s out"
    )


def _draw_close(axes: Any, report: PipelineReport, stages: list[str], slots: int) -> None:
    timeline = report.timelines[0]
    first = timeline[:CLOSE_CHUNKS]
    shown = [(stage, list(intervals_of(timeline, stage))) for stage in stages]
    end = max(until for stage in stages for _, (_, until) in intervals_of(first, stage))
    axes.set_title(
        f"Slot by slot, the first {len(first)} chunks; bars bear their chunk's number",
        loc="left",
        fontsize=11,
    )
    ticks, names = [], []
    for slot in range(slots):
        for lane, (stage, intervals) in enumerate(shown):
            place = slot * (len(stages) + GAP) + lane
            ticks.append(place)
            names.append(f"slot {slot}  {LANES[stage][0]}" if lane == 0 else LANES[stage][0])
            for chunk, (begin, until) in intervals:
                if chunk % report.num_slots == slot and begin < end:
                    _bar(axes, place, begin, until, stage, chunk, end)
        if slot:
            axes.axhline(slot * (len(stages) + GAP) - (1 + GAP) / 2, color="#9a9a9a", linewidth=0.8)
    _finish(axes, ticks, names, end)


def _bar(
    axes: Any, place: float, begin: float, until: float, stage: str, chunk: int, end: float
) -> None:
    color = LANES[stage][1]
    width = until - begin
    axes.broken_barh(
        [(1e3 * begin, 1e3 * width)],
        (place - LANE_HEIGHT / 2, LANE_HEIGHT),
        facecolor=color,
        edgecolor="white",
        linewidth=0.5,
        zorder=3,
    )
    seen = min(until, end) - begin
    if seen > NARROWEST_NUMBERED * end:
        axes.text(
            1e3 * (begin + seen / 2),
            place,
            str(chunk),
            ha="center",
            va="center",
            fontsize=7,
            color="white" if stage in ("h2d", "write") else "black",
            zorder=4,
            clip_on=True,
        )


def _draw_whole(axes: Any, report: PipelineReport, stages: list[str]) -> None:
    timed, chunks = report.timed_chunks, sum(map(len, report.timelines))
    some = f" ({timed} of {chunks} chunks timed)" if timed < chunks else ""
    axes.set_title(
        "The whole run, all slots of a stage in one lane, and the share of it in which the stage "
        f"was at work{some}",
        loc="left",
        fontsize=11,
    )
    ticks, names = [], []
    ends = [report.seconds]
    several = len(report.timelines) > 1
    for device, timeline in enumerate(report.timelines):
        found = report.stages(device)
        for lane, stage in enumerate(stages):
            place = device * (len(stages) + GAP) + lane
            ticks.append(place)
            name = LANES[stage][0]
            names.append(f"{report.devices[device]}  {name}" if several and lane == 0 else name)
            # Without edges, which would cover hundreds of bars, and not moved to whole pixels, by
            # which narrower ones would vanish.
            axes.broken_barh(
                [(1e3 * b, 1e3 * (e - b)) for _, (b, e) in intervals_of(timeline, stage)],
                (place - LANE_HEIGHT / 2, LANE_HEIGHT),
                facecolor=LANES[stage][1],
                linewidth=0,
                snap=False,
                zorder=3,
            )
            if stage not in found:
                continue
            ends.append(found[stage].end)
            if report.seconds > 0:
                axes.annotate(
                    f"{100 * found[stage].busy / report.seconds:.0f} %",
                    (1.004, place),
                    xycoords=("axes fraction", "data"),
                    va="center",
                    fontsize=8,
                    annotation_clip=False,
                )
    _finish(axes, ticks, names, max(ends))


def _finish(axes: Any, ticks: list[float], names: list[str], end: float) -> None:
    axes.set_yticks(ticks, names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(ticks[-1] + 0.6, ticks[0] - 0.6)  # the first on top
    axes.set_xlim(0, 1e3 * (end if end > 0 else 1))
