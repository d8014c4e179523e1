"""The report of a thread's last call, made when somebody asks for it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from diglot.pipeline.planner import Plan
from diglot.pipeline.report import PipelineReport, Times

Done = tuple[torch.device, Plan, str, list[tuple[float, list[Times]]]]


def make_report(
    whole: Plan,
    shares: Sequence[Done],
    out_row_bytes: tuple[int, ...],
    device: torch.device,
    **facts: Any,
) -> PipelineReport:
    """The report of a call, made when it is asked for: that takes longer than a small run.

    Args:
        whole: how all rows were cut.
        shares: of each, its device, plan, engine and times.
        out_row_bytes: of a row, for each output.
        device: the first one.
        facts: other attributes of the report.
    """
    engines = {engine for _, _, engine, _ in shares} or {"python"}
    timelines = [
        [tuple(at + late for at in times) for late, timeline in timelines for times in timeline]
        for *_, timelines in shares
    ]
    return PipelineReport(
        **facts,
        engine=engines.pop() if len(engines) == 1 else "python",
        devices=tuple(str(each) for each, *_ in shares) or (str(device),),
        chunk_rows=whole.chunk_rows,
        chunks=sum(map(len, timelines)),
        num_slots=whole.num_slots,
        device_bytes=sum(
            replace(plan, out_row_bytes=out_row_bytes).device_bytes for _, plan, *_ in shares
        ),
        timelines=timelines or [[]],
        gpu=name_of(device) if len(shares) == 1 and device.type == "cuda" else None,
    )


@functools.cache
def name_of(device: torch.device) -> str:
    """The name of a GPU."""
    return torch.cuda.get_device_name(device)


class _Last(threading.local):
    """The report of this thread's last call."""

    _make: Callable[[], PipelineReport] | None = None
    _report: PipelineReport | None = None

    def keep(self, make: Callable[[], PipelineReport]) -> None:
        """Keeps what makes the report of a call."""
        self._make, self._report = make, None

    def report(self) -> PipelineReport | None:
        """The report, made once; None before the first call."""
        if self._make is not None:
            self._report, self._make = self._make(), None
        return self._report


last = _Last()
