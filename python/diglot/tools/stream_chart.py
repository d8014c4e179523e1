"""A run through the pipeline as a Gantt chart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diglot.pipeline.report import ON_DEVICE, STAGES, Interval, PipelineReport, Times, intervals_of
from diglot.tools import drawing
from diglot.tools.drawing import SERIES, SOFT, Picture

# The first chunks are drawn closely: the pipeline fills, and is full.
CLOSE_CHUNKS = 6
# Of each stage: its lane's name and its colour.
LANES = {
    "read": ("host read", SERIES[2]),
    "h2d": ("H2D copy", SERIES[0]),
    "compute": ("compute", SERIES[1]),
    "d2h": ("D2H copy", SERIES[6]),
    "write": ("host write", SERIES[4]),
}
UNTIMED = "not timed"
LANE_HEIGHT = 0.8  # of the distance between lanes
SEEN = 2000  # of this number of parts of a run, one is about a pixel
LANE, FRAME = 0.2, 1.2  # inches: of a lane, and of what an axis has beside them


def draw(report: PipelineReport, path: Path) -> None:
    """Draws `picture` to a file."""
    drawing.save(picture(report), path)


def picture(report: PipelineReport) -> Picture:
    """A lane for each of the first device's first chunks, and below what each stage of every
    device did in the whole run.
    """
    stages = [name for name in STAGES if name in report.busy]
    close = min(CLOSE_CHUNKS, max(map(len, report.timelines[:1]), default=0))
    lanes = [max(2, close), max(2, len(report.timelines) * len(stages))]
    heights = [LANE * count + FRAME for count in lanes]

    def draw(figure: Any) -> None:
        above, below = figure.subplots(2, 1, height_ratios=lanes)
        for axes in (above, below):
            if not stages:
                drawing.say(axes, "no chunk was done")
        if stages:
            _draw_close(above, report, stages, close)
            _draw_whole(below, report, stages)
        drawing.legend(figure)

    return Picture(_title(report), draw, 8.6, sum(heights))


def _title(report: PipelineReport) -> str:
    devices = ", ".join(report.devices)
    where = f"{report.gpu} ({devices})" if report.gpu else devices
    return (
        f"{report.op} · backend {report.backend}, {report.engine} engine · {where}\n"
        f"{report.chunks:,} chunks in {1e3 * report.seconds:.4g} ms: "
        f"{report.gb_per_s_in:.3g} GB/s in, {report.gb_per_s_out:.3g} GB/s out"
    )


def _draw_close(axes: Any, report: PipelineReport, stages: Sequence[str], close: int) -> None:
    timeline = report.timelines[0][:close]
    names = [f"chunk {chunk}" for chunk in range(close)]
    for stage in stages:
        for chunk, (begin, end) in intervals_of(timeline, stage):
            _spans(axes, chunk, [(begin, end)], stage)
    for chunk, times in enumerate(timeline):
        if _is_untimed(times):
            begin, end = times[ON_DEVICE.start - 1], times[ON_DEVICE.stop]
            _untimed(axes, chunk, [] if math.isnan(begin + end) else [(begin, end)])
            names[chunk] += f", {UNTIMED}"
    axes.set_title(f"The first {close} chunks of {report.devices[0]}")
    _finish(axes, range(close), names)


def _draw_whole(axes: Any, report: PipelineReport, stages: Sequence[str]) -> None:
    names: list[str] = []
    for device, timeline in enumerate(report.timelines):
        found = report.stages(device)
        for stage in stages:
            lane = len(names)
            intervals = [interval for _, interval in intervals_of(timeline, stage)]
            if ON_DEVICE.start <= 2 * STAGES.index(stage) < ON_DEVICE.stop:
                _untimed(axes, lane, _gaps(timeline, stage))
            _spans(axes, lane, _merged(intervals, report.seconds / SEEN), stage)
            busy = found[stage].busy if stage in found else 0.0
            share = f", {100 * busy / report.seconds:.0f} %" if report.seconds > 0 else ""
            where = f"{report.devices[device]} " if len(report.timelines) > 1 else ""
            names.append(f"{where}{LANES[stage][0]}{share}")
    timed, chunks = report.timed_chunks, sum(map(len, report.timelines))
    some = f"\n(estimated: {timed:,} of {chunks:,} chunks were timed)" if timed < chunks else ""
    axes.set_title(f"The whole run, and the share of it that each stage was at work{some}")
    _finish(axes, range(len(names)), names)


def _is_untimed(times: Times) -> bool:
    return all(map(math.isnan, times[ON_DEVICE]))


def _gaps(timeline: Sequence[Times], stage: str) -> list[Interval]:
    """From the end of a chunk's stage to the next begin, where chunks between were not timed."""
    known = list(intervals_of(timeline, stage))
    return [
        (end, begin)
        for (chunk, (_, end)), (later, (begin, _)) in itertools.pairwise(known)
        if begin > end and any(map(_is_untimed, timeline[chunk + 1 : later]))
    ]


def _merged(intervals: Iterable[Interval], apart: float) -> list[Interval]:
    """Intervals in order, as one where they are no further apart than is seen."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin - found[-1][1] <= apart:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _spans(axes: Any, lane: float, intervals: Iterable[Interval], stage: str) -> None:
    """Bars in a lane."""
    name, color = LANES[stage]
    _bars(axes, lane, intervals, label=name, facecolor=color, linewidth=0)


def _untimed(axes: Any, lane: float, intervals: Iterable[Interval]) -> None:
    style = {"facecolor": "none", "edgecolor": SOFT, "hatch": "////", "linewidth": 0, "alpha": 0.6}
    _bars(axes, lane, intervals, label=UNTIMED, **style)


def _bars(axes: Any, lane: float, intervals: Iterable[Interval], **style: Any) -> None:
    spans = [(1e3 * begin, 1e3 * (end - begin)) for begin, end in intervals]
    if spans:
        where = (lane - LANE_HEIGHT / 2, LANE_HEIGHT)
        axes.broken_barh(spans, where, snap=False, zorder=3, **style)


def _finish(axes: Any, lanes: Sequence[int], names: Sequence[str]) -> None:
    axes.autoscale_view()
    axes.set_xlim(left=0)
    axes.set_ylim(lanes[-1] + 0.6, lanes[0] - 0.6)  # the first on top
    axes.set_yticks(lanes, [drawing.shown(name) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    axes.set_xlabel("ms since the run began")
