"""The ring: chunks pass through slots, copied in, computed and copied out at the same time. Twin of
csrc/pipeline/ring.h, which does the same for diglot's own CUDA kernels without Python.

A slot has buffers on the device for a chunk of each input and output. One stream copies all chunks
in, another one copies them out: two copies in one direction at once would take the bus from those
in the other. Host memory that is staged (host.py) passes through pinned buffers, and there are more
of these than slots. Threads fill them ahead of the ring and empty them behind it, each with its own
chunk.
"""

from __future__ import annotations

import functools
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import torch

from diglot.pipeline.copier import Copier, Copies, Piece, Span
from diglot.pipeline.host import HostArray
from diglot.pipeline.job import Job
from diglot.pipeline.pinned import Buffer, pinned_cache
from diglot.pipeline.report import Times
from diglot.pipeline.runtime import Event, Runtime

NOT_THERE = (math.nan, math.nan)


class Passage:
    """A chunk on its way, with the begin and end of its stages."""

    def __init__(self, chunk: int, begin: int, end: int) -> None:
        self.chunk, self.begin, self.end = chunk, begin, end
        self.read = self.write = NOT_THERE
        self.loading: Event | None = None
        self.loaded: Event | None = None
        self.computing: Event | None = None
        self.computed: Event | None = None
        self.storing: Event | None = None
        self.stored: Event | None = None
        self.results: tuple[torch.Tensor, ...] = ()  # until they are copied

    @property
    def last(self) -> Event:
        """The event after which its results are on the host, or, if they are folded, computed."""
        event = self.stored or self.computed
        assert event is not None
        return event

    def times(self, runtime: Runtime) -> Times:
        """The times, once all is done; NaN for stages that are missing or not timed."""

        def span(begin: Event | None, end: Event | None) -> Span:
            if begin is None or end is None:
                return NOT_THERE
            return runtime.seconds(begin), runtime.seconds(end)

        h2d, compute = span(self.loading, self.loaded), span(self.computing, self.computed)
        return (*self.read, *h2d, *compute, *span(self.storing, self.stored), *self.write)


