"""CUDA streams, shown rather than told: order, overlap, an early return, and what serialises.

    python examples/streams.py
    python examples/streams.py --hw7

Each lesson enqueues kernels that only spin for some milliseconds. It takes the times of their
begins and ends by events on the device, and by the host's clock. It asserts what must hold, and
prints a line. It needs a GPU. `diglot.stream_map` is built on the first three; docs/pipeline.md.

--hw7 runs homework 7 of the CUDA training series (https://github.com/olcf/cuda-training-series) as
it was published: its arrays, chunks and streams, its kernel, which is `diglot.gaussian_pdf`, and
the figures that it prints. What `stream_map` takes for the same arrays stands beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import diglot

SLACK_MS = 0.5  # events may seem to be out of order by this
PER_THREAD_STREAM = 2  # cudaStreamPerThread: a name for the calling thread's own default stream


@dataclass(frozen=True)
class Span:
    """When a kernel ran, in milliseconds since the lesson began."""

    begin: float
    end: float

    def overlaps(self, other: Span) -> bool:
        """Whether both ran at the same time, for half of the shorter one at least."""
        shared = min(self.end, other.end) - max(self.begin, other.begin)
        return shared > 0.5 * min(self.end - self.begin, other.end - other.begin)

    def is_after(self, other: Span) -> bool:
        """Whether it began when the other had ended."""
        return self.begin >= other.end - SLACK_MS

    def __str__(self) -> str:
        return f"{self.begin:.1f} to {self.end:.1f} ms"


class Lesson:
    """Kernels that spin, and when they ran.

    Args:
        spin_ms: how long each spins, about.
    """

    def __init__(self, spin_ms: float) -> None:
        self._cycles = int(spin_ms * 1e-3 * _cycles_per_second())
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        torch.cuda.synchronize()
        self._origin = torch.cuda.Event(enable_timing=True)
        self._origin.record(torch.cuda.Stream())

    def spin(self, stream: torch.cuda.Stream) -> None:
        """Enqueues a kernel that spins."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record()
            torch.cuda._sleep(self._cycles)
            end.record()
        self._marks.append((begin, end))

    def spans(self) -> list[Span]:
        """Waits for all kernels; when each ran, in the order in which they were enqueued."""
        torch.cuda.synchronize()
        return [Span(*map(self._origin.elapsed_time, marks)) for marks in self._marks]


def _cycles_per_second() -> float:
    """Of the clock that a spinning kernel counts, which may be slower than the largest."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)  # loads it
    begin.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    end.synchronize()
    return 10_000_000 / (begin.elapsed_time(end) * 1e-3)


@contextlib.contextmanager
def blocking_streams(count: int) -> Iterator[list[torch.cuda.Stream]]:
    """Streams as `cudaStreamCreate` makes them. PyTorch's own are non-blocking."""
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    runtime = ctypes.CDLL(next(path for path in loaded if "libcudart.so" in path))
    handles = [ctypes.c_void_p() for _ in range(count)]
    for handle in handles:
        status = runtime.cudaStreamCreate(ctypes.byref(handle))
        if status != 0:
            raise RuntimeError(f"cudaStreamCreate: error {status}")
    try:
        yield [torch.cuda.ExternalStream(handle.value) for handle in handles]
    finally:
        torch.cuda.synchronize()
        for handle in handles:
            runtime.cudaStreamDestroy(handle)


