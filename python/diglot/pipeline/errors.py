"""Errors that end a run early, with the results that are valid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StreamError(RuntimeError):
    """A chunk failed. Its cause is the error of `fn`, `combine` or a copy.

    Attributes:
        chunk: its number, from 0.
        valid: ranges of rows, (begin, end), that are valid in `out`.
        rows: how many first rows of `out` are valid.
    """

    def __init__(self, message: str, chunk: int, valid: Sequence[tuple[int, int]]) -> None:
        super().__init__(message)
        self.chunk = chunk
        self.valid = tuple(valid)
        self.rows = prefix(self.valid)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps the attributes when the error is pickled."""
        return type(self), (str(self), self.chunk, self.valid), self.__dict__


class StreamInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a run. Its attributes `valid` and `rows` are those of `StreamError`."""

    def __init__(self, message: str, valid: Sequence[tuple[int, int]]) -> None:
        super().__init__(message)
        self.valid = tuple(valid)
        self.rows = prefix(self.valid)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps the attributes when the error is pickled."""
        return type(self), (str(self), self.valid), self.__dict__


def prefix(valid: Sequence[tuple[int, int]]) -> int:
    """How many rows from the first on neighbouring ranges cover."""
    rows = 0
    for begin, end in valid:
        if begin != rows:
            break
        rows = end
    return rows


def tell(valid: Sequence[tuple[int, int]]) -> str:
    """Ranges of rows in words."""
    return ", ".join(f"{a} to {b}" for a, b in valid if b > a) or "none"
