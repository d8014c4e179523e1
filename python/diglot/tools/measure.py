"""Timing on a GPU: interleaved, with a cold L2 cache, medians with spread.

Everything that is to be compared is timed in one process, in turns, because clocks drift by more
than most differences. Between two calls the L2 cache is overwritten. An interpreted run is never
timed.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from diglot.backends.registry import INTERPRET, load_triton, triton_interprets

Function = Callable[[], object]
Filler = Callable[[float], None]

GRAPH_CALLS, GRAPH_TURNS = 20, 50
HOST_CALLS = 100
BESIDE_ROUNDS, BESIDE_CALLS, BESIDE_BUDGET_US = 10, 20, 5e5
# So long the device is kept busy before a call at least, while the host enqueues it; and at most.
# Where that was too short the sample is taken again, and the device kept busy twice as long.
HOST_US, MOST_HOST_US = 400.0, 50_000.0
PRODUCT = 8192  # rows and columns of the matrices of the ceiling of operations

# To wait for a device that is done takes less. A busy host is interrupted often, not every time.
ESCAPE_US, ESCAPE_TRIES = 100, 20


@dataclass(frozen=True)
class Timing:
    """Times of one function.

    Attributes:
        exposed: in how many of these the device waited for the host, whose time is then in them.
    """

    median_us: float
    p20_us: float
    p80_us: float
    samples: int
    exposed: int = 0

    @staticmethod
    def of(times_us: list[float], exposed: int = 0) -> Timing:
        """Summarises times in microseconds."""
        fifths = statistics.quantiles(times_us, n=5, method="inclusive")
        return Timing(statistics.median(times_us), fifths[0], fifths[3], len(times_us), exposed)

    def figures(self) -> dict[str, Any]:
        """What a result says of its times, by the names that files of results have."""
        return {
            "time_us": self.median_us,
            "p20_us": self.p20_us,
            "p80_us": self.p80_us,
            "samples": self.samples,
        }


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


def product_ceiling(dtype: torch.dtype) -> tuple[Function, int]:
    """A large matrix product by PyTorch, of random data, and how many operations it is."""
    a, b = (torch.randn(PRODUCT, PRODUCT, device="cuda").to(dtype) for _ in range(2))
    return lambda: a @ b, 2 * PRODUCT**3


def _flush_buffer() -> torch.Tensor:
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return torch.empty(max(2 * l2_bytes, 1 << 28), dtype=torch.uint8, device="cuda")


def _timed_once(function: Function) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def _turns(samples: Mapping[str, int]) -> Iterator[str]:
    """Names in turns: those of fewer samples are spread over all turns."""
    turns = max(samples.values(), default=0)
    for turn in range(turns):
        for name, count in samples.items():
            if turn * count // turns < (turn + 1) * count // turns:
                yield name


def _flush() -> Filler:
    """Overwrites the L2 cache, and keeps the device busy for at least these microseconds."""
    buffer = _flush_buffer()
    buffer.zero_()
    once_us = _timed_once(buffer.zero_)

    def flush(us: float) -> None:
        for _ in range(max(1, math.ceil(us / once_us))):
            buffer.zero_()

    return flush


def _idle() -> Filler:
    """Keeps the device busy for at least these microseconds, and the L2 cache as it is."""
    cycles = 1 << 20
    torch.cuda._sleep(cycles)
    per_us = cycles / _timed_once(lambda: torch.cuda._sleep(cycles))
    return lambda us: torch.cuda._sleep(math.ceil(per_us * us))


def _host_us(function: Function) -> float:
    """What the host takes for a call, whose first ones compile and allocate."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        function()
        times.append((time.perf_counter() - begin) * 1e6)
    return min(times)


def _nothing() -> None:
    pass


class _Samples:
    """Device times of a function, without the host's: each call waits behind a filler.

    Args:
        fill: keeps the device busy.
        host_us: what the host takes from the filler to the end of the call, about.
        first: called before the filler, untimed.
        last: likewise, between the filler and the call.
    """

    def __init__(
        self,
        function: Function,
        fill: Filler,
        host_us: float,
        *,
        first: Function = _nothing,
        last: Function = _nothing,
    ) -> None:
        self.function, self.fill, self.first, self.last = function, fill, first, last
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.exposed = 0
        self.fillers_us = [min(max(HOST_US, 2 * host_us), MOST_HOST_US)]
        while self.fillers_us[-1] < MOST_HOST_US:
            self.fillers_us.append(min(2 * self.fillers_us[-1], MOST_HOST_US))

    def take(self) -> None:
        """Calls once, between two events; again where the device waited for the host."""
        for us in self.fillers_us:
            self.first()
            self.fill(us)
            self.last()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self.function()
            end.record()
            if not start.query():  # everything is enqueued, and the device has yet to come to it
                break
        else:
            self.exposed += 1
            # A call that waits for the device cannot be hidden, and is not tried so often again.
            del self.fillers_us[1:]
        self.events.append((start, end))

    def timing(self, calls: int = 1) -> Timing:
        """Of all samples, which have this number of calls each."""
        times = [start.elapsed_time(end) * 1e3 / calls for start, end in self.events]
        return Timing.of(times, self.exposed)


