"""What ends a run early, and what is known of its results then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StreamError(RuntimeError):
    """A chunk failed. Its cause is what `fn`, `combine` or a copy raised.

    Attributes:
        chunk: its number, from 0 on.
        valid: ranges of rows, (begin, end), that are in `out` for good.
        rows: how many first rows of `out` are.
    """

    def __init__(self, message: str, chunk: int, valid: Sequence[tuple[int, int]]) -> None:
        super().__init__(message)
        self.chunk = chunk
        self.valid = tuple(valid)
        self.rows = prefix(self.valid)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets it whole."""
        return type(self), (str(self), self.chunk, self.valid), self.__dict__


class StreamInterrupted(KeyboardInterrupt):
    """Ctrl-C. Attributes `valid` and `rows` as of `StreamError`."""

    def __init__(self, message: str, valid: Sequence[tuple[int, int]]) -> None:
        super().__init__(message)
        self.valid = tuple(valid)
        self.rows = prefix(self.valid)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets it whole."""
        return type(self), (str(self), self.valid), self.__dict__


def prefix(valid: Sequence[tuple[int, int]]) -> int:
    """How many first rows neighbouring ranges cover."""
    rows = 0
    for begin, end in valid:
        if begin != rows:
            break
        rows = end
    return rows


def tell(valid: Sequence[tuple[int, int]]) -> str:
    """Ranges of rows in words."""
    return ", ".join(f"{a} to {b}" for a, b in valid if b > a) or "none"
