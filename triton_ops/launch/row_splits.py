"""Which programs work on a row, or on columns, and with what: it follows from measured numbers,
`rows` of configs/tunables/.
"""

from __future__ import annotations

from typing import NamedTuple

from diglot.triton_ops.lib.rows.rows import COLUMN_TILES, COLUMNS, ROWS, TILES

from .plan import Device

REGISTERS = 65536  # of a multiprocessor
STATE_FIELDS = 3  # numbers of a state, at most
CHUNK_FIELDS = 2  # the same of columns that take two launches


def planned_rows(device: Device, count: int) -> int:
    """For how many rows a plan is made that is to run on so many."""
    return device.tuned("rows.both.planned_rows") or count


def at_once(device: Device, programs: int, elements: int, warps: int) -> int:
    """Warps of programs that hold so many elements each: more where programs are few."""
    latency = device.tuned("rows.triton.latency")
    if programs > device.multiprocessors * latency["programs"]:
        return warps
    most = elements // (32 * latency["elements"])
    return max(warps, min(power_of_2(most), latency["warps"]))


def power_of_2(n: int) -> int:
    """The least that is not below n, and 1 at least."""
    return 1 << max(n - 1, 0).bit_length()


def registers(warps: int, programs: int) -> int:
    """Of a thread at most, so that so many programs run on a multiprocessor."""
    return REGISTERS // (programs * warps * 32) // 8 * 8


def blocks_of(n: int, second: int) -> tuple[int, int]:
    """Elements of the block, and of a second one or 0, in which a program holds so many.

    The second one has at most the `second`-th part of the first.
    """
    # Of one element Triton 3.6 makes no 16-bit tile.
    whole = max(2, power_of_2(n))
    half = whole // 2
    rest = max(2, power_of_2(n - half))
    return (half, rest) if n > half and rest * second <= half else (whole, 0)


def exchange_once(device: Device, block: int, rest: int, reach: int) -> tuple[int, int, bool]:
    """Both blocks of a row, and whether threads combine their parts of both: each then has an
    access of the second one. `reach`: elements of an access of all threads.
    """
    if rest == 0 or block > device.tuned("rows.triton.exchange_once"):
        return block, rest, False
    rest = max(rest, reach)
    return (block, rest, True) if rest < block else (2 * block, 0, False)


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
        is_alone = n <= device.tuned("rows.triton.alone_elements", inputs, size)
    if is_alone:
        return 1, 0, None
    split = split_of(device, is_column, rank)
    bytes = split.bytes // 2 if size == 8 else split.bytes
    return divide(device, n, bytes // (inputs * size * aside), split)


def divide(device: Device, n: int, held: int, split: Split) -> tuple[int, int, Split | None]:
    """The same, of programs that hold so many elements each."""
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
    second: int,
) -> tuple[int, int, int, int, int]:
    """Kind, rows or accesses side by side, elements of a row in a tile and in a second block, and
    warps. `second`: as in `blocks_of`.
    """
    most = device.tuned("rows.triton.most_held", inputs, size)
    if not is_column and n > most:
        tile = device.tuned("rows.triton.tile_elements", inputs, size)
        warps = device.tuned("rows.triton.tile_warps")
        return TILES.value, 1, max(tile, warps * 32 * vector), 0, warps  # an access of each thread
    kind, side, access = ROWS.value, 1, 1
    block, rest = blocks_of(n, second)
    if is_column:
        block, rest = max(2, power_of_2(n)), 0
        column_bytes = device.tuned("rows.triton.column_bytes")
        kind, side, access = COLUMNS.value, max(1, column_bytes // (size * vector)), vector
        if block * side * access > most:
            elements = device.tuned("rows.triton.column_elements", inputs, size)
            kind, block = COLUMN_TILES.value, max(elements // (side * access), 1)
    few_elements = device.tuned("rows.triton.few_elements")
    while 2 * (block + rest) * side * access <= few_elements and side < count:
        side *= 2
    held = (block + rest) * side * access * (2 if size == 8 else 1)
    is_narrow = size == 2 and inputs == 1 and not is_column
    warps = device.tuned("rows.triton.narrow_warps" if is_narrow else "rows.triton.warps", held)
    if kind == COLUMN_TILES.value:
        warps = max(warps, device.tuned("rows.triton.tile_warps"))
    return kind, side, block, rest, warps
