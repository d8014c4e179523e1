"""The choice of a product's tile, by a model of the time. Twin of `best_variant` in
csrc/ops/sm_90a/matmul.cu.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

# Relative, because mypy finds this folder under its name in the tree.
from .product_splits import TILE, TileWork
from .products import Product, tiles_of

AHEAD = 1080  # nanoseconds from the request of a step's operands until they are there
# Of a warp, where C or the input is accessed by addresses: they take registers of more sums.
MOST_SUMS = 2048
ACTIVATION = 0.14  # nanoseconds of an SM for an element
BESIDE_STEPS = 0.7  # the share of it that stays where another program's steps go on
ONES = 16  # columns of ones with which A's tiles are multiplied (lib/products/row_sums.py)
SHARED_ASIDE = 2048  # bytes of barriers, and what each block has


class Tile(NamedTuple):
    """A tile of a program, its warps, stages of its loop, programs on an SM, and the time of a
    step of one in nanoseconds.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    programs: int
    step: int

    @property
    def block(self) -> tuple[int, int, int]:
        return self.rows, self.columns, self.depth


class Epilogue(NamedTuple):
    """What a tile's end needs beside the sums.

    Attributes:
        has_descriptor: whether descriptors store C.
        has_input: whether a matrix lies beside the product.
        has_addresses: whether that matrix is read by addresses.
        has_row_sums: whether A's rows are summed too.
    """

    has_descriptor: bool
    has_input: bool
    has_addresses: bool
    has_row_sums: bool = False

    def bytes(self, elements: int, itemsize: int) -> int:
        """Shared memory of a piece: of C, of the input, and of sums that change their layout."""
        is_read = self.has_input and not self.has_addresses
        return elements * (
            itemsize * (self.has_descriptor + is_read)
            + 4 * (self.has_addresses or not self.has_descriptor)
        )


class Variant(NamedTuple):
    """A tile, whether its operands are exchanged, pieces in which it is finished, parts of K."""

    tile: Tile
    is_exchanged: bool
    pieces: int
    parts: int

    @property
    def piece(self) -> tuple[int, int]:
        """Rows and columns of a piece of C."""
        rows, columns, _ = self.tile.block
        if self.is_exchanged:
            return rows // self.pieces, columns
        return rows, columns // self.pieces

    def __str__(self) -> str:
        exchanged = ", exchanged" if self.is_exchanged else ""
        parts = f", K in {self.parts} parts" if self.parts > 1 else ""
        return f"descriptors, tiles of {self.tile.rows}x{self.tile.columns}{exchanged}{parts}"


def best_variant(product: Product, epilogue: Epilogue) -> Variant | None:
    """The tile and the parts of K that take the least time; None where no tile fits."""
    device = product.c.device
    multiprocessors = device.programs(sys.maxsize, 1)
    few = product.planned_sizes[0] <= device.tuned("products.triton.swap")
    is_exchanged = few and not product.is_tf32
    table = device.tuned_table(
        "products.triton.few_rows" if is_exchanged else "products.triton.persistent"
    )
    asked = 1 if product.is_batch_invariant else device.tuned("products.triton.split")
    found: dict[int, tuple[tuple[float, int], Variant]] = {}
    for number, tile in table.items():
        variant = _fitting(Variant(Tile(**tile), is_exchanged, 1, 1), product, epilogue)
        if variant is not None:
            work = work_of(variant.tile, product)
            parts = work.parts(asked, multiprocessors)
            cost = work.time(parts, multiprocessors), work.tiles * work.loaded
            found[number] = cost, variant._replace(parts=parts)
    number = device.tuned("products.triton.number")
    best = found[number] if number in found else min(found.values(), default=None)
    return None if best is None else best[1]


def work_of(tile: Tile, product: Product) -> TileWork:
    """What a product takes with these tiles."""
    (m, n, k), itemsize = product.planned_sizes, product.a.element_size()
    written = product.c.element_size()
    batches = 1 if product.is_batch_invariant else product.batches.numel
    loaded = (tile.rows + tile.columns) * tile.depth * itemsize
    return TileWork(
        tiles_of((m, n, k), tile.block, batches)[-1],
        -(-k // tile.depth),
        tile.step,
        AHEAD / max(tile.stages - 1, 1),
        loaded,
        ((m * k + n * k) * itemsize + m * n * written) * batches,
        4 * tile.rows * tile.columns,
        tile.programs,
        TILE + (_activation_time(tile) if product.around.activation != "none" else 0),
    )


def _activation_time(tile: Tile) -> float:
    """Nanoseconds of GELU for the tiles that an SM finishes at a time."""
    time = ACTIVATION * tile.rows * tile.columns * tile.programs
    return BESIDE_STEPS * time if tile.programs > 1 else time


def _fitting(variant: Variant, product: Product, epilogue: Epilogue) -> Variant | None:
    """The variant in pieces, with as many stages as shared memory holds; None where it has no room
    for two, or where registers lack. Programs that share an SM have none for sums of rows.
    """
    device, itemsize, tile = product.c.device, product.a.element_size(), variant.tile
    has_addresses = epilogue.has_addresses or not epilogue.has_descriptor
    if has_addresses and tile.rows * tile.columns > tile.warps * MOST_SUMS:
        return None
    if epilogue.has_row_sums and tile.programs > 1:
        return None
    pieces = max(tile.rows // 32, 1) if variant.is_exchanged else 4 if epilogue.has_input else 2
    # Tiles of either type have lines of equal bytes.
    tile = tile._replace(depth=tile.depth * 2 // itemsize)
    variant = variant._replace(tile=tile, pieces=min(pieces, 4))
    if device.is_interpreted:
        return variant
    stage = (tile.rows + tile.columns) * tile.depth * itemsize
    room = device.shared_bytes // tile.programs - SHARED_ASIDE
    room -= epilogue.bytes(math.prod(variant.piece), product.c.element_size())
    if epilogue.has_row_sums:
        room -= tile.depth * ONES * itemsize
    stages = min(tile.stages, room // stage)
    return variant._replace(tile=tile._replace(stages=stages)) if stages > 1 else None
