"""Memory of large results, kept between calls: to touch new pages costs more than to write them.

The memory of a result returns when nothing refers to the result's storage any more. Its pages then
stay in place, but the system may take them (`MADV_FREE`) when it is short of memory.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress

import torch

from diglot.pipeline import pages
from diglot.pipeline.buffers import BufferCache

MOST_KEPT = 16 << 30
SHARE_KEPT = 8  # of the machine's memory, at most an eighth is kept


def default_limit() -> int:
    """The most bytes to keep: an eighth of the machine's memory, and no more than 16 GiB."""
    memory = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    return min(MOST_KEPT, memory // SHARE_KEPT)


class Block:
    """Memory of the process's own, in large pages if the system has them.

    Attributes:
        bytes: its size.
        memory: all of it, and room to align it.
        offset: where its first large page begins.
    """

    def __init__(self, size: int) -> None:
        self.bytes = -(-size // pages.LARGE_PAGE) * pages.LARGE_PAGE
        # A page more: Linux aligns new memory to large pages only since 6.7.
        self.memory = mmap.mmap(
            -1, self.bytes + pages.LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        with suppress(OSError):  # the system may not have them
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        address = torch.frombuffer(self.memory, dtype=torch.uint8, count=1).data_ptr()
        self.offset = -address % pages.LARGE_PAGE


class ResultCache(BufferCache[Block]):
    """Memory of freed results, kept for new ones: by default an eighth of the machine's memory, and
    at most 16 GiB.

    Attributes:
        bytes_in_use: bytes of the large results that exist now.
    """

    def __init__(self) -> None:
        super().__init__("result_cache", default_limit())

    def _make(self, size: int) -> Block:
        try:
            try:
                return Block(size)
            except OSError:
                self.clear()  # so that the system has more to give
                return Block(size)
        except OSError as error:
            raise MemoryError(f"a new result of {size} bytes: {error.strerror}") from None

    def _may_keep(self, buffer: Block) -> bool:
        try:
            buffer.memory.madvise(mmap.MADV_FREE)
        except OSError:  # pages are locked, or the system cannot do it
            return False
        return True


result_cache = ResultCache()
# A child would copy each page at the first write to it.
os.register_at_fork(after_in_child=result_cache.forget)


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor. From `pages.LARGE` bytes on, its memory begins with a large
    page, if the system has large pages.

    Raises:
        MemoryError: the system has no memory.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < pages.LARGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    block = result_cache.take(size)
    view = memoryview(block.memory)  # the storage holds this object until it dies
    weakref.finalize(view, result_cache.give_back, block).atexit = False
    new = torch.frombuffer(view, dtype=torch.uint8, count=size, offset=block.offset)
    return new.view(dtype).view(*shape)
