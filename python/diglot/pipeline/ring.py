"""The ring: chunks pass through slots, copied in, computed and copied out at the same time. Twin of
csrc/pipeline/ring.h, which does the same for diglot's own CUDA kernels without Python.

A slot has buffers on the device for a chunk of each input and output. One thread feeds chunks to
three streams; which slot is free again, the streams tell each other by events, so that the host is
never waited for. Host memory that is staged (host.py) passes through pinned buffers, of which there
are more than slots: other threads fill and empty them, each with a chunk of its own, ahead of the
feed and behind it. One more thread waits for results and says how far they are.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from diglot.pipeline.host import HostArray, default_copy_threads
from diglot.pipeline.pinned import Buffer, pinned_cache
from diglot.pipeline.planner import Plan
from diglot.pipeline.report import Times
from diglot.pipeline.runtime import Event, Runtime, runtime_of

NOT_THERE = (math.nan, math.nan)


class Control:
    """What a run tells while it lasts, and is told. Its words are shared with the native engine.

    Attributes:
        words: (stop, valid rows, chunk at work, 0), as a tensor of int64 in host memory.
    """

    def __init__(self) -> None:
        self.words = torch.zeros(4, dtype=torch.int64, device="cpu")
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

    def __init__(self, make: Callable[[Sequence[torch.Tensor]], Sequence[HostArray]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self.arrays: list[HostArray] | None = None

    def of(self, results: Sequence[torch.Tensor]) -> list[HostArray]:
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
        runtime: streams and events, from the device and whether who waits for an event sleeps; by
            default the device's own.
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
    runtime: Callable[[torch.device, bool], Runtime] = runtime_of
    timeline: list[Times] = field(default_factory=list)


class Passage:
    """A chunk on its way, with the begin and end of what happens to it."""

    def __init__(self, chunk: int, begin: int, end: int) -> None:
        self.chunk, self.begin, self.end = chunk, begin, end
        self.read = self.write = NOT_THERE
        self.loading: Event | None = None
        self.loaded: Event | None = None
        self.computing: Event | None = None
        self.computed: Event | None = None
        self.storing: Event | None = None
        self.stored: Event | None = None
        self.results: tuple[torch.Tensor, ...] = ()  # that are folded

    def times(self) -> Times:
        """Once all is done."""
        events = [self.loading, self.loaded, self.computing, self.computed]
        events += [self.storing, self.stored]
        of_streams = [event.seconds() if event is not None else math.nan for event in events]
        return (*self.read, *of_streams, *self.write)


class Ring:
    """One run of a job.

    Attributes:
        name: of the engine, for reports.
    """

    name = "python"

    def __init__(self, job: Job) -> None:
        self.job, self.plan = job, job.plan
        self.reads = any(array.is_staged for array in job.inputs)
        # So many pinned buffers, and chunks at most that are fed but not out.
        self.depth = self.plan.slots + job.copy_threads
        # Of each slot, on the device. Before the streams begin, which wait for what is under way in
        # the caller's: that may still use memory that is free for its next allocation.
        self.inputs = [
            [array.empty_chunk(self.plan.chunk_rows, job.device) for array in inputs]
            for inputs in [job.inputs] * self.plan.slots
        ]
        self.outputs: list[list[torch.Tensor]] = []
        self.runtime = job.runtime(job.device, self.reads)
        self.fillers = ThreadPoolExecutor(job.copy_threads, "diglot-read")
        self.emptiers = ThreadPoolExecutor(job.copy_threads, "diglot-write")
        self.pinned: list[Buffer] = []  # all that were taken
        self.pinned_in: list[list[Buffer | None]] = []
        self.pinned_out: list[list[Buffer | None]] = []
        # The last ones that were in each slot, and in each of the inputs' pinned buffers.
        self.in_slot: list[Passage | None] = [None] * self.plan.slots
        self.in_pinned: list[Passage | None] = [None] * self.depth
        self.filling: deque[tuple[Passage, Future[list[torch.Tensor]]]] = deque()
        self.fed: deque[Passage] = deque()  # and are not yet looked at
        self.finished: dict[int, Passage] = {}
        self.changed = threading.Condition()
        self.handed = 0  # chunks that were fed
        self.drained = 0  # chunks that are out, as are all before them
        self.fed_all = False  # none will follow
        self.error: BaseException | None = None
        self.failed_chunk = 0

    def run(self) -> None:
        """Does all chunks, or as many as come before a stop or an error.

        Raises:
            What `fn` or a copy raised. Streams are idle then, buffers given back.
        """
        drain = threading.Thread(target=self.guarded, args=(self.drain,), name="diglot-drain")
        try:
            drain.start()
            self.guarded(self.feed)
            drain.join()
        finally:
            for threads in (self.fillers, self.emptiers):
                threads.shutdown(cancel_futures=True)
            self.guarded(self.synchronize)
            for buffer in self.pinned:
                pinned_cache.give_back(buffer)
            self.filling.clear()
        if self.error is not None:
            self.job.control.chunk = self.failed_chunk
            try:
                raise self.error
            finally:
                # Its traceback holds all that is here, the device's memory with it: not for longer
                # than the error itself lasts.
                self.error = None

    def synchronize(self) -> None:
        """Waits until the streams are idle."""
        for stream in (self.runtime.h2d, self.runtime.compute, self.runtime.d2h):
            stream.synchronize()

    def guarded(self, work: Callable[[], None], chunk: int | None = None) -> None:
        """Does work on a thread; the first error is the one that counts, and ends the run.

        Args:
            chunk: whose work it is; by default that of the chunk that is fed.
        """
        try:
            with self.runtime.scope():
                work()
        except BaseException as error:
            with self.changed:
                if self.error is None:
                    self.error = error
                    self.failed_chunk = self.job.control.chunk if chunk is None else chunk
                self.changed.notify_all()

    def has_failed(self, chunk: int) -> bool:
        """Whether the run failed at a chunk or one before."""
        with self.changed:
            return self.error is not None and self.failed_chunk <= chunk

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
                for chunk in range(self.plan.chunks):
                    if self.job.control.is_stopped or self.error is not None:
                        break
                    self.job.control.chunk = chunk
                    if not self.feed_one(chunk):
                        break
        finally:
            with self.changed:
                self.fed_all = True
                self.changed.notify_all()

    def feed_one(self, chunk: int) -> bool:
        """Enqueues a chunk; False if the run ends before."""
        runtime, slot = self.runtime, chunk % self.plan.slots
        passage, sources = self.next_read(chunk)
        # Its pinned buffers are empty, and not too much is under way.
        if not self.wait_for_drain(chunk - self.depth + 1):
            return False
        rows = passage.end - passage.begin
        before = self.in_slot[slot]

        if before is not None and before.computed is not None:
            runtime.h2d.wait(before.computed)  # it has read the slot's inputs
        passage.loading = runtime.h2d.record()
        parts = [buffer[:rows] for buffer in self.inputs[slot]]
        runtime.h2d.copy(parts, sources)
        passage.loaded = runtime.h2d.record()

        runtime.compute.wait(passage.loaded)
        if before is not None and before.stored is not None:
            runtime.compute.wait(before.stored)  # its outputs are copied
        passage.computing = runtime.compute.record()
        results = runtime.compute.run(functools.partial(self.compute, slot, parts))
        passage.computed = runtime.compute.record()

        if self.job.sink is None:
            passage.results = results
        else:
            outputs = self.outputs_of(slot, rows)
            targets = self.targets(passage, self.job.sink.of(outputs))
            runtime.d2h.wait(passage.computed)
            passage.storing = runtime.d2h.record()
            runtime.d2h.copy(targets, outputs)
            passage.stored = runtime.d2h.record()

        self.in_slot[slot] = passage
        with self.changed:
            self.fed.append(passage)
            self.handed = chunk + 1
            self.changed.notify_all()
        return True

    def next_read(self, chunk: int) -> tuple[Passage, Sequence[torch.Tensor]]:
        """A chunk, and where its rows are copied from: their place, or pinned buffers, full."""
        if not self.reads:
            passage = Passage(chunk, *self.plan.rows_of(chunk))
            return passage, [self.rows_of(array, passage) for array in self.job.inputs]
        # As far ahead as there are buffers, into each once what was there before is copied.
        for ahead in range(chunk + len(self.filling), min(chunk + self.depth, self.plan.chunks)):
            if len(self.pinned_in) <= ahead % self.depth:
                self.pinned_in.append(self.take_pinned(self.job.inputs))
            before = self.in_pinned[ahead % self.depth]
            passage = Passage(ahead, *self.plan.rows_of(ahead))
            self.filling.append((passage, self.fillers.submit(self.fill, passage, before)))
        self.in_pinned[chunk % self.depth] = self.filling[0][0]
        try:
            return self.filling[0][0], self.filling[0][1].result()
        finally:
            self.filling.popleft()

    def fill(self, passage: Passage, before: Passage | None) -> list[torch.Tensor]:
        """Copies a chunk's rows to pinned buffers, those of the chunk before."""
        with self.runtime.scope():
            if before is not None:
                assert before.loaded is not None
                before.loaded.synchronize()
        began = self.runtime.now()
        sources = []
        for array, buffer in zip(
            self.job.inputs, self.pinned_in[passage.chunk % self.depth], strict=True
        ):
            if buffer is None:
                sources.append(self.rows_of(array, passage))
                continue
            into = view(buffer, passage.end - passage.begin, array)
            array.read(self.job.first + passage.begin, self.job.first + passage.end, into)
            sources.append(into)
        passage.read = (began, self.runtime.now())
        return sources

    def compute(self, slot: int, parts: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Calls fn. Its results are copied, to the slot's outputs or to be folded: what it does
        with its memory when it is called again, or returns of the slot's, is its business.
        """
        results = self.job.fn(*parts)
        if self.job.sink is None:
            return tuple(result.clone() for result in results)
        if not self.outputs:
            shapes = [(self.plan.chunk_rows, *result.shape[1:]) for result in results]
            self.outputs = [
                [r.new_empty(shape) for r, shape in zip(results, shapes, strict=True)]
                for _ in self.inputs
            ]
        outputs = self.outputs_of(slot, len(parts[0]))
        if len(outputs) != len(results):
            raise ValueError(f"fn returned {len(results)} tensors, and {len(outputs)} before")
        for output, result in zip(outputs, results, strict=True):
            if output.shape != result.shape or output.dtype != result.dtype:
                raise ValueError(
                    f"fn returned rows of {tuple(result.shape[1:])}, {result.dtype}, and before of "
                    f"{tuple(output.shape[1:])}, {output.dtype}"
                )
            output.copy_(result)
        return ()

    def outputs_of(self, slot: int, rows: int) -> list[torch.Tensor]:
        """Where the slot's results are, once there was one."""
        return [output[:rows] for output in self.outputs[slot]]

    def targets(self, passage: Passage, arrays: list[HostArray]) -> list[torch.Tensor]:
        """Where a chunk's results are copied to: their place, or pinned buffers."""
        if len(self.pinned_out) <= passage.chunk % self.depth:
            self.pinned_out.append(self.take_pinned(arrays))
        rows = passage.end - passage.begin
        return [
            self.rows_of(array, passage) if buffer is None else view(buffer, rows, array)
            for array, buffer in zip(
                arrays, self.pinned_out[passage.chunk % self.depth], strict=True
            )
        ]

    def drain(self) -> None:
        """Takes chunk after chunk off the device."""
        for chunk in range(self.plan.chunks):
            if not self.wait_for_feed(chunk + 1):
                break
            passage = self.fed.popleft()
            if self.has_failed(chunk):
                break
            if self.job.fold is not None:
                self.guarded(functools.partial(self.fold, passage), chunk)
                continue
            assert passage.stored is not None
            passage.stored.synchronize()
            if any(self.pinned_out[chunk % self.depth]):
                empty = functools.partial(self.empty, passage)
                self.emptiers.submit(self.guarded, empty, chunk)
            else:
                self.finish(passage)
        self.emptiers.shutdown()

    def fold(self, passage: Passage) -> None:
        """Gives a chunk's results to who folds them."""
        assert self.job.fold is not None and passage.computed is not None
        passage.computed.synchronize()
        began = self.runtime.now()
        self.job.fold(self.runtime.d2h.fetch(passage.results))
        passage.write, passage.results = (began, self.runtime.now()), ()
        self.finish(passage)

    def empty(self, passage: Passage) -> None:
        """Copies a chunk's results from pinned buffers to their place."""
        assert self.job.sink is not None and self.job.sink.arrays is not None
        began = self.runtime.now()
        for array, buffer in zip(
            self.job.sink.arrays, self.pinned_out[passage.chunk % self.depth], strict=True
        ):
            if buffer is not None:
                source = view(buffer, passage.end - passage.begin, array)
                array.write(self.job.first + passage.begin, self.job.first + passage.end, source)
        passage.write = (began, self.runtime.now())
        self.finish(passage)

    def finish(self, passage: Passage) -> None:
        """A chunk is out; how far all are is told in order."""
        with self.changed, self.runtime.scope():
            self.finished[passage.chunk] = passage
            while self.drained in self.finished:
                passage = self.finished.pop(self.drained)
                self.job.timeline.append(passage.times())
                self.job.control.valid_rows = passage.end
                self.drained += 1
            self.changed.notify_all()

    def take_pinned(self, arrays: Sequence[HostArray]) -> list[Buffer | None]:
        """Buffers for a chunk of what is staged."""
        taken: list[Buffer | None] = []
        for array in arrays:
            buffer = None
            if array.is_staged:
                buffer = pinned_cache.take(self.plan.chunk_rows * array.row_bytes)
                self.pinned.append(buffer)
            taken.append(buffer)
        return taken

    def rows_of(self, array: HostArray, passage: Passage) -> torch.Tensor:
        """A chunk's rows, where they are."""
        return array.part(self.job.first + passage.begin, self.job.first + passage.end)


def view(buffer: Buffer, rows: int, array: HostArray) -> torch.Tensor:
    """The beginning of a buffer, as rows of an array."""
    used = buffer.tensor[: rows * array.row_bytes]
    return used.view(array.tensor.dtype).view((rows, *array.row_shape))
