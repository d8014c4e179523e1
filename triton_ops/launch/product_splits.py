"""Into how many parts a product's K is split: a model of its time, and the choice. Twin of
csrc/include/diglot/launch/product_splits.h.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch

# Relative, because mypy finds this folder under its name in the tree.
from .plan import Part
from .products import Product

COUNTERS = 1024  # at the start of scratch, of arrivals: zero before a launch, and again after it

# Estimates: nobody has measured them.
ROUND = 512  # a part's beginning and end, where no others overlap them
MEETING = 512  # arrivals, until the last has read what others left
SPEED = 128  # bytes of sums that an SM writes or reads in a unit of time
MOST_PARTS = 16  # that the model considers
MOST_BYTES = 64 << 20  # scratch that a stream keeps

# The unit of time is what a step of 64 along K takes for a column of 128 rows, at full speed: 3 ns
# of an H200. A tile's rows and columns take this time each to be loaded.
LOAD = 0.6


class TileWork(NamedTuple):
    """Tiles of C, and what one takes.

    Attributes:
        tiles: how many.
        steps: along K.
        step: time of a step of a tile.
        bytes: of a tile's sums.
        counters: that a tile needs.
    """

    tiles: int
    steps: int
    step: float
    bytes: int
    counters: int = 1

    def can_split(self, parts: int) -> bool:
        """Whether scratch has room for these parts."""
        return (
            parts <= self.steps
            and self.tiles * self.counters <= COUNTERS
            and self.tiles * parts * self.bytes <= MOST_BYTES
        )

    def time(self, parts: int, multiprocessors: int) -> float:
        """Rounds of tiles, times their steps; with several parts, also what the sums' way through
        memory takes.
        """
        rounds = -(-self.tiles * parts // multiprocessors)
        sums = rounds * self.step * -(-self.steps // parts)
        if parts == 1:
            return sums
        return sums + rounds * ROUND + MEETING + self.bytes * (rounds + parts) / SPEED

    def parts(self, asked: int, multiprocessors: int) -> int:
        """The parts that the caller asked for, if there is room for them. If `asked` is 0: those
        that take the least time.
        """
        if asked > 0:
            parts = min(asked, self.steps)
            return parts if self.can_split(parts) else 1
        best = 1
        for parts in range(2, MOST_PARTS + 1):
            if not self.can_split(parts):
                break
            if self.time(parts, multiprocessors) < self.time(best, multiprocessors):
                best = parts
        return best


def split_of(
    product: Product, block: tuple[int, int, int], tiles: int
) -> tuple[int, Part | None, Part | None]:
    """Parts of K, and scratch: counters and sums, which are None for one part.

    Args:
        product: the product.
        block: rows, columns and depth of a tile.
        tiles: how many.
    """
    device, (rows, columns, depth) = product.c.device, block
    step = max(rows * columns / 128, LOAD * (rows + columns)) * depth / 64
    work = TileWork(tiles, -(-product.sizes[2] // depth), step, 4 * rows * columns)
    asked = 1 if product.is_batch_invariant else device.tuned("products.triton.split")
    parts = work.parts(asked, device.programs(sys.maxsize, 1))
    if parts == 1:
        return 1, None, None
    counters = Part(torch.int32, COUNTERS)
    return parts, counters, Part(torch.float32, tiles * parts * rows * columns).after(counters)
