"""Threads that copy chunks between their place and pinned buffers. The CUDA library's own threads
use nothing of Python while they copy. Without the library, or with strided rows, Python's threads
do it. These compete for Python's lock at each chunk.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch

from diglot.backends.registry import cuda_module, load_interpreter
from diglot.pipeline import host
from diglot.pipeline.host import HostArray

Span = tuple[float, float]  # begin and end, by time.perf_counter


@dataclass(frozen=True)
class Piece:
    """Rows of an array, and their pinned buffer: copied to it, or from it for an output.

    Attributes:
        array: the array.
        begin, end: the rows.
        buffer: contiguous, (end - begin, *row_shape).
    """

    array: HostArray
    begin: int
    end: int
    buffer: torch.Tensor

    def copy(self) -> None:
        """Copies them."""
        copy = self.array.write if self.array.is_output else self.array.read
        copy(self.begin, self.end, self.buffer)

    def described(self) -> tuple[Any, ...]:
        """The piece in the form that the library takes."""
        array, first = self.array, self.begin * self.array.row_bytes
        return (
            array.is_output,
            array.address + first,
            (self.end - self.begin) * array.row_bytes,
            self.buffer.data_ptr(),
            array.file,
            array.mapping.offset + first if array.mapping is not None else 0,
            host.MARGIN,
            array.is_new,
        )


class Copies(Protocol):
    """Copies that a thread makes, or has made."""

    def done(self) -> bool:
        """Whether they are done."""

    def result(self) -> Span:
        """When they began and ended. Waits for them, once; raises the error of a failed copy."""


class Copier(Protocol):
    """Threads, for one run."""

    def submit(self, pieces: Sequence[Piece]) -> Copies:
        """Makes one thread copy these, in order."""

    def close(self) -> None:
        """Waits for the running copies, drops the others, and ends the threads."""


class PythonCopier:
    """Threads of Python's.

    Args:
        threads: how many.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "diglot-copy")

    def submit(self, pieces: Sequence[Piece]) -> Copies:
        """Makes one thread copy these, in order."""
        return self._threads.submit(self.copy, pieces)

    def copy(self, pieces: Sequence[Piece]) -> Span:
        """Copies them, on this thread."""
        began = time.perf_counter()
        for piece in pieces:
            piece.copy()
        return began, time.perf_counter()

    def close(self) -> None:
        """Waits for the running copies, drops the others, and ends the threads."""
        self._threads.shutdown(cancel_futures=True)


class NativeCopier:
    """Threads of the library. They do not copy rows of strided arrays.

    Args:
        threads: how many.
        module: the library.
    """

    def __init__(self, threads: int, module: ModuleType) -> None:
        self.module, self.copier = module, module.make_copier(threads)
        self.pieces: dict[int, Sequence[Piece]] = {}  # whose memory is in use, by ticket

    def submit(self, pieces: Sequence[Piece]) -> Copies:
        """Makes one thread copy these, in order."""
        described = tuple(piece.described() for piece in pieces)
        ticket = self.module.submit_copies(self.copier, described)
        self.pieces[ticket] = pieces
        return _NativeCopies(self, ticket)

    def close(self) -> None:
        """Waits for the running copies, drops the others, and ends the threads."""
        self.module.close_copier(self.copier)
        self.pieces.clear()


@dataclass(frozen=True)
class _NativeCopies:
    copier: NativeCopier
    ticket: int

    def done(self) -> bool:
        return self.copier.module.are_copied(self.copier.copier, self.ticket)

    def result(self) -> Span:
        try:
            return self.copier.module.wait_for_copies(self.copier.copier, self.ticket)
        finally:
            self.copier.pieces.pop(self.ticket, None)


@functools.cache
def library() -> ModuleType | None:
    """That which has such threads, if there is one: also the interpreter of CUDA's kernels."""
    module, _ = cuda_module()
    if module is None:
        module, _ = load_interpreter()
    return module


def copier_for(threads: int, arrays: Sequence[HostArray]) -> Copier:
    """Threads that copy rows of these arrays.

    Args:
        threads: how many.
        arrays: those that are staged.
    """
    module = library()
    if module is None or any(array.kind == "strided" for array in arrays):
        return PythonCopier(threads)
    return NativeCopier(threads, module)
