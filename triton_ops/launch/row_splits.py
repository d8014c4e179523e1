"""Which programs work on a row, or on columns, and with what: it follows from measured numbers,
`rows` and `norm_forward` of configs/tunables/.
"""

from __future__ import annotations

from typing import NamedTuple

from diglot.triton_ops.lib.rows.rows import COLUMN_TILES, COLUMNS, ROWS, TILES

from .plan import Device

REGISTERS = 65536  # of a multiprocessor
STATE_FIELDS = 3  # numbers of a state, at most
CHUNK_FIELDS = 2  # the same of columns that take two launches


def power_of_2(n: int) -> int:
    """The least that is not below n, and 1 at least."""
    return 1 << max(n - 1, 0).bit_length()


def registers(warps: int, programs: int) -> int:
    """Of a thread at most, so that so many programs run on a multiprocessor."""
    return REGISTERS // (programs * warps * 32) // 8 * 8


def blocks_of(device: Device, n: int) -> tuple[int, int]:
    """Elements of the block, and of a second one or 0, in which a program holds so many."""
    # Of one element Triton 3.6 makes no 16-bit tile.
    whole = max(2, power_of_2(n))
    half = whole // 2
    rest = max(2, power_of_2(n - half))
    if n > half and rest * device.tuned("rows.triton.second_block") <= half:
        return half, rest
    return whole, 0


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


class Walking(NamedTuple):
    """How programs that hold rows take them in turn.

    Attributes:
        programs: on a multiprocessor; 0: each has one tile of rows.
        stages: of loads in flight.
    """

    programs: int
    stages: int


class Held(NamedTuple):
    """What a program has that holds rows.

    Attributes:
        warps: of one.
        registers: of a thread; 0: as many as the compiler likes.
        programs: on a multiprocessor, if programs take rows in turn; 0: they do not.
        stages: of loads in flight, if they do.
    """

    warps: int
    registers: int = 0
    programs: int = 0
    stages: int = 1


class NormRows(NamedTuple):
    """How a norm, whose weight and statistics take registers, has its rows.

    Attributes:
        device: what runs it.
        size: bytes of an element.
        inputs: arrays that are read: one, or two that are added.
        statistics: of a row: mean and rstd, or rstd alone.
    """

    device: Device
    size: int
    inputs: int
    statistics: int

    def alone(self) -> int:
        """Elements of a row that one program holds at most."""
        return self.device.tuned("norm_forward.triton.alone", self.size)

    def shared(self) -> Split:
        """What programs have that share a row."""
        return Split(**self.device.tuned("norm_forward.triton.shared", self.inputs, self.size))

    def held(self, elements: int) -> Held:
        """What a program has that holds so many elements."""
        keys = (self.size, self.inputs, self.statistics, elements)
        return Held(**self.device.tuned("norm_forward.triton.held", *keys))


def split_of(device: Device, is_column: bool, rank: int) -> Split:
    """What programs have that share rows, or columns of so many other dimensions."""
    return Split(**device.tuned("rows.triton.shared", rank if is_column else 0))


def count_splits(
    device: Device, n: int, size: int, inputs: int, is_column: bool, rank: int
) -> tuple[int, int, Split | None]:
    """How many programs share a row, or columns, elements that each holds, and what it has.

    (1, 0, None): they are not shared. `rank`: other dimensions.
    """
    if is_column:
        aside = max(device.tuned("rows.triton.column_bytes") // size, 1)
        is_alone = n * aside * size <= device.tuned("rows.triton.alone_bytes")
    else:
        aside = 1
        most_held = device.tuned("rows.triton.most_held", inputs, size)
        is_alone = n <= min(device.tuned("rows.triton.alone_elements"), most_held)
    if is_alone:
        return 1, 0, None
    split = split_of(device, is_column, rank)
    bytes = split.bytes // 2 if size == 8 else split.bytes
    return _divide(device, n, bytes // (inputs * size * aside), split)


def count_splits_of_norm(n: int, norm: NormRows) -> tuple[int, int, Split | None]:
    """The same of rows of a norm."""
    alone_bytes = norm.device.tuned("rows.triton.alone_bytes")
    if n <= norm.alone() or n * norm.size <= alone_bytes:
        return 1, 0, None
    split = norm.shared()
    return _divide(norm.device, n, split.bytes // (norm.inputs * norm.size), split)


def _divide(device: Device, n: int, held: int, split: Split) -> tuple[int, int, Split | None]:
    splits = -(-n // held)
    return (splits, held, split) if 1 < splits <= device.room(split.programs) else (1, 0, None)


def count_chunks(device: Device, n: int, strips: int, block: int) -> int:
    """How many chunks columns of n elements have, of whole tiles of so many."""
    wanted = max(
        device.tuned("rows.both.chunk_blocks") // strips, device.tuned("rows.both.many_chunks")
    )
    chunks = max(min(wanted, n // device.tuned("rows.both.chunk_elements")), 1)
    length = -(-n // chunks // block) * block
    return -(-n // length)


def choose_tile(
    device: Device,
    n: int,
    count: int,
    size: int,
    vector: int,
    is_column: bool,
    inputs: int,
) -> tuple[int, int, int, int, int]:
    """Kind, rows or accesses side by side, elements of a row in a tile and in a second block, and
    warps.
    """
    most = device.tuned("rows.triton.most_held", inputs, size)
    if not is_column and n > most:
        tile = device.tuned("rows.triton.tile_elements", inputs, size)
        warps = device.tuned("rows.triton.tile_warps")
        return TILES.value, 1, max(tile, warps * 32 * vector), 0, warps  # an access of each thread
    kind, side, access = ROWS.value, 1, 1
    block, rest = blocks_of(device, n)
    if is_column:
        block, rest = max(2, power_of_2(n)), 0
        column_bytes = device.tuned("rows.triton.column_bytes")
        kind, side, access = COLUMNS.value, max(1, column_bytes // (size * vector)), vector
        if block * side * access > most:
            elements = device.tuned("rows.triton.column_elements", inputs, size)
            kind, block = COLUMN_TILES.value, max(elements // (side * access), 1)
    few_elements = device.tuned("rows.triton.few_elements")
    while (block + rest) * side * access < few_elements and side < count:
        side *= 2
    held = (block + rest) * side * access * (2 if size == 8 else 1)
    is_narrow = size == 2 and inputs == 1 and not is_column
    warps = device.tuned("rows.triton.narrow_warps" if is_narrow else "rows.triton.warps", held)
    if kind == COLUMN_TILES.value:
        warps = max(warps, device.tuned("rows.triton.tile_warps"))
    return kind, side, block, rest, warps
