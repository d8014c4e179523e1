"""A model of a product's time, and into how many parts its K is split. Twin of
csrc/include/diglot/launch/product_splits.h, which has other constants.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

# Relative, because mypy finds this folder under its name in the tree.
from .plan import Part

COUNTERS = 1024  # at the start of scratch, of arrivals: zero before a launch, and again after it
MOST_PARTS = 16  # that the model considers
MOST_BYTES = 64 << 20  # scratch that a stream keeps

# Fitted to times of an H200: nanoseconds, and bytes in a nanosecond.
TILE = 184  # a tile's end, which no other step overlaps
FROM_CACHE = 107  # what L2 gives an SM while all SMs load
FIRST, FROM_MEMORY = 1375, 3900  # until the first bytes come; what memory gives all SMs
HIDDEN = 0.8  # the share of the shorter of loading and computing that the longer one hides
ROUND = 4584  # parts that run at once: their ends, and arrivals, until the last reads all sums
SUMS = 60  # what an SM writes or reads of sums


class TileWork(NamedTuple):
    """Tiles of C, and what they take.

    Attributes:
        tiles: how many.
        steps: along K.
        step: time of a tile's step, alone on an SM.
        ahead: time of a step in any case, until its operands are there.
        loaded: bytes of a step.
        memory: bytes of A, B and C.
        bytes: of a tile's sums.
        programs: that share an SM.
        end: time of a tile's end, which no step of its program overlaps.
        counters: that a tile needs.
    """

    tiles: int
    steps: int
    step: float
    ahead: float
    loaded: int
    memory: int
    bytes: int
    programs: int = 1
    end: float = TILE
    counters: int = 1

    def can_split(self, parts: int) -> bool:
        """Whether scratch has room for these parts."""
        return (
            parts <= self.steps
            and self.tiles * self.counters <= COUNTERS
            and self.tiles * parts * self.bytes <= MOST_BYTES
        )

    def time(self, parts: int, multiprocessors: int) -> float:
        """The time after a launch's beginning.

        The busiest SM computes its rounds of steps, while memory gives the operands. With several
        parts, sums go through memory after that.
        """
        most = multiprocessors * self.programs
        running = min(self.tiles * parts, most)
        rounds = -(-self.tiles * parts // most)
        together = -(-running // multiprocessors)
        loading = self.loaded * running / multiprocessors / FROM_CACHE
        step = max(self.step * together, self.ahead, loading)
        computing = rounds * (step * -(-self.steps // parts) + self.end)
        memory = FIRST + self.memory / FROM_MEMORY
        hidden = HIDDEN * min(computing, memory)
        ends = rounds * together  # of parts, on the busiest SM
        meeting = ends * ROUND + self.bytes * (ends + parts) / SUMS if parts > 1 else 0
        return computing + memory - hidden + meeting

    def parts(self, asked: int, multiprocessors: int) -> int:
        """The parts that the caller asked for, if there is room for them. If `asked` is 0: those
        that take the least time.
        """
        if asked > 0:
            parts = min(asked, self.steps)
            return parts if self.can_split(parts) else 1
        possible = [1, *filter(self.can_split, range(2, MOST_PARTS + 1))]
        return min(possible, key=lambda parts: self.time(parts, multiprocessors))


def scratch_of_parts(tiles: int, parts: int, elements: int) -> tuple[Part | None, Part | None]:
    """Counters, and the sums of all parts of tiles with these elements; None for one part."""
    if parts == 1:
        return None, None
    counters = Part(torch.int32, COUNTERS)
    return counters, Part(torch.float32, tiles * parts * elements).after(counters)
