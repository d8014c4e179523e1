"""A temporary value of an attribute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

Value = TypeVar("Value")


@contextlib.contextmanager
def scoped(holder: Any, name: str, value: Value) -> Iterator[Value]:
    """Context manager: gives an attribute a value, and restores the old value at the end."""
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield value
    finally:
        setattr(holder, name, before)
