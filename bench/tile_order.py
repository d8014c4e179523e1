"""What the order of a product's tiles asks of DRAM: a model of L2, and a picture of 9 x 9 tiles.

The order is that of products/schedule, in both languages. The model: blocks run in rounds, each
computes a tile, and all step along K together. L2 keeps the latest tiles, as many as fit by the
GPU's data sheet. Tiles of A and B pass through it; stores of C do not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from diglot.bench.ladder import ELEMENT_BYTES, PREDICTED, SHAPES
from diglot.bench.markdown import table
from diglot.tools import drawing
from diglot.tools.drawing import Picture
from diglot.tools.gpus import find_gpu

Place = tuple[int, int]  # row and column of tiles
TILE, DEPTH = (128, 256), 64
GROUPS = (1, 2, 4, 8, 16, 32)
DRAWN = 9  # tiles along each side of the picture, and how many are computed
DRAWN_GROUP = 3


def tile_of(index: int, rows: int, columns: int, group: int) -> Place:
    """The place of a tile, as products/schedule has it: down the columns of a group of rows."""
    first = index // (group * columns) * group
    height = min(rows - first, group)  # the last group may have fewer rows
    place = index % (group * columns)
    return first + place % height, place // height


def order(rows: int, columns: int, group: int) -> list[Place]:
    """The places of all tiles."""
    return [tile_of(index, rows, columns, group) for index in range(rows * columns)]


def loads(tiles: Sequence[Place], along_k: int) -> int:
    """Tiles of A and B that some tiles of C need, each once."""
    rows, columns = ({tile[axis] for tile in tiles} for axis in (0, 1))
    return (len(rows) + len(columns)) * along_k


class Cache:
    """Keeps the latest entries, of `capacity` bytes in all."""

    def __init__(self, capacity: float) -> None:
        self.free = capacity
        self.kept: OrderedDict[Any, int] = OrderedDict()
        self.missed = 0

    def touch(self, key: Any, size: int) -> None:
        """Uses something, and counts its bytes if they were not there."""
        if key in self.kept:
            self.kept.move_to_end(key)
            return
        self.missed += size
        self.kept[key] = size
        self.free -= size
        while self.free < 0:
            self.free += self.kept.popitem(last=False)[1]


def dram_bytes(shape: Sequence[int], group: int, blocks: int, capacity: float) -> int:
    """Bytes of A and B that L2 asks DRAM for."""
    m, n, k = shape
    height, width = TILE
    tiles = order(-(-m // height), -(-n // width), group)
    cache = Cache(capacity)
    for begin in range(0, len(tiles), blocks):
        rows, columns = (
            sorted({t[axis] for t in tiles[begin : begin + blocks]}) for axis in (0, 1)
        )
        for step in range(-(-k // DEPTH)):
            for row in rows:
                cache.touch(("A", row, step), ELEMENT_BYTES * height * DEPTH)
            for column in columns:
                cache.touch(("B", step, column), ELEMENT_BYTES * width * DEPTH)
    return cache.missed


def markdown() -> str:
    """A table of groups: what each asks of DRAM, and which share L2 serves."""
    gpu = find_gpu(PREDICTED)
    assert gpu is not None
    capacity = gpu.l2_mb * 2**20
    header, body = ["rows of tiles in a group"], [[f"{group}"] for group in GROUPS]
    for m, n, k in SHAPES:
        header += [f"{m}³: GB of DRAM", "L2 serves"]
        height, width = TILE
        asked = ELEMENT_BYTES * (m // height) * (n // width) * (height + width) * k
        for line, group in zip(body, GROUPS, strict=True):
            missed = dram_bytes((m, n, k), group, gpu.multiprocessors, capacity)
            line += [f"{missed / 1e9:.2f}", f"{1 - missed / asked:.1%}"]
    said = (f"A model, not a measurement: {gpu.multiprocessors} blocks, tiles of {TILE[0]} x "
            f"{TILE[1]}, {gpu.l2_mb:g} MiB of L2.")  # fmt: skip
    return "\n".join([said, "", *table(header, body)])


def picture() -> Picture:
    """The first nine of 9 x 9 tiles, row by row and in groups of three rows."""
    return Picture(f"The first {DRAWN} tiles of C, and what they need", _draw, 7.0, 4.2)


def _draw(figure: Any) -> None:
    panels = zip(figure.subplots(1, 2), (1, DRAWN_GROUP), strict=True)
    for axes, group in panels:
        tiles = order(DRAWN, DRAWN, group)[:DRAWN]
        rows, columns = ({tile[axis] for tile in tiles} for axis in (0, 1))
        name = "Row by row" if group == 1 else f"Groups of {group} rows"
        axes.set_title(f"{name}: {loads(tiles, DRAWN)} loads", fontsize=10)
        for i in range(DRAWN):
            for j in range(DRAWN):
                _tile(axes, j, i, drawing.SERIES[0] if i in rows else None)
                _tile(axes, j + DRAWN + 1, i - DRAWN - 1,
                      drawing.SERIES[1] if j in columns else None)  # fmt: skip
                _tile(axes, j + DRAWN + 1, i, drawing.SERIES[5] if (i, j) in tiles else None)
        for number, (i, j) in enumerate(tiles):
            axes.text(j + DRAWN + 1.45, i + 0.47, str(number), color=drawing.CARD, fontsize=7,
                      ha="center", va="center")  # fmt: skip
        for text, x, y in (("A", 4.5, -0.6), ("B", 9.4, -5.5), ("C", 9.4, 4.5)):
            axes.text(x, y, text, ha="center", va="center")
        axes.set_xlim(-0.2, 2 * DRAWN + 1.2)
        axes.set_ylim(DRAWN + 0.2, -DRAWN - 1.2)  # the first row on top
        axes.set_aspect("equal")
        axes.axis("off")


def _tile(axes: Any, x: float, y: float, color: str | None) -> None:
    axes.fill(
        [x, x + 0.9, x + 0.9, x], [y, y, y + 0.9, y + 0.9],
        color=color or drawing.RULE, linewidth=0,
    )  # fmt: skip
