"""What measures calls on a GPU, as data: tests put other instruments in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from diglot.bench.harness import COLD, Call
from diglot.tools import measure
from diglot.tools.measure import Timing

BUDGET_MS = 60
CEILINGS = ("copy", "product")

Timer = Callable[[Mapping[str, Call], "Call | None"], dict[str, Timing]]


def _interleaved(cold: bool) -> Timer:
    return lambda calls, prepare: measure.interleaved(
        calls, budget_ms=BUDGET_MS, prepare=prepare, cold=cold
    )


def _captured(calls: Mapping[str, Call], prepare: Call | None) -> dict[str, Timing]:
    """The ceilings are one launch each, and need no graph."""
    graphs = {n: c if n in CEILINGS else measure.captured(c) for n, c in calls.items()}
    return _interleaved(cold=True)(graphs, prepare)


TIMERS: dict[str, Timer] = {
    "device": _interleaved(cold=True),
    "captured": _captured,
    "warm": _interleaved(cold=False),
    "graph": lambda calls, prepare: measure.graphed(calls),
    "host": lambda calls, prepare: measure.host(calls),
}
WITH_CEILING = (*COLD, "warm")


def _copy(moved: int, dtype: torch.dtype) -> Call:
    return measure.copy_ceiling(moved, dtype, "cuda")


@dataclass(frozen=True)
class Instruments:
    """What measures on a GPU; tests on machines without one put others in their place.

    Attributes:
        check: raises RuntimeError where nothing is timed.
        timers: by a case's timer: from calls by name and what prepares each, untimed, their times.
        copy: from a number of bytes and a dtype, a call that moves these.
        product: from a dtype, a call that multiplies matrices, and its operations.
        host_us: from a call and the device's time for it, the host's.
        launches: kernels, copies and fills that a call gives the device.
        ends_in_stream: whether all that a call starts is done when its stream is.
        release: gives back memory that nothing uses.
    """

    check: Callable[[], None] = measure.check
    timers: Mapping[str, Timer] = field(default_factory=lambda: TIMERS)
    copy: Callable[[int, torch.dtype], Call] = _copy
    product: Callable[[torch.dtype], tuple[Call, int]] = measure.product_ceiling
    host_us: Callable[[Call, float], float] = measure.host_beside
    peak_bytes: Callable[[Call], int] = measure.peak_bytes
    launches: Callable[[Call], int | None] = measure.launches
    ends_in_stream: Callable[[Call], bool] = measure.ends_in_stream
    synchronize: Callable[[], None] = torch.cuda.synchronize
    release: Callable[[], None] = torch.cuda.empty_cache


GPU = Instruments()
