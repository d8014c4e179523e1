"""The work of a ring: a job, where its results go, and how it is stopped."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from diglot.pipeline.copier import Copier, copier_for
from diglot.pipeline.host import HostArray, default_copy_threads
from diglot.pipeline.launches import Like
from diglot.pipeline.planner import Plan
from diglot.pipeline.report import Times
from diglot.pipeline.runtime import Runtime, runtime_of

Result = torch.Tensor | Like


class Control:
    """A run's state and its order to stop. The native engine shares the memory.

    Attributes:
        address: of four int64 in host memory: (stop, valid rows, chunk at work, 0).
    """

    def __init__(self) -> None:
        self._words = (ctypes.c_int64 * 4)()
        self.address = ctypes.addressof(self._words)

    @property
    def is_stopped(self) -> bool:
        """Whether the run is to end early."""
        return bool(self._words[0])

    def stop(self) -> None:
        """Ends the run as soon as the chunks under way are done."""
        self._words[0] = 1

    @property
    def valid_rows(self) -> int:
        """How many rows are done, from the run's first on."""
        return self._words[1]

    @valid_rows.setter
    def valid_rows(self, rows: int) -> None:
        self._words[1] = rows

    @property
    def chunk(self) -> int:
        """The chunk that is fed, or at which the run failed."""
        return self._words[2]

    @chunk.setter
    def chunk(self, chunk: int) -> None:
        self._words[2] = chunk


class Sink:
    """Where results go: to arrays in host memory, made from the first result.

    Args:
        make: makes the arrays from the first result, which is one tensor or several.
    """

    def __init__(self, make: Callable[[Sequence[Result]], Sequence[HostArray]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self.arrays: list[HostArray] | None = None

    def arrays_for(self, results: Sequence[Result]) -> list[HostArray]:
        """The arrays; several devices may call this at once."""
        with self._lock:
            if self.arrays is None:
                self.arrays = list(self._make(results))
                for array in self.arrays:
                    array.open()
            # Results of another device, or of smaller chunks, may differ.
            for array, result in zip(self.arrays, results, strict=True):
                if (array.row_shape, array.tensor.dtype) != (result.shape[1:], result.dtype):
                    raise ValueError(
                        f"fn returned rows of {tuple(result.shape[1:])}, {result.dtype}, and "
                        f"before of {array.row_shape}, {array.tensor.dtype}"
                    )
            return self.arrays

    def close(self) -> None:
        """Closes the files among them."""
        for array in self.arrays or ():
            array.close()


@dataclass
class Job:
    """The work of one device.

    Attributes:
        device: the device.
        plan: its rows and how they are cut.
        first: the row of the arrays with which it begins.
        inputs: the arrays to read.
        fn: makes a chunk's results from the chunks of the inputs, on the device.
        sink: where results go; None if `fold` takes them.
        fold: takes each chunk's results on the CPU, in order.
        control: the run's state and its order to stop.
        scope: makes the context in which a thread calls `fn`.
        copy_threads: for each direction.
        copier: makes the copier of one direction, from the number of threads and the arrays.
        shares_compute: whether all slots call `fn` in one stream: it may reuse its own memory in
            each call.
        runtime: makes streams and events from the device, the number of slots, `shares_compute`
            and whether no other thread needs the cores; by default the device's own.
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
    copier: Callable[[int, Sequence[HostArray]], Copier] = copier_for
    shares_compute: bool = True
    runtime: Callable[[torch.device, int, bool, bool], Runtime] = runtime_of
    timeline: list[Times] = field(default_factory=list)

    @property
    def writes_in_place(self) -> bool:
        """Whether it is known that no threads need to copy the results."""
        arrays = None if self.sink is None else self.sink.arrays
        return arrays is not None and not any(array.is_staged for array in arrays)
