"""Arrays in host memory, which the pipeline reads and writes by rows, along dimension 0.

Pinned memory is copied from and to the device directly. All other memory is staged through pinned
buffers by several threads, each with its own chunk. A map of a file is read through the file. So
its pages do not fill the process's memory, and the system reads ahead. It is written through the
map, whose pages are then left to the system. (Pinning ordinary memory for the time of a call costs
more than the copy: docs/pipeline.md.)
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diglot.pipeline import pages, results

READ_AHEAD = 64 << 20
# Room on a disk. With more than this, no blocks are reserved first: only one thread at a time may.
MARGIN = 4 << 30


@dataclass(frozen=True)
class Mapping:
    """The place in a file that memory maps."""

    path: str
    offset: int  # in the file
    is_writable: bool


@dataclass(frozen=True)
class Place:
    """The place in a file of memory that may also have private pages."""

    identity: tuple[int, int]  # device and inode: a file may have several paths
    offset: int
    is_shared: bool  # whether writes reach the file


Region = tuple[int, int, list[str]]


def _begin_of(line: str) -> int:
    """The begin in a line such as "7f0c-7f0d rw-s 00001000 fe:00 123 /a/path"."""
    return int(line.partition("-")[0], 16)


class Maps:
    """The system's map of the process's memory. It is read once, which takes milliseconds.

    Args:
        lines: its lines, by addresses, instead of the system's.
    """

    def __init__(self, lines: list[str] | None = None) -> None:
        self._lines = lines

    def region_of(self, address: int) -> Region | None:
        """The region of memory around an address: begin, end, and the rest of the system's line.

        The last has permissions, offset, device, inode and perhaps a path. None outside of all
        regions.
        """
        if self._lines is None:
            try:
                # Names of files are bytes; only a line's end is escaped.
                self._lines = os.fsdecode(Path("/proc/self/maps").read_bytes()).split("\n")[:-1]
            except OSError:
                self._lines = []
        # Sorted by address, since there may be tens of thousands.
        place = bisect.bisect_right(self._lines, address, key=_begin_of)
        if place == 0:
            return None
        begin_to_end, about = self._lines[place - 1].split(" ", 1)
        begin, end = (int(number, 16) for number in begin_to_end.split("-"))
        return (begin, end, about.split(maxsplit=4)) if address < end else None


NOTHING_SAID = Maps([])  # for memory known to be ordinary


def place_in(region: Region, address: int) -> Place | None:
    """The place of an address in a file, or in memory that processes share; None if the system
    gives it no number.
    """
    begin, _, (permissions, offset, device, inode, *_) = region
    if inode == "0":
        return None
    major, minor = (int(number, 16) for number in device.split(":"))
    identity = (os.makedev(major, minor), int(inode))
    return Place(identity, int(offset, 16) + address - begin, permissions[3] == "s")


def mapping_in(region: Region, address: int, size: int) -> Mapping | None:
    """The file that memory in a region maps, if it maps one and has no private pages."""
    _, end, about = region
    place = place_in(region, address)
    if place is None or end < address + size or len(about) < 5:
        return None
    may_write = "w" in about[0]
    if not place.is_shared and may_write:  # it may have private pages
        return None
    try:
        found = Path(about[4]).stat()
    except OSError:  # it was deleted, or is no file, or its name has a line end
        return None
    if (found.st_dev, found.st_ino) != place.identity:
        return None
    return Mapping(about[4], place.offset, place.is_shared and may_write)


class HostArray:
    """A CPU tensor of rows.

    Args:
        tensor: the tensor.
        is_output: whether it is written.
        maps: the system's map of memory, if it was read.

    Attributes:
        tensor: all of it, (rows, *row_shape).
        kind: "pinned", "memory", "file", or "strided" if rows do not lie in one piece.
        row_bytes: bytes of a row.
        address: where it begins, if it lies in one piece.
        mapping: the file, of kind "file".
        is_read_only: whether the system forbids writing there.
        is_new: whether it is a large result, whose pages may be missing.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        *,
        is_output: bool = False,
        maps: Maps | None = None,
    ) -> None:
        self.tensor = tensor
        self.rows = tensor.shape[0]
        self.row_shape = tuple(tensor.shape[1:])
        self.row_bytes = math.prod(self.row_shape) * tensor.element_size()
        self.address = tensor.data_ptr()
        self.mapping: Mapping | None = None
        self.is_read_only = False
        self.file = -1
        self.is_output = is_output
        size = self.rows * self.row_bytes
        self.kind = "memory"
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            self.kind = "strided"
        elif size > 0 and tensor.is_pinned():
            self.kind = "pinned"
        self.is_new = False
        self._maps = maps or Maps()
        if size > 0 and self.kind == "memory":
            region = self._maps.region_of(self.address)
            if region is not None:
                self.is_read_only = "w" not in region[2][0]
                self.mapping = mapping_in(region, self.address, size)
            if self.mapping is not None and (self.mapping.is_writable or not is_output):
                self.kind = "file"

    @classmethod
    def new(cls, shape: Sequence[int], dtype: torch.dtype) -> HostArray:
        """A result, in memory that nothing else uses.

        Raises:
            MemoryError: the system has no memory.
        """
        array = cls(results.new_tensor(shape, dtype), is_output=True, maps=NOTHING_SAID)
        array.is_new = array.rows * array.row_bytes >= pages.LARGE
        return array

    @functools.cached_property
    def place(self) -> Place | None:
        """The place of its begin in a file, for every kind except "pinned"; None if it is in no
        file.
        """
        region = None if self.kind == "pinned" else self._maps.region_of(self.address)
        return None if region is None else place_in(region, self.address)

    @property
    def is_staged(self) -> bool:
        """Whether it goes through pinned buffers."""
        return self.kind != "pinned"

    @property
    def may_be_in_use(self) -> bool:
        """Whether a stream may still read or write what the host's threads copy."""
        return self.kind == "strided" and self.tensor.is_pinned()

    def open(self) -> None:
        """Opens the file; without effect for other kinds."""
        if self.kind == "file" and self.file < 0:
            assert self.mapping is not None
            how = os.O_RDWR if self.is_output else os.O_RDONLY
            self.file = os.open(self.mapping.path, how | os.O_CLOEXEC)

    def close(self) -> None:
        """Closes it again."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def empty_chunk(self, rows: int, device: torch.device) -> torch.Tensor:
        """A tensor of rows like these, uninitialised."""
        return torch.empty((rows, *self.row_shape), dtype=self.tensor.dtype, device=device)

    def part(self, begin: int, end: int) -> torch.Tensor:
        """Some rows, in place."""
        return self.tensor[begin:end]

    def read(self, begin: int, end: int, into: torch.Tensor) -> None:
        """Copies rows to a buffer, (end - begin, *row_shape) and contiguous."""
        first, size = begin * self.row_bytes, (end - begin) * self.row_bytes
        if self.kind == "strided":
            into.copy_(self.part(begin, end))
        elif self.kind == "file":
            assert self.mapping is not None
            at = self.mapping.offset + first
            os.posix_fadvise(self.file, at + size, READ_AHEAD, os.POSIX_FADV_WILLNEED)
            _read_file(self.file, at, into.data_ptr(), size)
        else:
            ctypes.memmove(into.data_ptr(), self.address + first, size)

    def write(self, begin: int, end: int, source: torch.Tensor) -> None:
        """Copies a buffer's rows to their place."""
        first, size = begin * self.row_bytes, (end - begin) * self.row_bytes
        if self.kind == "file" and size > 0:
            # A file takes one write at a time, but its map takes one from each thread.
            assert self.mapping is not None
            _make_room(self.file, self.mapping.offset + first, size)
            if not pages.make_ready(self.address + first, size):
                raise OSError("writing a file: the disk is full, or the file was cut short")
        to, done = self.address + first, 0
        while done < size:
            part = size - done
            if self.is_new:  # a page at a time is written while the processor's cache has it
                part = pages.piece_of_new(to + done, part)
                pages.make_new_ready(to + done, part)
            ctypes.memmove(to + done, source.data_ptr() + done, part)
            done += part
        if self.kind == "file":
            pages.leave_to_system(to, size)


def _bytes_at(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


def _read_file(file: int, offset: int, address: int, size: int) -> None:
    done = 0
    while done < size:
        count = os.preadv(file, [_bytes_at(address + done, size - done)], offset + done)
        if count == 0:
            raise OSError(f"the file ends {size - done} bytes early: it was cut short")
        done += count


def _make_room(file: int, offset: int, size: int) -> None:
    """Raises OSError if the disk has no room. A write to a map would then raise a signal."""
    room = os.fstatvfs(file)
    if room.f_bavail * room.f_frsize < size + MARGIN:
        os.posix_fallocate(file, offset, size)


def default_copy_threads() -> int:
    """Threads for each direction: half of the cores, but no more than memory's bandwidth feeds."""
    return max(1, min(8, len(os.sched_getaffinity(0)) // 2))
