"""Which programs work on a row, or on columns, and with what: numbers that were measured on an
H200, and what follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .lib.rows.rows import COLUMN_TILES, COLUMNS, ROWS, TILES

# Warps of a program that holds so many elements, or fewer: at most 32 a thread, which are of fp32
# once they are computed with. One of float64 counts as two.
HELD_WARPS = {1024: 1, 2048: 4, 4096: 8, 16384: 16, 32768: 32}
# Of rows of one array of 16-bit elements, of which a register holds two.
NARROW_WARPS = HELD_WARPS | {16384: 8}
# Of float64, and of several arrays together, a program holds fewer.
MOST_HELD = {(1, False): 32768, (2, False): 16384, (1, True): 8192, (2, True): 4096}
FEW_ELEMENTS = 1024  # that a program has at least, if need be in several rows
TILE_WARPS = 8  # of a program that has rows in tiles, at least
# Elements of it, by the number of inputs and the bytes of an element: what is in flight is enough,
# and no register is spilled.
TILE_ELEMENTS = {(1, 2): 4096, (2, 2): 4096, (1, 4): 2048, (2, 4): 2048, (1, 8): 1024, (2, 8): 1024}
COLUMN_ELEMENTS = TILE_ELEMENTS | {(1, 2): 8192, (2, 4): 1024}
COLUMN_BYTES = 64  # of a row of memory that a program of columns reads, at least
# Of columns that take two launches: bytes of a strip; of a tile at most so many elements, and bytes
# of all inputs; warps; the most chunks where strips are many. How many programs run on a
# multiprocessor, if there is one other dimension or are several: offsets of several strides take
# registers.
STRIP_BYTES, MANY_CHUNKS = 512, 24
CHUNK_TILE, CHUNK_TILE_BYTES, CHUNK_WARPS = 4096, 16384, 8
CHUNK_PROGRAMS = (3, 2)
# Programs that share rows (0), or columns of so many other dimensions, or more: bytes of the inputs
# that one holds (of float64 half as many), its warps, and how many of them run on a multiprocessor,
# with as many registers as that leaves. Where several strides make an offset, it takes some.
SHARED = {0: (32768, 4, 4), 1: (32768, 4, 3), 2: (32768, 8, 2)}
REGISTERS = 65536  # of a multiprocessor
# A row is shared if it has more elements, and columns if a program's have more bytes, of one array.
ALONE_ELEMENTS, ALONE_BYTES = 16384, 32768
STATE_FIELDS = 3  # numbers of a state, at most
# Columns of more elements take two launches. Where only the first of two inputs is reduced, shorter
# ones, too.
TALL, TALL_OF_FIRST = 8192, 4096
# Of columns that take two launches: the fewest elements of a chunk, which has a state for each
# column, and the most chunks; numbers of a state. Constants: no result depends on the device.
CHUNK_ELEMENTS, CHUNK_BLOCKS = 256, 384
CHUNK_FIELDS = 2


def power_of_2(n: int) -> int:
    """The least that is not below n, and 1 at least."""
    return 1 << max(n - 1, 0).bit_length()


def registers(warps: int, programs: int) -> int:
    """Of a thread at most, so that so many programs run on a multiprocessor."""
    return REGISTERS // (programs * warps * 32) // 8 * 8


class Split(NamedTuple):
    """What programs that share rows, or columns, have.

    Attributes:
        bytes: of the inputs, that one holds.
        warps: of one.
        programs: on a multiprocessor.
    """

    bytes: int
    warps: int
    programs: int


class RowConfig(NamedTuple):
    """How an operation that has a weight and statistics has its rows: others have fewer registers.

    Attributes:
        alone: elements of a row that one program holds at most.
        warps: by elements that it holds at most, its warps, and registers of a thread, or None.
        shared: of programs that share a row.
    """

    alone: int
    warps: Mapping[int, tuple[int, int | None]]
    shared: Split


def split_of(is_column: bool, rank: int) -> Split:
    """What programs have that share rows, or columns of so many other dimensions."""
    return Split(*SHARED[min(rank, max(SHARED)) if is_column else 0])


def count_splits(
    n: int, size: int, inputs: int, is_column: bool, split: Split, room: int
) -> tuple[int, int]:
    """How many programs share a row, or columns, and elements of a row that each holds.

    One: they are not shared. `room` run at once.
    """
    aside = COLUMN_BYTES // size if is_column else 1
    if is_column:
        is_alone = n * aside * size <= ALONE_BYTES
    else:
        is_alone = n <= min(ALONE_ELEMENTS, MOST_HELD[inputs, size == 8])
    if is_alone:
        return 1, 0
    bytes = split.bytes // 2 if size == 8 else split.bytes
    return _divide(n, bytes // (inputs * size * aside), room)


def count_splits_of(n: int, size: int, inputs: int, how: RowConfig, room: int) -> tuple[int, int]:
    """The same of rows of an operation that has them so."""
    if n <= how.alone or n * size <= ALONE_BYTES:
        return 1, 0
    return _divide(n, how.shared.bytes // (inputs * size), room)


def _divide(n: int, held: int, room: int) -> tuple[int, int]:
    splits = -(-n // held)
    return (splits, held) if splits <= room else (1, 0)


def count_chunks(n: int, strips: int, block: int) -> int:
    """How many chunks columns of n elements have, of whole tiles of so many."""
    chunks = min(max(CHUNK_BLOCKS // strips, MANY_CHUNKS), n // CHUNK_ELEMENTS)
    length = -(-n // chunks // block) * block
    return -(-n // length)


def choose_tile(
    n: int,
    count: int,
    size: int,
    vector: int,
    is_column: bool,
    inputs: int,
) -> tuple[int, int, int, int]:
    """Kind, rows or accesses side by side, elements of a row in a tile, and warps."""
    most = MOST_HELD[inputs, size == 8]
    tile = TILE_ELEMENTS[inputs, size]
    if not is_column and n > most:
        return TILES.value, 1, tile, TILE_WARPS
    # Of one element Triton 3.6 makes no 16-bit tile.
    kind, side, access, block = ROWS.value, 1, 1, max(2, power_of_2(n))
    if is_column:
        kind, side, access = COLUMNS.value, max(1, COLUMN_BYTES // (size * vector)), vector
        if block * side * access > most:
            kind, block = COLUMN_TILES.value, COLUMN_ELEMENTS[inputs, size] // (side * access)
    while block * side * access < FEW_ELEMENTS and side < count:
        side *= 2
    held = block * side * access * (2 if size == 8 else 1)
    is_narrow = size == 2 and inputs == 1 and not is_column
    table = NARROW_WARPS if is_narrow else HELD_WARPS
    warps = next(warps for most, warps in table.items() if held <= most)
    return kind, side, block, max(warps, TILE_WARPS) if kind == COLUMN_TILES.value else warps
