"""The CUDA library's own ring.

It serves calls of diglot's ops that are one launch. Between chunks that launch may differ only in
the place and the number of the rows (launches.py). The library starts CUDA's launches itself. It
has Python start Triton's, and those that need scratch.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from contextlib import nullcontext
from typing import Any

import torch

from diglot.backends.choosing import INVARIANT, mode
from diglot.backends.registry import BACKENDS, cuda_module
from diglot.backends.runs import last_run, note_run, run
from diglot.pipeline import host
from diglot.pipeline.host import HostArray
from diglot.pipeline.job import Job
from diglot.pipeline.launches import Launch, Like, Op, Seen
from diglot.pipeline.pinned import Buffer, pinned_cache
from diglot.pipeline.runtime import current_stream


@functools.cache
def can_drive(device: torch.device) -> bool:
    """Whether the library is there and works on a device. Then it can also drive Triton's launches
    there.
    """
    return BACKENDS["cuda"].refusal(device) is None


@functools.cache
def stream_at(device: torch.device, address: int) -> torch.cuda.Stream:
    """A stream of the library's, which keeps all of them, as one of PyTorch's."""
    return torch.cuda.ExternalStream(address, device)


class PythonLauncher:
    """Starts a launch in Python, with the scratch that it needs. It raises nothing: the library may
    call it on any thread.

    Args:
        launch: the launch on a whole chunk.
        buffers: for each slot, the buffers of the inputs and results.
        device: where they are.

    Attributes:
        variant: of the last launch.
        errors: the first error of each slot.
    """

    def __init__(
        self, launch: Launch, buffers: list[list[torch.Tensor]], device: torch.device
    ) -> None:
        self.launch, self.buffers, self.device = launch, buffers, device
        self.variant = ""
        self.errors: dict[int, BaseException] = {}
        self._whole = [launch.arguments_on(chunks) for chunks in buffers]

    def __call__(self, stream: int, slot: int, rows: int) -> bool:
        """Starts it in the stream at an address, on the first rows of a slot. Whether it did."""
        try:
            if self.device.type == "cuda":
                torch.cuda.set_stream(stream_at(self.device, stream))
            launch, chunks = self.launch, self.buffers[slot]
            arguments = self._whole[slot]
            if rows < len(chunks[0]):
                arguments = launch.arguments_on(chunks, rows)
            run(launch.backend, launch.op, launch.launcher, *arguments)
            self.variant = getattr(last_run(), "variant", "")
        except BaseException as error:
            self.errors.setdefault(slot, error)
            return False
        return True


class NativeRing:
    """One run of a job by the CUDA library.

    Args:
        job: the work. Its sink knows its arrays.
        launch: the launch on a whole chunk.
        buffers: for each slot, the buffers of the inputs and results.

    Attributes:
        name: of the engine, for reports.
        began: the origin of times.
    """

    name = "native"

    def __init__(self, job: Job, launch: Launch, buffers: list[list[torch.Tensor]]) -> None:
        self.job, self.launch, self.buffers = job, launch, buffers
        self.began = 0.0

    def run(self) -> None:
        """Does all chunks, or as many as come before a stop or an error."""
        job, plan, launch = self.job, self.job.plan, self.launch
        assert job.sink is not None
        module, reason = cuda_module()
        if module is None:
            raise RuntimeError(reason)
        arrays = [*job.inputs, *job.sink.arrays_for(self.buffers[0][len(job.inputs) :])]
        launcher = None
        no_scratch = None
        launching: tuple[Any, ...]
        if launch.backend == "cuda" and not self._needs_scratch():
            whole = (*launch.arguments_on(self.buffers[0]), no_scratch)
            launching = launch.launcher, whole, launch.places
        else:
            launcher = PythonLauncher(launch, self.buffers, job.device)
            launching = None, (launcher,), ()
        taken: list[list[Buffer]] = []
        try:
            for array in arrays:
                taken.append([])
                depth = min(plan.slots + job.copy_threads, plan.chunks)
                for _ in range(depth if array.is_staged else 0):
                    taken[-1].append(pinned_cache.take(plan.chunk_rows * array.row_bytes))
            with nullcontext() if launcher is None else current_stream(job.device):
                self.began = time.perf_counter()
                done = module.run_pipeline(
                    *launching,
                    tuple(self.described(i, array, taken[i]) for i, array in enumerate(arrays)),
                    plan.rows,
                    plan.chunk_rows,
                    plan.slots,
                    -1 if job.device.type == "cpu" else job.device.index,
                    job.copy_threads,
                    job.control.address,
                    threading.current_thread() is threading.main_thread(),
                )
            if launcher is not None and done is None:
                slot = job.control.chunk % plan.slots
                raise launcher.errors.get(slot) or next(iter(launcher.errors.values()))
            variant, job.timeline = done
            variant = variant if launcher is None else launcher.variant
            note_run(launch.op, launch.launcher, launch.backend, variant)
        finally:
            if launcher is not None:
                launcher.errors.clear()  # their tracebacks keep objects alive
            for buffer in itertools.chain(*taken):
                pinned_cache.give_back(buffer)

    def _needs_scratch(self) -> bool:
        """Whether the launch needs it, on a whole chunk or on the rows of the last one."""
        launch, plan = self.launch, self.job.plan
        for rows in (None, plan.rows % plan.chunk_rows or None):
            arguments = launch.arguments_on(self.buffers[0], rows)
            planned = BACKENDS[launch.backend].plan(launch.op, launch.launcher, None, arguments)
            if planned.scratch is not None:
                return True
        return False

    def described(self, number: int, array: HostArray, pinned: list[Buffer]) -> tuple[Any, ...]:
        """An array in the form that the library takes."""
        first = self.job.first * array.row_bytes
        return (
            array.is_output,
            array.row_bytes,
            tuple(slot[number].data_ptr() for slot in self.buffers),
            tuple(buffer.address for buffer in pinned),
            array.address + first,
            array.file,
            array.mapping.offset + first if array.mapping is not None else 0,
            host.MARGIN,
            array.is_new,
        )


def native_ring(job: Job, op: Op, one: Launch) -> NativeRing | None:
    """The library's ring for a job, if the op launches the same on a chunk as on a row."""
    if job.sink is None or any(array.kind == "strided" for array in job.inputs):
        return None
    if mode() == INVARIANT:  # a launch may need copies of its rows
        return None
    rows, device = job.plan.chunk_rows, job.device

    def watch() -> Seen:
        chunks = [array.empty_chunk(rows, device) for array in job.inputs]
        with job.scope(), torch.no_grad():
            return op.watch(chunks)

    like = [Like(torch.Size((rows, *a.row_shape)), a.tensor.dtype) for a in job.inputs]
    seen = op.look(like, device, watch)
    if seen.launch is None or not one.differs_in_rows_alone(seen.launch, (1, rows)):
        return None
    slots = [[each.empty(device) for each in (*like, *seen.results)] for _ in range(job.plan.slots)]
    return NativeRing(job, seen.launch, slots)
