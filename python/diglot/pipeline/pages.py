"""Pages of host memory, made ready for writing."""

from __future__ import annotations

import ctypes
import errno
import mmap

LARGE_PAGE = 2 << 20
# From this size on, the C library too would ask the system for new memory. Smaller arrays may get
# memory that was used before, which needs no pages.
LARGE = 32 << 20
MADV_POPULATE_WRITE = 23

libc = ctypes.CDLL(None, use_errno=True)


def piece_of_new(address: int, size: int) -> int:
    """How many of some new bytes are made ready at a time: those of one large page."""
    return min(size, LARGE_PAGE - address % LARGE_PAGE)


def make_new_ready(address: int, size: int) -> None:
    """Makes pages of new memory ready.

    Linux clears a large page from both ends towards the touched byte. So the last byte is touched:
    some processors clear upwards in less than half the time (docs/pipeline.md).
    """
    ctypes.memset(address + size - 1, 0, 1)
    make_ready(address, size)  # where pages are small


def make_ready(address: int, size: int) -> bool:
    """Makes the system prepare pages for writing, all at once. One fault after the other takes
    longer, for a file several times. False if writing the pages would raise a signal.
    """
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    length = ctypes.c_size_t(address + size - begin)
    error = errno.EINTR
    while error in (errno.EINTR, errno.EAGAIN):
        failed = libc.madvise(ctypes.c_void_p(begin), length, MADV_POPULATE_WRITE)
        error = ctypes.get_errno() if failed else 0
    # Other errors: the system is older than Linux 5.14, or short of memory. Faults then do the
    # work.
    return error != errno.EFAULT


def leave_to_system(address: int, size: int) -> None:
    """Takes a file's pages out of the process's memory; the system writes them back later."""
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
