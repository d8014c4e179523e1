"""The ring: chunks pass through slots, copied in, computed and copied out at the same time. Twin of
csrc/pipeline/ring.h, which does the same for diglot's own CUDA kernels without Python.

One thread feeds chunks to three streams, of which each waits for the others by events alone; a
second one takes results off the device and says which slots are free again. Either waits for the
other by a condition. A slot has a buffer for each input on the device, and pinned buffers for what
is staged (host.py); a chunk's result belongs to its slot until it is out.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from diglot.pipeline.host import Copiers, HostArray, default_copy_threads
from diglot.pipeline.pinned import Buffer, pinned_cache
from diglot.pipeline.planner import Plan
from diglot.pipeline.runtime import Event, Runtime, runtime_of

# What happens to a chunk, in order; each has a begin and an end in its times.
STAGES = ("read", "h2d", "compute", "d2h", "write")
Times = tuple[float, ...]
NOT_THERE = (math.nan, math.nan)


class Control:
    """What a run tells while it lasts, and is told. Its words are shared with the native engine.

    Attributes:
        words: (stop, valid rows, chunk at work, 0), as a tensor of int64 in host memory.
    """

    def __init__(self) -> None:
        self.words = torch.zeros(4, dtype=torch.int64)
        self._words = self.words.numpy()

    @property
    def is_stopped(self) -> bool:
        """Whether the run is to end early."""
        return bool(self._words[0])

    def stop(self) -> None:
        """Has the run end as soon as what is under way is done."""
        self._words[0] = 1

    @property
    def valid_rows(self) -> int:
        """Of the run's rows, how many first ones are done."""
        return int(self._words[1])

    @valid_rows.setter
    def valid_rows(self, rows: int) -> None:
        self._words[1] = rows

    @property
    def chunk(self) -> int:
        """The chunk that is fed, or at which the run failed."""
        return int(self._words[2])

    @chunk.setter
    def chunk(self, chunk: int) -> None:
        self._words[2] = chunk


