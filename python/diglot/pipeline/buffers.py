"""Memory kept between calls, because making it costs more than using it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, Protocol, TypeVar

# At most this share of a request may stay unused in a kept buffer, or one large page.
MOST_WASTE = 0.25
SPARE = 2 << 20


class Sized(Protocol):
    """A buffer with its size in bytes."""

    bytes: int


Buffer = TypeVar("Buffer", bound=Sized)


class BufferCache(Generic[Buffer]):
    """Buffers that nobody uses, kept for the next one who needs such.

    Args:
        name: the cache's name, for messages.
        limit: the most bytes to keep.

    Attributes:
        bytes_in_use: bytes of the buffers that are in use now.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name, self._limit = name, limit
        self._lock = threading.Lock()
        self._free: list[Buffer] = []  # the most recently used one is last
        self._returned: deque[Buffer] = deque()  # not yet among the free ones
        self.bytes_in_use = 0

    @property
    def bytes(self) -> int:
        """Bytes kept now, and not in use."""
        with self._lock:
            kept = sum(buffer.bytes for buffer in self._free)
        self._settle()
        return kept

    def limit(self, bytes: int) -> None:
        """Keeps at most this many bytes from now on; 0 for none.

        Raises:
            TypeError: `bytes` is not an int.
            ValueError: `bytes` is negative.
        """
        if isinstance(bytes, bool) or not isinstance(bytes, int):
            raise TypeError(f"{self._name}.limit: bytes must be an int, not {bytes!r}")
        if bytes < 0:
            raise ValueError(f"{self._name}.limit: bytes must be 0 or more, not {bytes}")
        with self._lock:
            self._limit = bytes
            self._shrink(bytes)
        self._settle()

    def clear(self) -> None:
        """Gives all kept buffers back to the system."""
        with self._lock:
            self._shrink(0)
        self._settle()

    def take(self, size: int) -> Buffer:
        """A buffer of at least `size` bytes. The caller gives it back."""
        buffer = self._find(size) or self._make(size)
        with self._lock:
            self.bytes_in_use += buffer.bytes
        self._settle()
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Takes a buffer back. Nothing may read or write it any more.

        A finalizer may call this anywhere, even while its own thread holds the lock.
        """
        self._returned.append(buffer)
        self._settle()

    def forget(self) -> list[Buffer]:
        """Starts again without free buffers, after a fork; returns those that were kept."""
        kept = self._free
        self._lock, self._free, self._returned = threading.Lock(), [], deque()
        return kept

    def _make(self, size: int) -> Buffer:
        """A new buffer."""
        raise NotImplementedError

    def _may_keep(self, buffer: Buffer) -> bool:
        """Whether a returned buffer may be kept."""
        return True

    def _drop(self, buffer: Buffer) -> None:
        """Called before the cache forgets a buffer."""

    def _find(self, size: int) -> Buffer | None:
        most = max(size * (1 + MOST_WASTE), size + SPARE)
        with self._lock:
            fitting = [buffer for buffer in self._free if size <= buffer.bytes <= most]
            best = min(fitting, key=lambda buffer: buffer.bytes, default=None)
            if best is not None:
                self._free.remove(best)
        return best

    def _settle(self) -> None:
        """Moves returned buffers to the free ones. If another caller has the lock, that one does it
        after its own work.
        """
        while self._returned and self._lock.acquire(blocking=False):
            try:
                while self._returned:
                    buffer = self._returned.popleft()
                    self.bytes_in_use -= buffer.bytes
                    if self._may_keep(buffer):
                        self._free.append(buffer)
                    else:
                        self._drop(buffer)
                self._shrink(self._limit)
            finally:
                self._lock.release()

    def _shrink(self, most: int) -> None:
        while sum(buffer.bytes for buffer in self._free) > most:
            self._drop(self._free.pop(0))