def order_within_a_stream(spin_ms: float) -> str:
    """Work of one stream is done in the order in which it was enqueued."""
    lesson, stream = Lesson(spin_ms), torch.cuda.Stream()
    number = torch.zeros((), device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    lesson.spin(stream)
    with torch.cuda.stream(stream):
        number.add_(1)
    lesson.spin(stream)
    with torch.cuda.stream(stream):
        number.mul_(10)
    first, second = lesson.spans()
    assert second.is_after(first), (first, second)
    assert number.item() == 10  # not 1, as the other order would give
    return f"order within a stream: the first kernel ran {first}, the second {second}"


def overlap_across_streams(spin_ms: float) -> str:
    """Work of several streams is done at the same time, where no event says otherwise."""
    lesson, streams = Lesson(spin_ms), [torch.cuda.Stream() for _ in range(3)]
    for stream in streams:
        lesson.spin(stream)
    spans = lesson.spans()
    assert all(a.overlaps(b) for a in spans for b in spans), spans
    whole = max(span.end for span in spans) - min(span.begin for span in spans)
    alone = sum(span.end - span.begin for span in spans)
    assert whole < 0.6 * alone, (whole, alone)
    return f"overlap across streams: three kernels, {alone:.1f} ms of work, took {whole:.1f} ms"


def an_event_orders_streams(spin_ms: float) -> str:
    """A stream that waits for an event of another's begins when that has come."""
    lesson, one, other = Lesson(spin_ms), torch.cuda.Stream(), torch.cuda.Stream()
    lesson.spin(one)
    other.wait_event(one.record_event())
    lesson.spin(other)
    first, second = lesson.spans()
    assert second.is_after(first), (first, second)
    return f"an event between streams: the first ran {first}, the one that waits {second}"


def early_return(spin_ms: float) -> str:
    """A launch returns to the host long before the kernel ends, and so does a copy of pinned
    memory.
    """
    lesson, stream = Lesson(spin_ms), torch.cuda.Stream()
    on_device, pinned = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, pin_memory=True)
    stream.wait_stream(torch.cuda.current_stream())
    began = time.perf_counter()
    lesson.spin(stream)
    with torch.cuda.stream(stream):
        pinned.copy_(on_device, non_blocking=True)
    returned = 1e3 * (time.perf_counter() - began)
    is_done, seen = stream.query(), pinned[-1].item()
    stream.synchronize()
    waited = 1e3 * (time.perf_counter() - began)
    assert not is_done and returned < 0.2 * waited, (returned, waited)
    assert seen == 0 and pinned[-1].item() == 1  # read too early, and when the stream was done
    return (
        f"early return: the host had both calls behind it after {returned:.2f} ms, and the result "
        f"after {waited:.1f} ms"
    )


def legacy_default_stream(spin_ms: float) -> str:
    """Work on the legacy default stream waits for all blocking streams, and they for it."""
    with blocking_streams(2) as (one, other):
        lesson = Lesson(spin_ms)
        for stream in (one, torch.cuda.default_stream(), other):
            lesson.spin(stream)
        spans = lesson.spans()
    assert spans[1].is_after(spans[0]) and spans[2].is_after(spans[1]), spans
    return (
        "the legacy default stream between two blocking ones: "
        f"{', then '.join(map(str, spans))}: one after the other"
    )


def per_thread_default_stream(spin_ms: float) -> str:
    """The per-thread default stream, in the legacy one's place, lets them overlap."""
    with blocking_streams(2) as (one, other):
        lesson = Lesson(spin_ms)
        for stream in (one, torch.cuda.ExternalStream(PER_THREAD_STREAM), other):
            lesson.spin(stream)
        spans = lesson.spans()
    assert all(a.overlaps(b) for a in spans for b in spans), spans
    return f"the per-thread default stream between them: {', '.join(map(str, spans))}: at once"


def non_blocking_streams(spin_ms: float) -> str:
    """Non-blocking streams, which PyTorch's are, overlap even with the legacy default stream."""
    lesson, one, other = Lesson(spin_ms), torch.cuda.Stream(), torch.cuda.Stream()
    for stream in (one, torch.cuda.default_stream(), other):
        lesson.spin(stream)
    spans = lesson.spans()
    assert all(a.overlaps(b) for a in spans for b in spans), spans
    return (
        "the legacy default stream between two non-blocking ones: "
        f"{', '.join(map(str, spans))}: at once"
    )