class Sink:
    """Where results go: to arrays in host memory. What the first result is like makes them.

    Args:
        make: from the first result, one tensor or several, to the arrays.
    """

    def __init__(self, make: Callable[[tuple[torch.Tensor, ...]], Sequence[HostArray]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self.arrays: list[HostArray] | None = None

    def of(self, results: tuple[torch.Tensor, ...]) -> list[HostArray]:
        """The arrays; several devices may ask at once."""
        with self._lock:
            if self.arrays is None:
                self.arrays = list(self._make(results))
                for array in self.arrays:
                    array.open()
            return self.arrays

    def close(self) -> None:
        """Closes the files among them."""
        for array in self.arrays or ():
            array.close()


@dataclass
class Job:
    """What one device is to do.

    Attributes:
        device: where.
        plan: its rows and how they are cut.
        first: the row of the arrays that it begins with.
        inputs: what is read.
        fn: from the chunks of the inputs, on the device, to the chunk's results there.
        sink: where results go; None if `fold` takes them.
        fold: is given each chunk's results on the CPU, in order.
        control: what it tells and is told.
        scope: what the thread that calls `fn` is in.
        copy_threads: for each direction.
        runtime: streams and events; by default the device's own.
        timeline: the times of the chunks that are done.
    """

    device: torch.device
    plan: Plan
    first: int
    inputs: list[HostArray]
    fn: Callable[..., tuple[torch.Tensor, ...]]
    sink: Sink | None
    control: Control = field(default_factory=Control)
    fold: Callable[[tuple[torch.Tensor, ...]], None] | None = None
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    copy_threads: int = field(default_factory=default_copy_threads)
    runtime: Callable[[torch.device], Runtime] = runtime_of
    timeline: list[Times] = field(default_factory=list)


class Slot:
    """What a chunk has while it is on its way."""

    def __init__(self, job: Job) -> None:
        rows = job.plan.chunk_rows
        self.buffers = [array.empty_chunk(rows, job.device) for array in job.inputs]
        self.pinned_in: list[Buffer | None] = [
            pinned_cache.take(rows * array.row_bytes) if array.is_staged else None
            for array in job.inputs
        ]
        self.pinned_out: list[Buffer | None] = []
        self.results: tuple[torch.Tensor, ...] = ()
        self.read = self.write = NOT_THERE
        self.loading: Event | None = None  # begin and end of each stage
        self.loaded: Event | None = None
        self.computing: Event | None = None
        self.computed: Event | None = None
        self.storing: Event | None = None
        self.stored: Event | None = None

    def times(self) -> Times:
        """Of the chunk whose stages are all done."""
        pairs = [(self.loading, self.loaded), (self.computing, self.computed)]
        pairs.append((self.storing, self.stored))
        of_streams = [e.seconds() if e is not None else math.nan for pair in pairs for e in pair]
        return (*self.read, *of_streams, *self.write)

    def give_back(self) -> None:
        """Its pinned buffers."""
        for buffer in (*self.pinned_in, *self.pinned_out):
            if buffer is not None:
                pinned_cache.give_back(buffer)
        self.pinned_in = self.pinned_out = []


class Ring:
    """One run of a job.

    Attributes:
        name: of the engine, for reports.
    """

    name = "python"

    def __init__(self, job: Job) -> None:
        self.job = job
        self.plan = job.plan
        self.runtime = job.runtime(job.device)
        self.slots: list[Slot] = []
        self.reading, self.writing = Copiers(job.copy_threads), Copiers(job.copy_threads)
        self.changed = threading.Condition()
        self.handed = 0  # chunks that were fed
        self.drained = 0  # chunks that are out
        self.fed_all = False  # none will follow
        self.read_times = NOT_THERE  # of the chunk that is fed
        self.error: BaseException | None = None
        self.failed_chunk = 0

    def run(self) -> None:
        """Does all chunks, or as many as come before a stop or an error.

        Raises:
            What `fn` or a copy raised. Streams are idle then, buffers given back.
        """
        drain = threading.Thread(target=self.guarded, args=(self.drain,), name="diglot-drain")
        try:
            with self.runtime.scope():
                for _ in range(self.plan.slots):
                    self.slots.append(Slot(self.job))
            drain.start()
            self.guarded(self.feed)
            drain.join()
        finally:
            with self.runtime.scope():
                for stream in (self.runtime.h2d, self.runtime.compute, self.runtime.d2h):
                    stream.synchronize()
            for slot in self.slots:
                slot.give_back()
            self.reading.close()
            self.writing.close()
        if self.error is not None:
            self.job.control.chunk = self.failed_chunk
            raise self.error

    def guarded(self, work: Callable[[], None]) -> None:
        """Runs one of the two threads; an error in one ends the other."""
        try:
            with self.runtime.scope():
                work()
        except BaseException as error:
            with self.changed:
                if self.error is None:
                    self.error = error
                self.changed.notify_all()

    def wait_for_drain(self, chunks: int) -> bool:
        """Waits until so many are out; False if they will not be: the run fails or is stopped."""
        with self.changed:
            while self.drained < chunks:
                if self.error is not None or self.job.control.is_stopped:
                    return False
                self.changed.wait(0.05)  # a stop tells nobody
            return True

    def wait_for_feed(self, chunks: int) -> bool:
        """Waits until so many are fed; False if they will not be."""
        with self.changed:
            while self.handed < chunks and not self.fed_all:
                self.changed.wait()
            return self.handed >= chunks

    def feed(self) -> None:
        """Enqueues chunk after chunk."""
        try:
            with self.job.scope(), torch.no_grad():
                self.feed_all()
        finally:
            with self.changed:
                self.fed_all = True
                self.changed.notify_all()

    def feed_all(self) -> None:
        """The same."""
        runtime, plan, job = self.runtime, self.plan, self.job
        for chunk in range(plan.chunks):
            if job.control.is_stopped or self.error is not None:
                break
            self.failed_chunk = job.control.chunk = chunk
            slot = self.slots[chunk % plan.slots]
            begin, end = plan.rows_of(chunk)
            parts = [buffer[: end - begin] for buffer in slot.buffers]
            sources = self.read(slot, begin, end)

            if slot.computed is not None:
                runtime.h2d.wait(slot.computed)  # of the chunk before in the slot
            loading = runtime.h2d.record()
            runtime.h2d.run(functools.partial(copy_all, parts, sources))
            loaded = runtime.h2d.record()

            # Its results, their pinned buffers and its events are free again.
            if not self.wait_for_drain(chunk - plan.slots + 1):
                break
            slot.read = self.read_times
            slot.loading, slot.loaded = loading, loaded
            runtime.compute.wait(loaded)
            slot.computing = runtime.compute.record()
            slot.results = runtime.compute.run(functools.partial(self.compute, parts))
            slot.computed = runtime.compute.record()

            self.store(slot, begin, end)
            with self.changed:
                self.handed = chunk + 1
                self.changed.notify_all()

    def read(self, slot: Slot, begin: int, end: int) -> list[torch.Tensor]:
        """Where the chunk's rows are copied from: their place, or pinned buffers, now filled."""
        self.read_times = NOT_THERE
        if any(buffer is not None for buffer in slot.pinned_in):
            if slot.loaded is not None:
                slot.loaded.synchronize()  # of the chunk before: its buffers were copied from
        began = self.runtime.now()
        sources = []
        for array, buffer in zip(self.job.inputs, slot.pinned_in, strict=True):
            first, last = self.job.first + begin, self.job.first + end
            if buffer is None:
                sources.append(array.part(first, last))
                continue
            into = view(buffer, end - begin, array)
            array.read(first, last, into, self.reading)
            sources.append(into)
            self.read_times = (began, self.runtime.now())
        return sources

    def compute(self, parts: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Calls fn; what it returns is in no slot's buffers."""
        results = self.job.fn(*parts)
        for other in self.slots:
            for taken in other.results:
                if any(same_memory(result, taken) for result in results):
                    raise ValueError(
                        "fn returned the same memory for two chunks, and the first is still being "
                        "copied: return a new tensor"
                    )
        return tuple(
            result.clone(memory_format=torch.contiguous_format)
            if any(same_memory(result, b) for slot in self.slots for b in slot.buffers)
            else result.contiguous()
            for result in results
        )

    def store(self, slot: Slot, begin: int, end: int) -> None:
        """Enqueues the copies of a chunk's results to where they go, or to pinned buffers."""
        assert slot.computed is not None
        runtime = self.runtime
        runtime.d2h.wait(slot.computed)
        if self.job.sink is None:  # they are small, and copied when they are there
            slot.storing = slot.stored = None
            return
        arrays = self.job.sink.of(slot.results)
        rows = end - begin
        if not slot.pinned_out:
            slot.pinned_out = [
                pinned_cache.take(self.plan.chunk_rows * array.row_bytes)
                if array.is_staged
                else None
                for array in arrays
            ]
        first, last = self.job.first + begin, self.job.first + end
        targets = [
            array.part(first, last) if buffer is None else view(buffer, rows, array)
            for array, buffer in zip(arrays, slot.pinned_out, strict=True)
        ]
        slot.storing = runtime.d2h.record()
        runtime.d2h.run(functools.partial(copy_all, targets, slot.results))
        slot.stored = runtime.d2h.record()

    def drain(self) -> None:
        """Takes chunk after chunk off the device."""
        plan, job = self.plan, self.job
        for chunk in range(plan.chunks):
            if not self.wait_for_feed(chunk + 1):
                break
            slot = self.slots[chunk % plan.slots]
            begin, end = plan.rows_of(chunk)
            try:
                self.take_out(slot, begin, end)
            except BaseException:
                self.failed_chunk = chunk
                raise
            job.timeline.append(slot.times())
            slot.results = ()
            job.control.valid_rows = end
            with self.changed:
                self.drained = chunk + 1
                self.changed.notify_all()

    def take_out(self, slot: Slot, begin: int, end: int) -> None:
        """The results of the chunk in a slot, to where they go."""
        job = self.job
        slot.write = NOT_THERE
        if job.fold is not None:
            assert slot.computed is not None
            slot.computed.synchronize()
            began = self.runtime.now()
            on_host = self.runtime.d2h.run(lambda: tuple(r.to("cpu") for r in slot.results))
            job.fold(on_host)
            slot.write = (began, self.runtime.now())
            return
        assert slot.stored is not None and job.sink is not None
        slot.stored.synchronize()
        began = self.runtime.now()
        for array, buffer in zip(job.sink.arrays or (), slot.pinned_out, strict=True):
            if buffer is None:
                continue
            source = view(buffer, end - begin, array)
            array.write(job.first + begin, job.first + end, source, self.writing)
            slot.write = (began, self.runtime.now())


def view(buffer: Buffer, rows: int, array: HostArray) -> torch.Tensor:
    """The beginning of a buffer, as rows of an array."""
    used = buffer.tensor[: rows * array.row_bytes]
    return used.view(array.tensor.dtype).view((rows, *array.row_shape))


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are of one allocation."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.numel() > 0


def copy_all(to: Sequence[torch.Tensor], source: Sequence[torch.Tensor]) -> None:
    """Copies tensors, without waiting where that can be."""
    for target, origin in zip(to, source, strict=True):
        target.copy_(origin, non_blocking=True)
