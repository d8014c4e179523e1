"""Pinned host memory, kept between calls: pinning costs more than a copy.

A buffer is anonymous memory in whole pages, registered with CUDA (cudaHostRegister). PyTorch's own
allocator would round each up to a power of two.
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress

import torch

from diglot.pipeline.buffers import BufferCache

PAGES = 2 << 20  # huge ones, where the system has them
DEFAULT_LIMIT = 2 << 30


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


class PinnedCache(BufferCache[Buffer]):
    """Pinned buffers that no run uses, kept for the next one: by default at most 2 GiB.

    Attributes:
        bytes_in_use: bytes of the buffers that runs use now.
    """

    def __init__(self) -> None:
        super().__init__("pinned_cache", DEFAULT_LIMIT)

    def _make(self, size: int) -> Buffer:
        return Buffer(size, torch.cuda.is_available())

    def _drop(self, buffer: Buffer) -> None:
        buffer.free()


pinned_cache = PinnedCache()


def _after_fork() -> None:
    """A child process has neither its parent's pinned memory nor its use of CUDA."""
    for buffer in pinned_cache.forget():
        buffer.free.detach()
    pinned_cache.bytes_in_use = 0


os.register_at_fork(after_in_child=_after_fork)
