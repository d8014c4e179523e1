"""Partial results, folded in the order of their chunks, whichever device is faster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


class Fold:
    """The folded result so far.

    Args:
        combine: from the folded result and the next partial result to the new folded result.
        unpack: from a chunk's tensors to its partial result.
    """

    def __init__(
        self,
        combine: Callable[[Any, Any], Any],
        unpack: Callable[[tuple[torch.Tensor, ...]], Any],
    ) -> None:
        self._combine, self._unpack = combine, unpack
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Any]] = {}  # results of later shares
        self._folded: list[Any] = []  # nothing or one result
        self.chunks = 0  # that are already folded

    def take(self, share: int, results: tuple[torch.Tensor, ...]) -> None:
        """Takes the result of a share's next chunk."""
        partial = self._unpack(results)
        if share == 0:
            self._add(partial)
        else:
            with self._lock:
                self._waiting.setdefault(share, []).append(partial)

    def _add(self, partial: Any) -> None:
        folded = self._combine(self._folded[0], partial) if self._folded else partial
        parts = folded if isinstance(folded, (tuple, list)) else (folded,)
        for part in parts:
            if not isinstance(part, torch.Tensor):
                raise TypeError(f"combine must return tensors, not a {type(part).__name__}")
        self._folded = [folded]
        self.chunks += 1

    def result(self) -> Any:
        """The final result, once all shares are done."""
        for share in sorted(self._waiting):
            for partial in self._waiting.pop(share):
                self._add(partial)
        return self._folded[0]
