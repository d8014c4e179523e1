"""What graphs raise, and of what they warn."""

from __future__ import annotations


class GraphError(RuntimeError):
    """A graph cannot be captured, or must not be replayed; the message says what to do."""


class GraphWarning(UserWarning):
    """A call ran otherwise than asked: eagerly, or after a new capture."""
