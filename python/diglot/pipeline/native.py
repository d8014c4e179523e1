"""Which calls the CUDA library's own ring can make: one of diglot's ops, whose one launch is the
same for every chunk but for where the rows are and how many.

That is found by watching the op on two chunks of different sizes.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from diglot import ops
from diglot.backends.registry import cuda_module
from diglot.backends.runs import LastRun, observe_runs
from diglot.pipeline import host
from diglot.pipeline.host import HostArray
from diglot.pipeline.pinned import Buffer, pinned_cache
from diglot.pipeline.ring import Job

CONSTANT = -1


def is_random(fn: Any) -> bool:
    """Whether an op draws random numbers, so that it is not the same for every chunk."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return "generator" in fn.__code__.co_varnames


def op_of(fn: Any) -> str | None:
    """The name of the op of diglot that `fn` is, with or without functools.partial."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", None)
    return name if name in ops.__all__ and getattr(ops, name) is fn else None


@dataclass(frozen=True)
class Call:
    """A launcher's call on one chunk.

    Attributes:
        launcher: its name.
        arguments: as the op gave them.
        results: what the op returned.
        places: of each tensor among the arguments, the number of the input, or of the result after
            them, that it is; or that it is a constant.
    """

    launcher: str
    arguments: tuple[Any, ...]
    results: tuple[torch.Tensor, ...]
    places: tuple[int, ...]


def watch(
    fn: Callable[..., tuple[torch.Tensor, ...]], chunks: list[torch.Tensor], constants: set[int]
) -> tuple[tuple[torch.Tensor, ...], Call | None]:
    """Calls `fn` on chunks: its results, and its launch in CUDA; None if that is not one launch of
    the chunks' rows.
    """
    runs: list[tuple[LastRun, tuple[Any, ...]]] = []
    thread = threading.get_ident()

    def observe(run: LastRun, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() == thread:
            runs.append((run, arguments))

    with observe_runs(observe):
        results = fn(*chunks)
    if len(runs) != 1 or runs[0][0].backend != "cuda":
        return results, None
    run, arguments = runs[0]
    arrays = [*chunks, *results]
    places = []
    for argument in arguments:
        if not isinstance(argument, torch.Tensor):
            continue
        if id(argument) in constants:
            places.append(CONSTANT)
            continue
        matching = [i for i, array in enumerate(arrays) if is_all_of(argument, array)]
        if not matching:
            return results, None
        places.append(matching[0])
    return results, Call(run.launcher, arguments, results, tuple(places))


def is_all_of(argument: torch.Tensor, array: torch.Tensor) -> bool:
    """Whether an argument is a whole chunk, as it lies in memory, of whatever shape."""
    return (
        argument.data_ptr() == array.data_ptr()
        and argument.numel() == array.numel()
        and argument.dtype == array.dtype
        and argument.is_contiguous()
        and array.is_contiguous()
    )


def differ_in_rows_alone(a: Call, b: Call, rows: tuple[int, int]) -> bool:
    """Whether two calls, on so many rows, are the same but for the rows."""
    if a.launcher != b.launcher or a.places != b.places:
        return False
    if len(a.arguments) != len(b.arguments):
        return False
    places = iter(a.places)
    for of_a, of_b in zip(a.arguments, b.arguments, strict=True):
        if not isinstance(of_a, torch.Tensor):
            if type(of_a) is not type(of_b) or of_a != of_b:
                return False
            continue
        if next(places) == CONSTANT:
            continue
        if of_a.dim() != of_b.dim() or of_a.dim() == 0 or of_a.shape[1:] != of_b.shape[1:]:
            return False
        if of_a.shape[0] * rows[1] != of_b.shape[0] * rows[0]:
            return False
    return True


def tensors_given(fn: Any) -> set[int]:
    """Of the tensors that functools.partial holds, the identities."""
    found: set[int] = set()
    while isinstance(fn, functools.partial):
        values = (*fn.args, *fn.keywords.values())
        found.update(id(value) for value in values if isinstance(value, torch.Tensor))
        fn = fn.func
    return found


class NativeRing:
    """One run of a job by the CUDA library.

    Args:
        job: what is to be done. Its sink knows its arrays.
        call: the launch for a whole chunk, on the first slot's buffers.
        buffers: for each slot, those of the inputs and results.

    Attributes:
        name: of the engine, for reports.
        began: what times count from.
    """

    name = "native"

    def __init__(self, job: Job, call: Call, buffers: list[list[torch.Tensor]]) -> None:
        self.job, self.call, self.buffers = job, call, buffers
        self.began = 0.0

    def run(self) -> None:
        """Does all chunks, or as many as come before a stop or an error."""
        job, plan = self.job, self.job.plan
        assert job.sink is not None
        module, reason = cuda_module()
        if module is None:
            raise RuntimeError(reason)
        arrays = [*job.inputs, *job.sink.of(self.call.results)]
        taken: list[list[Buffer]] = []
        try:
            for array in arrays:
                taken.append([])
                depth = min(plan.slots + job.copy_threads, plan.chunks)
                for _ in range(depth if array.is_staged else 0):
                    taken[-1].append(pinned_cache.take(plan.chunk_rows * array.row_bytes))
            self.began = time.perf_counter()
            _, timeline = module.run_pipeline(
                self.call.launcher,
                self.call.arguments,
                self.call.places,
                tuple(self.described(i, array, taken[i]) for i, array in enumerate(arrays)),
                plan.rows,
                plan.chunk_rows,
                plan.slots,
                -1 if job.device.type == "cpu" else job.device.index,
                job.copy_threads,
                job.control.words.data_ptr(),
            )
            job.timeline += timeline
        finally:
            for buffer in itertools.chain(*taken):
                pinned_cache.give_back(buffer)

    def described(self, number: int, array: HostArray, pinned: list[Buffer]) -> tuple[Any, ...]:
        """An array as the library is told of it."""
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
        )


def native_ring(job: Job, one: Call, constants: set[int]) -> NativeRing | None:
    """The library's ring for a job, if fn does the launch on a chunk that it does on a row."""
    if job.sink is None or any(array.kind == "strided" for array in job.inputs):
        return None
    rows = job.plan.chunk_rows
    buffers = [
        [array.empty_chunk(rows, job.device) for array in job.inputs] for _ in range(job.plan.slots)
    ]
    with job.scope(), torch.no_grad():
        _, call = watch(job.fn, buffers[0], constants)
    if call is None or not differ_in_rows_alone(one, call, (1, rows)):
        return None
    for slot in buffers:
        slot += call.results if slot is buffers[0] else [torch.empty_like(r) for r in call.results]
    return NativeRing(job, call, buffers)
