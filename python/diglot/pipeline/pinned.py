"""Pinned host memory, kept between calls: pinning costs more than a copy.

A buffer is anonymous memory in whole pages, registered with CUDA (cudaHostRegister). PyTorch's own
allocator would round each up to a power of two.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from contextlib import suppress

import torch

PAGES = 2 << 20  # huge ones, where the system has them
DEFAULT_LIMIT = 2 << 30
# At most this share of a request may stay unused in a kept buffer.
MOST_WASTE = 0.25


class Buffer:
    """Host memory: pinned where there is a GPU.

    Attributes:
        bytes: its size.
        tensor: all of it, as torch.uint8.
        free: gives it back; nothing may use it any more.
    """

    def __init__(self, size: int, pinned: bool) -> None:
        self.bytes = max(-(-size // PAGES), 1) * PAGES
        self._memory = mmap.mmap(-1, self.bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_DONTFORK)  # a child's copies would move the pages
        with suppress(OSError):  # the system may not have them
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.tensor = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.address = self.tensor.data_ptr()
        if pinned:
            portable = 1  # for every device
            status = torch.cuda.cudart().cudaHostRegister(self.address, self.bytes, portable)
            if int(status) != 0:
                raise RuntimeError(
                    f"pinning {self.bytes} bytes of host memory failed: CUDA error {int(status)}"
                )
        # Even after an error: otherwise CUDA would take later memory at this place for pinned.
        self.free = weakref.finalize(self, unpin, self.address, self._memory if pinned else None)


def unpin(address: int, memory: mmap.mmap | None) -> None:
    """Makes CUDA forget memory, and gives it back to the system; nothing may use it any more."""
    if memory is not None:
        torch.cuda.cudart().cudaHostUnregister(address)


class PinnedCache:
    """Pinned buffers that no run uses, kept for the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Buffer] = []  # the most recently used one is last
        self._limit = DEFAULT_LIMIT
        self._used = 0

    @property
    def bytes(self) -> int:
        """Bytes kept now, and not in use."""
        with self._lock:
            return sum(buffer.bytes for buffer in self._free)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the buffers that runs use now."""
        with self._lock:
            return self._used

    def limit(self, bytes: int) -> None:
        """Keeps at most this many bytes from now on: 2 GiB by default, 0 for none.

        Raises:
            TypeError: `bytes` is not an int.
            ValueError: `bytes` is negative.
        """
        if isinstance(bytes, bool) or not isinstance(bytes, int):
            raise TypeError(f"pinned_cache.limit: bytes must be an int, not {bytes!r}")
        if bytes < 0:
            raise ValueError(f"pinned_cache.limit: bytes must be 0 or more, not {bytes}")
        with self._lock:
            self._limit = bytes
            self._shrink()

    def clear(self) -> None:
        """Gives all kept buffers back to the system."""
        with self._lock:
            self._shrink(0)

    def take(self, size: int) -> Buffer:
        """A buffer of at least `size` bytes. The caller gives it back."""
        pinned = torch.cuda.is_available()
        with self._lock:
            fitting = [
                buffer
                for buffer in self._free
                if size <= buffer.bytes <= max(size * (1 + MOST_WASTE), size + PAGES)
            ]
            if fitting:
                best = min(fitting, key=lambda buffer: buffer.bytes)
                self._free.remove(best)
                self._used += best.bytes
                return best
        buffer = Buffer(size, pinned)
        with self._lock:
            self._used += buffer.bytes
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Takes a buffer back. Nothing may read or write it any more."""
        with self._lock:
            self._used -= buffer.bytes
            self._free.append(buffer)
            self._shrink()

    def forget(self) -> list[Buffer]:
        """Starts again without buffers, after a fork; returns the kept ones."""
        self._lock = threading.Lock()
        kept, self._free, self._used = self._free, [], 0
        return kept

    def _shrink(self, limit: int | None = None) -> None:
        most = self._limit if limit is None else limit
        while sum(buffer.bytes for buffer in self._free) > most:
            self._free.pop(0).free()


pinned_cache = PinnedCache()


def _after_fork() -> None:
    """A child process has neither its parent's pinned memory nor its use of CUDA."""
    for buffer in pinned_cache.forget():
        buffer.free.detach()


os.register_at_fork(after_in_child=_after_fork)