class Ring:
    """One run of a job.

    Attributes:
        name: of the engine, for reports.
    """

    name = "python"

    def __init__(self, job: Job) -> None:
        self.job, self.plan = job, job.plan
        # Buffers of each slot on the device. They are allocated before the streams begin, which
        # wait for the caller's stream: work there may still use memory that is already free.
        self.inputs = [
            [array.empty_chunk(self.plan.chunk_rows, job.device) for array in inputs]
            for inputs in [job.inputs] * self.plan.slots
        ]
        self.outputs: list[list[torch.Tensor]] = []
        self.last: list[Event | None] = [None] * self.plan.slots  # frees outputs
        self.reads = any(array.is_staged for array in job.inputs)
        self.runtime = job.runtime(
            job.device, self.plan.slots, job.shares_compute, not self.reads and job.writes_in_place
        )
        self.began = self.runtime.began
        # How many pinned buffers there are: the most chunks that are fed but not out.
        self.depth = self.plan.slots + job.copy_threads
        self.copiers: dict[str, Copier] = {}  # by direction, those that are needed
        self.process = os.getpid()
        # Steps at the end, in reverse order; an error in one stops none of the others. Copiers are
        # added later, so they are closed first.
        self.ends = ExitStack()
        self.ends.callback(self.give_back)
        self.ends.callback(self.runtime.close)
        self.pinned: list[Buffer] = []  # all buffers taken from the cache
        self.pinned_in: list[list[Buffer | None]] = []
        self.pinned_out: list[list[Buffer | None]] = []
        self.in_pinned: list[Passage | None] = [None] * self.depth  # the last chunk in each
        self.filling: deque[tuple[Passage, Copies]] = deque()
        self.fed: deque[Passage] = deque()
        self.emptying: deque[tuple[Passage, Copies]] = deque()

    def run(self) -> None:
        """Does all chunks, or as many as come before a stop or an error.

        Raises:
            The error of `fn` or of a copy. Streams are idle then, and buffers given back.
        """
        control = self.job.control
        with self.ends, self.runtime.scope(), self.job.scope(), torch.no_grad():
            try:
                for chunk in range(self.plan.chunks):
                    if control.is_stopped:
                        break
                    control.chunk = chunk
                    self.feed(chunk)
            except BaseException:
                failed = control.chunk
                # The chunks fed before the failed one are good, except in the child of a fork.
                is_here = os.getpid() == self.process
                if is_here and control.valid_rows < self.plan.rows_of(failed)[0]:
                    with suppress(Exception):
                        self.drain(failed)
                control.chunk = failed
                raise
            self.drain(self.plan.chunks)

    def give_back(self) -> None:
        """Leaves the buffers to other runs."""
        for buffer in self.pinned:
            pinned_cache.give_back(buffer)
        self.filling.clear()
        self.emptying.clear()

    def feed(self, chunk: int) -> None:
        """Enqueues a chunk."""
        passage, sources = self.next_read(chunk)
        # Frees pinned buffers for it. If results are folded, no more of them than slots may be on
        # the device.
        ahead = self.depth if self.job.fold is None else self.plan.slots
        self.drain(chunk - ahead + 1)
        slot, rows = chunk % self.plan.slots, passage.end - passage.begin
        is_timed = self.plan.is_timed(chunk)
        loading, storing = self.runtime.loading, self.runtime.storing
        computing = self.runtime.computing[slot]

        before = self.last[slot]
        if before is not None:
            loading.wait(before)
        passage.loading = loading.record(True) if is_timed else None
        parts = [buffer[:rows] for buffer in self.inputs[slot]]
        loading.copy(parts, sources)
        passage.loaded = loading.record(is_timed)

        computing.wait(passage.loaded)
        passage.computing = computing.record(True) if is_timed else None
        passage.results = computing.run(functools.partial(self.compute, slot, parts))
        passage.computed = computing.record(is_timed)

        if self.job.sink is not None:
            outputs = passage.results or self.outputs_of(slot, rows)
            targets = self.targets(passage, self.job.sink.arrays_for(outputs))
            storing.wait(passage.computed)
            passage.storing = storing.record(True) if is_timed else None
            storing.copy(targets, outputs)
            passage.stored = storing.record(is_timed)
            passage.results = ()
        self.last[slot] = passage.last
        self.fed.append(passage)

    def next_read(self, chunk: int) -> tuple[Passage, Sequence[torch.Tensor]]:
        """A chunk, and the source of its rows: their place, or filled pinned buffers."""
        if not self.reads:
            passage = Passage(chunk, *self.plan.rows_of(chunk))
            return passage, [self.rows_of(array, passage) for array in self.job.inputs]
        # As far ahead as there are free buffers.
        for ahead in range(chunk + len(self.filling), min(chunk + self.depth, self.plan.chunks)):
            before = self.in_pinned[ahead % self.depth]
            if before is not None and not self.is_loaded(before, waits=not self.filling):
                break
            if before is None:
                self.pinned_in.append(self.take_pinned(self.job.inputs))
            self.fill(Passage(ahead, *self.plan.rows_of(ahead)))
        passage = self.in_pinned[chunk % self.depth] = self.filling[0][0]
        passage.read = self.span_of_first(self.filling)
        return passage, self.parts_of(passage, self.job.inputs, self.pinned_in)

    def is_loaded(self, passage: Passage, waits: bool) -> bool:
        """Whether a chunk's pinned buffers are copied to the device; if it waits, they are."""
        assert passage.loaded is not None
        if waits:
            passage.loaded.synchronize()
        return waits or passage.loaded.query()

    def fill(self, passage: Passage) -> None:
        """Makes a thread copy a chunk's rows to its pinned buffers."""
        copier = self.copier("read", self.job.inputs)
        pieces = self.pieces_of(passage, self.job.inputs, self.pinned_in)
        self.filling.append((passage, copier.submit(pieces)))

    def compute(self, slot: int, parts: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Calls fn. Returns its results, in memory that may be copied later.

        If all slots share a stream, the results are copied, to the slot's outputs or for the fold.
        So fn may reuse its memory in the next call, or return the slot's. If not, the next user of
        the results' memory runs in the slot's stream. By then that stream has waited for the copy,
        since its next chunk is loaded after it.
        """
        results = self.job.fn(*parts)
        if self.job.sink is None:
            return tuple(result.clone() for result in results)
        if not self.job.shares_compute:
            return tuple(result.contiguous() for result in results)
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

    def outputs_of(self, slot: int, rows: int) -> tuple[torch.Tensor, ...]:
        """The slot's buffers for results, once the first result is known."""
        return tuple(output[:rows] for output in self.outputs[slot])

    def targets(self, passage: Passage, arrays: list[HostArray]) -> list[torch.Tensor]:
        """Where a chunk's results are copied to: their place, or pinned buffers."""
        if len(self.pinned_out) <= passage.chunk % self.depth:
            self.pinned_out.append(self.take_pinned(arrays))
        return self.parts_of(passage, arrays, self.pinned_out)

    def drain(self, chunks: int) -> None:
        """Takes finished results off the device, and waits until `chunks` chunks are out."""
        while self.fed and (self.fed[0].chunk < chunks or self.fed[0].last.query()):
            passage = self.fed.popleft()
            passage.last.synchronize()
            if self.job.fold is not None:
                with self.blamed(passage):
                    self.fold(passage)
            elif any(self.pinned_out[passage.chunk % self.depth]):
                self.empty(passage)
            else:
                self.finish(passage)
        while self.emptying and (self.emptying[0][0].chunk < chunks or self.emptying[0][1].done()):
            passage = self.emptying[0][0]
            with self.blamed(passage):
                passage.write = self.span_of_first(self.emptying)
            self.finish(passage)

    @contextmanager
    def blamed(self, passage: Passage) -> Iterator[None]:
        """Context manager: an error in it is of this chunk."""
        try:
            yield
        except BaseException:
            self.job.control.chunk = passage.chunk
            raise

    def fold(self, passage: Passage) -> None:
        """Gives a chunk's results to the fold."""
        assert self.job.fold is not None
        began = self.runtime.now()
        self.job.fold(self.runtime.storing.fetch(passage.results))
        passage.write, passage.results = (began, self.runtime.now()), ()
        self.finish(passage)

    def empty(self, passage: Passage) -> None:
        """Makes a thread copy a chunk's results from pinned buffers to their place."""
        assert self.job.sink is not None and self.job.sink.arrays is not None
        arrays = self.job.sink.arrays
        pieces = self.pieces_of(passage, arrays, self.pinned_out)
        self.emptying.append((passage, self.copier("write", arrays).submit(pieces)))

    def finish(self, passage: Passage) -> None:
        """Notes that a chunk is out; all before it are out too."""
        self.job.timeline.append(passage.times(self.runtime))
        self.job.control.valid_rows = passage.end

    def take_pinned(self, arrays: Sequence[HostArray]) -> list[Buffer | None]:
        """Buffers for a chunk of the staged arrays."""
        taken: list[Buffer | None] = []
        for array in arrays:
            buffer = None
            if array.is_staged:
                buffer = pinned_cache.take(self.plan.chunk_rows * array.row_bytes)
                self.pinned.append(buffer)
            taken.append(buffer)
        return taken

    def parts_of(
        self, passage: Passage, arrays: Sequence[HostArray], pinned: list[list[Buffer | None]]
    ) -> list[torch.Tensor]:
        """A chunk's rows of each array: in their place, or in its pinned buffer."""
        rows = passage.end - passage.begin
        buffers = pinned[passage.chunk % self.depth]
        return [
            self.rows_of(array, passage) if buffer is None else view(buffer, rows, array)
            for array, buffer in zip(arrays, buffers, strict=True)
        ]

    def pieces_of(
        self, passage: Passage, arrays: Sequence[HostArray], pinned: list[list[Buffer | None]]
    ) -> list[Piece]:
        """The copies between a chunk's rows and its pinned buffers."""
        begin, end = self.job.first + passage.begin, self.job.first + passage.end
        buffers = pinned[passage.chunk % self.depth]
        return [
            Piece(array, begin, end, view(buffer, end - begin, array))
            for array, buffer in zip(arrays, buffers, strict=True)
            if buffer is not None
        ]

    def copier(self, direction: str, arrays: Sequence[HostArray]) -> Copier:
        """The threads of a direction, started at their first use."""
        if direction not in self.copiers:
            staged = [array for array in arrays if array.is_staged]
            threads = min(self.job.copy_threads, self.plan.chunks)
            self.copiers[direction] = copier = self.job.copier(threads, staged)
            self.ends.callback(copier.close)
        return self.copiers[direction]

    def span_of_first(self, queue: deque[tuple[Passage, Copies]]) -> Span:
        """Waits for the first copies of a queue, and removes them. Returns when they were made,
        since the run began.

        No variable here may keep an error, whose traceback keeps all variables alive.
        """
        try:
            began, ended = queue[0][1].result()
        finally:
            queue.popleft()
        return began - self.began, ended - self.began

    def rows_of(self, array: HostArray, passage: Passage) -> torch.Tensor:
        """A chunk's rows, in place."""
        return array.part(self.job.first + passage.begin, self.job.first + passage.end)


def view(buffer: Buffer, rows: int, array: HostArray) -> torch.Tensor:
    """The beginning of a buffer, as rows of an array."""
    used = buffer.tensor[: rows * array.row_bytes]
    return used.view(array.tensor.dtype).view((rows, *array.row_shape))