def interleaved(
    functions: Mapping[str, Function],
    *,
    budget_ms: float = 200,
    prepare: Function | None = None,
    cold: bool = True,
) -> dict[str, Timing]:
    """Device times of functions that enqueue work on the current stream, taken in turns.

    Args:
        functions: what to time, by name. Called a few times first, so that compilation and
            allocation are over.
        budget_ms: device time to spend on each, about, in 10 to 200 samples.
        prepare: called before each call, untimed: undoes what a function in place has done.
        cold: whether the L2 cache is overwritten before each call; otherwise the function is
            called once more just before, untimed.

    Raises:
        RuntimeError: kernels are interpreted, or there is no GPU. The other timers too.
    """
    check()
    prepare = prepare or _nothing

    def turn(function: Function) -> None:
        prepare()
        function()

    def turn_and_prepare(function: Function) -> None:
        turn(function)
        prepare()

    host_us = {name: _host_us(functools.partial(turn, of)) for name, of in functions.items()}
    torch.cuda.synchronize()
    fill, taken, counts = _flush() if cold else _idle(), {}, {}
    for name, function in functions.items():
        if cold:
            samples = _Samples(function, fill, host_us[name], first=prepare)
        else:
            last = functools.partial(turn_and_prepare, function)
            samples = _Samples(function, fill, 2 * host_us[name], last=last)
        prepare()
        turn_us = samples.fillers_us[0] + _timed_once(function) * (1 if cold else 2)
        counts[name] = int(min(200, max(10, budget_ms * 1e3 / turn_us)))
        taken[name] = samples
    for name in _turns(counts):
        taken[name].take()
    torch.cuda.synchronize()
    return {name: samples.timing() for name, samples in taken.items()}


def captured(function: Function) -> Function:
    """A replay of one call that is captured in a CUDA graph: its device time without the host's.

    Other threads may go on with what a capture forbids, such as allocating.
    """
    check()
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
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

    # The first replay uploads it.
    host_us = {name: _host_us(graph.replay) for name, graph in graphs.items()}
    torch.cuda.synchronize()
    fill, taken, counts = _idle(), {}, {}
    for name, graph in graphs.items():
        taken[name] = samples = _Samples(graph.replay, fill, host_us[name])
        turn_us = samples.fillers_us[0] + _timed_once(graph.replay)
        counts[name] = int(min(GRAPH_TURNS, max(10, budget_ms * 1e3 / turn_us)))
    for name in _turns(counts):
        taken[name].take()
    torch.cuda.synchronize()
    return {name: samples.timing(GRAPH_CALLS) for name, samples in taken.items()}


def host(
    functions: Mapping[str, Function],
    *,
    rounds: int = 40,
    calls: int = HOST_CALLS,
    waits: bool = False,
) -> dict[str, Timing]:
    """Host time per call, taken in turns, with the device's queue never full.

    With `waits` it is wall time: each round of calls ends when the device has done its work.
    """
    check()
    for function in functions.values():
        for _ in range(calls):
            function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                function()
            if waits:
                torch.cuda.synchronize()
            times[name].append((time.perf_counter() - begin) * 1e6 / calls)
    torch.cuda.synchronize()
    return {name: Timing.of(of) for name, of in times.items()}


def host_beside(function: Function, device_us: float) -> float:
    """Host time per call in microseconds, measured briefly, beside the device's time of a call.

    The device is waited for after each round: of calls that take it long there are fewer.
    """
    calls = max(1, min(BESIDE_CALLS, int(BESIDE_BUDGET_US / BESIDE_ROUNDS / device_us)))
    return host({"": function}, rounds=BESIDE_ROUNDS, calls=calls)[""].median_us


def peak_bytes(function: Function) -> int:
    """Device memory that a call adds at its peak, its result included."""
    check()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def launches(function: Function) -> int | None:
    """Kernels, copies and fills that a call gives the device, by PyTorch's profiler.

    None: the profiler saw nothing, as where it is not allowed to.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    from diglot.tools.profile_engines import silence_kineto

    check()
    silence_kineto()
    # CUPTI is left where it is: PyTorch's profiler says that, with CUDA graphs in a process, to
    # take it down and up again crashes, and does the same.
    os.environ["TEARDOWN_CUPTI"] = "0"
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        function()
        torch.cuda.synchronize()
    seen = [event for event in profiler.events() or () if event.device_type == DeviceType.CUDA]
    # Ranges that mark compiled code are there too, and are no work of the device's.
    return sum(not getattr(event, "is_user_annotation", False) for event in seen) or None


def ends_in_stream(function: Function) -> bool:
    """Whether what a call starts has ended when the current stream is done.

    Events of that stream say nothing of work that a call leaves to another, however long it is.
    """
    check()
    for _ in range(ESCAPE_TRIES):
        torch.cuda.synchronize()
        function()
        torch.cuda.current_stream().synchronize()
        left, idle = _synchronized(), _synchronized()  # idle: where other processes use the GPU
        if left < max(ESCAPE_US * 1e-6, 2 * idle):
            return True
    return False


def _synchronized() -> float:
    """Waits for the device; seconds that it took."""
    begin = time.perf_counter()
    torch.cuda.synchronize()
    return time.perf_counter() - begin
