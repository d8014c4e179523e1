"""The CUDA library's own ring.

It serves calls of diglot's ops that are one launch. Between chunks that launch may differ only in
the place and the number of the rows (launches.py).
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import torch

from diglot.backends.choosing import INVARIANT, mode
from diglot.backends.registry import cuda_module
from diglot.backends.runs import note_run
from diglot.pipeline import host
from diglot.pipeline.host import HostArray
from diglot.pipeline.job import Job
from diglot.pipeline.launches import Launch, Like, Op, Seen
from diglot.pipeline.pinned import Buffer, pinned_cache


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
        job, plan = self.job, self.job.plan
        assert job.sink is not None
        module, reason = cuda_module()
        if module is None:
            raise RuntimeError(reason)
        arrays = [*job.inputs, *job.sink.arrays_for(self.buffers[0][len(job.inputs) :])]
        taken: list[list[Buffer]] = []
        try:
            for array in arrays:
                taken.append([])
                depth = min(plan.slots + job.copy_threads, plan.chunks)
                for _ in range(depth if array.is_staged else 0):
                    taken[-1].append(pinned_cache.take(plan.chunk_rows * array.row_bytes))
            self.began = time.perf_counter()
            variant, timeline = module.run_pipeline(
                self.launch.launcher,
                (*self.launch.arguments_on(self.buffers[0]), None),  # no scratch
                self.launch.places,
                tuple(self.described(i, array, taken[i]) for i, array in enumerate(arrays)),
                plan.rows,
                plan.chunk_rows,
                plan.slots,
                -1 if job.device.type == "cpu" else job.device.index,
                job.copy_threads,
                job.control.address,
                threading.current_thread() is threading.main_thread(),
            )
            job.timeline += timeline
            note_run(self.launch.op, self.launch.launcher, "cuda", variant)
        finally:
            for buffer in itertools.chain(*taken):
                pinned_cache.give_back(buffer)

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
    rows = job.plan.chunk_rows
    buffers = [
        [array.empty_chunk(rows, job.device) for array in job.inputs] for _ in range(job.plan.slots)
    ]

    def watch() -> Seen:
        with job.scope(), torch.no_grad():
            return op.watch(buffers[0])

    like = [Like(chunk.shape, chunk.dtype) for chunk in buffers[0]]
    seen = op.look(like, job.device, watch)
    if seen.launch is None or not one.differs_in_rows_alone(seen.launch, (1, rows)):
        return None
    for slot in buffers:
        slot += [torch.empty(r.shape, dtype=r.dtype, device=job.device) for r in seen.results]
    return NativeRing(job, seen.launch, buffers)
