"""The errors and warnings of graphs."""

from __future__ import annotations


class GraphError(RuntimeError):
    """A graph cannot be captured, or must not be replayed; the message says what to do."""


class GraphWarning(UserWarning):
    """A call runs eagerly, or a bucket has no graph; the message says why."""
