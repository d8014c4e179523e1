"""Which calls the CUDA library's own ring can make: one of diglot's ops, whose one launch is the
same for every chunk but for where the rows are and how many.

That is found by watching the op on two chunks of different sizes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from diglot.backends.registry import cuda_module
from diglot.backends.runs import LastRun, observe_runs
from diglot.pipeline.pinned import Buffer, pinned_cache
from diglot.pipeline.ring import Job, Times

CONSTANT = -1


def op_of(fn: Any) -> str | None:
    """The name of the op of diglot that `fn` is, with or without functools.partial."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    is_op = getattr(fn, "__module__", "").startswith("diglot.ops.")
    return fn.__name__ if is_op else None


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
) -> Call | None:
    """Calls `fn` on chunks: its launch; None if it does more than one launch of their rows."""
    runs: list[tuple[LastRun, tuple[Any, ...]]] = []
    thread = threading.get_ident()

    def observe(run: LastRun, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() == thread:
            runs.append((run, arguments))

    with observe_runs(observe):
        results = fn(*chunks)
    if len(runs) != 1 or runs[0][0].backend != "cuda":
        return None
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
            return None
        places.append(matching[0])
    return Call(run.launcher, arguments, results, tuple(places))


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
        buffers: of all slots, for each input and result.
    """

    def __init__(self, job: Job, call: Call, buffers: list[list[torch.Tensor]]) -> None:
        self.job, self.call, self.buffers = job, call, buffers
        self.variant = ""

    def run(self) -> list[Times]:
        """Does all chunks, or as many as come before a stop or an error; returns their times."""
        job, plan = self.job, self.job.plan
        assert job.sink is not None
        arrays = [*job.inputs, *job.sink.of(self.call.results)]
        module, reason = cuda_module()
        if module is None:
            raise RuntimeError(reason)
        taken: list[Buffer] = []
        described = []
        try:
            for number, array in enumerate(arrays):
                array.open()
                pinned: list[Buffer] = []
                if array.is_staged:
                    for _ in range(plan.slots):
                        pinned.append(pinned_cache.take(plan.chunk_rows * array.row_bytes))
                        taken.append(pinned[-1])
                is_file = array.kind == "file"
                begin = job.first * array.row_bytes
                described.append(
                    (
                        number >= len(job.inputs),
                        array.row_bytes,
                        tuple(slot[number].data_ptr() for slot in self.buffers),
                        tuple(buffer.address for buffer in pinned),
                        int(is_file),
                        array.file if is_file else array.address + begin,
                        array.mapping.offset + begin if is_file and array.mapping else 0,
                    )
                )
            self.variant, timeline = module.run_pipeline(
                self.call.launcher,
                self.call.arguments,
                self.call.places,
                tuple(described),
                plan.rows,
                plan.chunk_rows,
                plan.slots,
                -1 if job.device.type == "cpu" else job.device.index,
                job.copy_threads,
                job.control.words.data_ptr(),
            )
        finally:
            for buffer in taken:
                pinned_cache.give_back(buffer)
        return list(timeline)