class Homework:
    """Homework 7 as published, solutions/overlap.cu: one way without streams, and one with them.

    Args:
        backend: of the kernel: "cuda" or "triton".
        elements: of each array; 64 Mi floats are 256 MiB.

    Attributes:
        source: the input, in pinned memory: random numbers from 0 to 1.
        target: the output, likewise.
    """

    ELEMENTS, CHUNKS, STREAMS = 1 << 26, 64, 8

    def __init__(self, backend: str, elements: int = ELEMENTS) -> None:
        # The mean of a normal density at 22 points around each number, from -0.11 to 0.10.
        self._kernel = functools.partial(diglot.gaussian_pdf, backend=backend)
        self.source = torch.rand(elements).pin_memory()
        self.target = torch.zeros(elements).pin_memory()
        self._on_device = torch.empty(elements, device="cuda")
        self._streams = [torch.cuda.Stream() for _ in range(self.STREAMS)]

    def without_streams(self) -> None:
        """All of it in, the kernel, all of it out."""
        self._on_device.copy_(self.source, non_blocking=True)
        self.target.copy_(self._kernel(self._on_device), non_blocking=True)
        torch.cuda.synchronize()

    def with_streams(self) -> None:
        """Depth first: chunk i goes in, is computed and goes out in stream i mod 8."""
        arrays = (self.source, self._on_device, self.target)
        chunks = zip(*(array.chunk(self.CHUNKS) for array in arrays), strict=True)
        for i, (source, on_device, target) in enumerate(chunks):
            with torch.cuda.stream(self._streams[i % self.STREAMS]):
                on_device.copy_(source, non_blocking=True)
                target.copy_(self._kernel(on_device), non_blocking=True)
        torch.cuda.synchronize()

    def with_stream_map(self) -> None:
        """What does the same in one call."""
        diglot.stream_map(self._kernel, self.source, out=self.target)

    def check_formula(self) -> None:
        """Compares some results with PyTorch's in float64."""
        every = len(self.source) // 1000 + 1
        exact = diglot.gaussian_pdf(self.source[::every].double(), backend="torch")
        torch.testing.assert_close(self.target[::every].double(), exact, rtol=1e-5, atol=0)

    @property
    def ways(self) -> dict[str, Callable[[], None]]:
        """Each by the name that the published program, or diglot, has for it."""
        return {
            "non-stream": self.without_streams,
            "streams": self.with_streams,
            "stream_map": self.with_stream_map,
        }

    def figures(self) -> Iterator[str]:
        """A line for each way, the second time that it runs. The first's result must be the
        formula's, and all others the first's.
        """
        first, seconds = None, {}
        for name, way in self.ways.items():
            way()
            self.target.zero_()
            began = time.perf_counter()
            way()
            seconds[name] = time.perf_counter() - began
            if first is None:
                first = self.target.clone()
                self.check_formula()
            mismatches = int((self.target != first).sum())
            assert mismatches == 0, f"{name}: {mismatches} mismatches"
            faster = seconds["non-stream"] / seconds[name]
            yield f"{name} elapsed time: {seconds[name]:.6f} s, {faster:.2f} times as fast"


LESSONS = (
    order_within_a_stream,
    overlap_across_streams,
    an_event_orders_streams,
    early_return,
    legacy_default_stream,
    per_thread_default_stream,
    non_blocking_streams,
)


def main() -> None:
    """Prints a line for each lesson."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spin-ms", type=float, default=20.0, help="how long a kernel spins")
    parser.add_argument("--hw7", action="store_true", help="homework 7, in place of the lessons")
    parser.add_argument("--backend", default="cuda", help="of homework 7's kernel: cuda or triton")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU, and streams are a GPU's")
    print(torch.cuda.get_device_name())
    if arguments.hw7:
        for line in Homework(arguments.backend).figures():
            print(line, flush=True)
        return
    for lesson in LESSONS:
        print(lesson(arguments.spin_ms), flush=True)


if __name__ == "__main__":
    main()
