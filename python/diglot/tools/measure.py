"""Timing on a GPU: interleaved, with a cold L2 cache, medians with spread.

Everything that is to be compared is timed in one process, in turns, because clocks drift by more
than most differences. Between two calls the L2 cache is overwritten. An interpreted run is never
timed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from diglot.backends.registry import INTERPRET, load_triton, triton_interprets

Function = Callable[[], object]

GRAPH_CALLS, GRAPH_TURNS = 20, 50
HOST_CALLS = 100
# More than the host takes for any call that is timed on the device.
HOST_US = 400


@dataclass(frozen=True)
class Timing:
    """Times of one function.

    Attributes:
        median_us: median, in microseconds.
        p20_us: 20th percentile.
        p80_us: 80th percentile.
        samples: how many times it was measured.
    """

    median_us: float
    p20_us: float
    p80_us: float
    samples: int

    @staticmethod
    def of(times_us: list[float]) -> Timing:
        """Summarises times in microseconds."""
        fifths = statistics.quantiles(times_us, n=5, method="inclusive")
        return Timing(statistics.median(times_us), fifths[0], fifths[3], len(times_us))


def why_not() -> str | None:
    """Why nothing is timed in this process; None if it can be."""
    if INTERPRET:
        return "kernels are interpreted (DIGLOT_INTERPRET=1), and how fast says nothing of a GPU"
    if load_triton()[0] is not None and triton_interprets():
        return "kernels are interpreted (TRITON_INTERPRET), and how fast says nothing of a GPU"
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA GPU, and times are taken on one"
    return None


def check() -> None:
    """Raises RuntimeError where nothing is timed."""
    reason = why_not()
    if reason is not None:
        raise RuntimeError(f"not timed: {reason}")


def copy_ceiling(total_bytes: int, dtype: torch.dtype, device: torch.device | str) -> Function:
    """A device copy that moves `total_bytes`, read and written together, of random data."""
    elements = max(1, total_bytes // 2 // dtype.itemsize)
    if dtype.is_floating_point:
        source = torch.empty(elements, dtype=dtype, device=device).normal_()
    else:
        source = torch.randint(0, 2, (elements,), device=device).to(dtype)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _flush_buffer() -> torch.Tensor:
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return torch.empty(max(2 * l2_bytes, 1 << 28), dtype=torch.uint8, device="cuda")


def _timed_once(function: Function, buffer: torch.Tensor) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    buffer.zero_()
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def interleaved(
    functions: Mapping[str, Function], *, budget_ms: float = 200, prepare: Function | None = None
) -> dict[str, Timing]:
    """Device times of functions that enqueue work on the current stream, taken in turns.

    Args:
        functions: what to time, by name. Called a few times first, so that compilation and
            allocation are over.
        budget_ms: device time to spend on each, about; at least 10 samples are taken.
        prepare: called before each call, untimed: undoes what a function in place has done.

    Returns:
        A `Timing` per name.

    Raises:
        RuntimeError: kernels are interpreted, or there is no GPU. The other timers too.
    """
    check()
    buffer = _flush_buffer()
    prepare = prepare or (lambda: None)
    for function in functions.values():
        for _ in range(3):
            prepare()
            function()
    torch.cuda.synchronize()
    flush_us = _timed_once(buffer.zero_, buffer)
    flushes = max(1, math.ceil(HOST_US / flush_us))
    probes = {}
    for name, function in functions.items():
        prepare()
        probes[name] = _timed_once(function, buffer)
    longest = max(probes.values()) + flushes * flush_us
    rounds = int(min(200, max(10, budget_ms * 1e3 / longest)))
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            prepare()
            # Flushing also keeps the GPU busy while the host prepares the call, so that host time
            # does not show.
            for _ in range(flushes):
                buffer.zero_()
            start.record()
            function()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: Timing.of([start.elapsed_time(end) * 1e3 for start, end in pairs])
        for name, pairs in events.items()
    }


def captured(function: Function) -> Function:
    """A replay of one call that is captured in a CUDA graph: its device time without the host's."""
    check()
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def graphed(functions: Mapping[str, Function], *, budget_ms: float = 500) -> dict[str, Timing]:
    """Device time per call of functions captured in a CUDA graph, taken in turns; warm caches.

    On each is spent about `budget_ms` of device time, in 10 to 50 samples.
    """
    check()
    graphs = {}
    for name, function in functions.items():
        function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH_CALLS):
                function()
        graphs[name] = graph

    def replay_us(graph: torch.cuda.CUDAGraph) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    times: dict[str, list[float]] = {name: [] for name in functions}
    for graph in graphs.values():
        replay_us(graph)  # the first uploads it
    samples = {
        name: int(min(GRAPH_TURNS, max(10, budget_ms * 1e3 / replay_us(graph))))
        for name, graph in graphs.items()
    }
    for turn in range(GRAPH_TURNS):
        for name, graph in graphs.items():
            # Those of fewer samples are spread over all turns.
            if turn * samples[name] // GRAPH_TURNS < (turn + 1) * samples[name] // GRAPH_TURNS:
                times[name].append(replay_us(graph) / GRAPH_CALLS)
    return {name: Timing.of(of) for name, of in times.items()}


def host(functions: Mapping[str, Function], *, rounds: int = 40) -> dict[str, Timing]:
    """Host time per call, taken in turns, with the device's queue never full."""
    check()
    for function in functions.values():
        for _ in range(HOST_CALLS):
            function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(HOST_CALLS):
                function()
            times[name].append((time.perf_counter() - begin) * 1e6 / HOST_CALLS)
    torch.cuda.synchronize()
    return {name: Timing.of(of) for name, of in times.items()}
