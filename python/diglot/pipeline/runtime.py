"""The ring's streams and events: a GPU's, or the CPU's, where each call is done at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch

Tensors = Sequence[torch.Tensor]


class Event(Protocol):
    """A moment in a stream's order of work."""

    def query(self) -> bool:
        """Whether the work before the event is done."""

    def synchronize(self) -> None:
        """Blocks the host until the work before the event is done."""


class Stream(Protocol):
    """A stream of work that runs in order."""

    def wait(self, event: Event) -> None:
        """What comes after this waits for the event."""

    def copy(self, to: Tensors, source: Tensors) -> None:
        """Enqueues copies of tensors."""

    def run(self, function: Callable[[], Any]) -> Any:
        """Has a function enqueue its work here; returns what it returns."""

    def fetch(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """Tensors that are computed, on the CPU; waits for them."""

    def record(self, is_timed: bool) -> Event:
        """An event after the enqueued work; a timed one keeps the time."""


class Runtime(Protocol):
    """A device's way of doing work in several streams.

    Attributes:
        loading: the stream of copies to the device.
        storing: the stream of copies from it.
        computing: for each slot, the stream that computes.
        began: when the run began, by time.perf_counter.
    """

    began: float
    loading: Stream
    storing: Stream
    computing: Sequence[Stream]

    def close(self) -> None:
        """Waits, on the host, until all streams are idle; none is used after it."""

    def now(self) -> float:
        """Seconds since the run began."""

    def seconds(self, event: Event) -> float:
        """When a timed event happened, in seconds since the run began."""

    def scope(self) -> AbstractContextManager[Any]:
        """What a thread is in while it uses the streams."""


# Streams that no run uses now: PyTorch's allocator keeps memory for each that it was used in.
_free_streams: dict[torch.device, list[torch.cuda.Stream]] = {}
_free_streams_lock = threading.Lock()


def take_streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """Streams of a device, which is the current one."""
    with _free_streams_lock:
        free = _free_streams.setdefault(device, [])
        # Those that were given back last, in their order, so that each is used for the same again.
        taken, free[:count] = free[:count], []
    return taken + [torch.cuda.Stream() for _ in range(count - len(taken))]


class GpuRuntime:
    """A GPU's: non-blocking streams, which begin once the caller's stream is done.

    Args:
        device: the GPU.
        slots: how many.
        shares_compute: whether there is one stream to compute in, or each slot's own.
        spins: whether a thread that waits keeps its core, and goes on at once, or sleeps.
    """

    def __init__(self, device: torch.device, slots: int, shares_compute: bool, spins: bool) -> None:
        self._device, self.spins = device, spins
        with torch.cuda.device(device.index):
            caller = torch.cuda.current_stream(device.index)
            computing = 1 if shares_compute else slots
            self._kept = take_streams(device, 2 + computing)
            streams = [GpuStream(self, kept) for kept in self._kept]
            self.loading: Stream = streams[0]
            self.storing: Stream = streams[1]
            self.computing: Sequence[Stream] = streams[2:] * (slots // computing)
            # The stream is idle: the event marks this moment.
            self._origin = torch.cuda.Event(enable_timing=True)
            self._origin.record(self._kept[0])
            self.began = time.perf_counter()
            self._kept[0].wait_stream(caller)  # all others wait for loaded chunks

    def close(self) -> None:
        """Waits, on the host, until all streams are idle, and leaves them to another run."""
        try:
            for kept in self._kept:
                kept.synchronize()
        finally:
            with _free_streams_lock:
                _free_streams[self._device][:0] = self._kept
            self._kept = []

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began

    def seconds(self, event: Any) -> float:
        """When a timed event happened, in seconds since the run began."""
        return self._origin.elapsed_time(event) / 1e3

    @contextmanager
    def scope(self) -> Iterator[None]:
        """The device is a thread's current one, whose current stream is the same again after it."""
        with torch.cuda.device(self._device.index):
            current = torch.cuda.current_stream(self._device.index)
            try:
                yield
            finally:
                torch.cuda.set_stream(current)


class GpuStream:
    """One of its streams. It is made the current one and left so, which takes half the time."""

    def __init__(self, runtime: GpuRuntime, stream: torch.cuda.Stream) -> None:
        self._runtime, self.stream = runtime, stream

    def wait(self, event: Any) -> None:
        """What comes after this waits for the event."""
        self.stream.wait_event(event)

    def copy(self, to: Tensors, source: Tensors) -> None:
        """Enqueues copies of tensors."""
        torch.cuda.set_stream(self.stream)
        for target, origin in zip(to, source, strict=True):
            copy(target, origin)

    def run(self, function: Callable[[], Any]) -> Any:
        """Has a function enqueue its work here; returns what it returns."""
        torch.cuda.set_stream(self.stream)
        return function()

    def fetch(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """Tensors that are computed, on the CPU; waits for them."""
        torch.cuda.set_stream(self.stream)
        return tuple(tensor.to("cpu") for tensor in tensors)

    def record(self, is_timed: bool) -> torch.cuda.Event:
        """An event after the enqueued work. A timed one delays a stream of copies by some 2 us."""
        event = torch.cuda.Event(enable_timing=is_timed, blocking=not self._runtime.spins)
        event.record(self.stream)
        return event


def copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """Copies a tensor in the current stream, or within the host."""
    if to.is_inference():  # which may be written in inference mode alone
        with torch.inference_mode():
            to.copy_(source, non_blocking=True)
    else:
        to.copy_(source, non_blocking=True)


class HostRuntime:
    """The CPU's: enqueued work is done before the call returns."""

    def __init__(self, slots: int = 1) -> None:
        self.began = time.perf_counter()
        self.loading: Stream = HostStream(self)
        self.storing: Stream = self.loading
        self.computing: Sequence[Stream] = [self.loading] * slots

    def close(self) -> None:
        """All is done."""

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began

    def seconds(self, event: Any) -> float:
        """When an event happened, since the run began."""
        return event.at

    def scope(self) -> AbstractContextManager[Any]:
        """Nothing is to be set."""
        return nullcontext()


class HostStream:
    """Its one stream."""

    def __init__(self, runtime: HostRuntime) -> None:
        self._runtime = runtime

    def wait(self, event: Event) -> None:
        """There is nothing to wait for."""

    def copy(self, to: Tensors, source: Tensors) -> None:
        """Copies tensors."""
        for target, origin in zip(to, source, strict=True):
            copy(target, origin)

    def run(self, function: Callable[[], Any]) -> Any:
        """Calls it."""
        return function()

    def fetch(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """They are there."""
        return tuple(tensors)

    def record(self, is_timed: bool) -> HostEvent:
        """An event that has happened."""
        return HostEvent(self._runtime.now())


class HostEvent:
    """A time, since the run began."""

    def __init__(self, at: float) -> None:
        self.at = at

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """It has happened."""


def current_stream(device: torch.device) -> AbstractContextManager[Any]:
    """The device and its stream that is current on this thread, for another to be in."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream(device.index))


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """The device as the current one of this thread, with the stream that it has there. This takes
    a fraction of the time of `current_stream`.
    """
    return nullcontext() if device.type != "cuda" else torch.cuda.device(device.index)


def runtime_of(device: torch.device, slots: int, shares_compute: bool, spins: bool) -> Runtime:
    """That of a device, for one run."""
    if device.type == "cuda":
        return GpuRuntime(device, slots, shares_compute, spins)
    return HostRuntime(slots)
