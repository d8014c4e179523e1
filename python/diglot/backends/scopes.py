"""A value that something has for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

Value = TypeVar("Value")


@contextlib.contextmanager
def scoped(holder: Any, name: str, value: Value) -> Iterator[Value]:
    """Context manager: an attribute has a value, and after it what it had before."""
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield value
    finally:
        setattr(holder, name, before)
