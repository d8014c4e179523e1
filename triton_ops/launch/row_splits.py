"""How many programs work on a row, or on columns, and how much each holds. The tunables `rows` in
configs/tunables/ decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from diglot.triton_ops.lib.rows.rows import (
    COLUMN_TILES,
    COLUMNS,
    REDUCED_CHUNKS,
    ROWS,
    SPLIT_COLUMNS,
    SPLIT_ROWS,
    TILES,
)

from .norm_forward import REGISTERS, NormRows, Split
from .plan import ACCESS_BYTES, Device

RESIDENT_WARPS = 48  # on a multiprocessor: a thread of theirs has 40 registers
# Multiprocessors that share rows where the number of rows to plan for is a tunable's. All GPUs that
# have as many then share rows alike.
PLANNED_MULTIPROCESSORS = 78
BUSY = 0.7  # of the programs that could run, at least, where all rows run at once
WORTH_SPLITTING = 1.05  # times as many programs, if a row has more parts for them
MOST_EARLY = 32  # elements of a thread that loads weight and bias early
STATE_FIELDS = 3  # the most numbers of a state
CHUNK_FIELDS = 2  # the same for columns that take two launches


def planned_rows(device: Device, count: int) -> int:
    """The number of rows that a plan is made for: a tunable's, or the real `count`."""
    return device.tuned("rows.both.planned_rows") or count


def planned_device(device: Device) -> Device:
    """The device that a plan of shared rows is made for."""
    if device.is_interpreted or not device.tuned("rows.both.planned_rows"):
        return device
    return device._replace(multiprocessors=min(device.multiprocessors, PLANNED_MULTIPROCESSORS))


def at_once(device: Device, programs: int, elements: int, warps: int) -> int | None:
    """Warps of each program that holds `elements` elements, if programs are few; else None.

    All programs are to run at once, with enough registers for each thread.
    """
    latency = device.tuned("rows.triton.latency")
    if programs > device.multiprocessors * latency["programs"]:
        return None
    room = RESIDENT_WARPS // -(-programs // device.multiprocessors)
    most = min(power_of_2(elements // (32 * latency["elements"])), latency["warps"])
    while most > room:
        most //= 2
    return max(warps, most)


def power_of_2(n: int) -> int:
    """The least power of 2 that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def registers(warps: int, programs: int) -> int:
    """The most registers of a thread with which `programs` programs run on a multiprocessor."""
    return REGISTERS // (programs * warps * 32) // 8 * 8


def pieces_of(n: int, access: int) -> tuple[int, int]:
    """Elements of a piece, and how many pieces hold n elements.

    `access`: elements of one access of all the program's threads. A piece has at least 2, because
    Triton 3.6 makes no 16-bit tile of one element.
    """
    return (max(2, power_of_2(n)), 1) if n <= access else (access, -(-n // access))


def choose_parts(
    n: int, splits: int, line: int, access: int, room: int, together: int
) -> tuple[int, int, int]:
    """Elements of a piece, pieces of a part, and the number of parts, of rows of n elements.

    Groups of programs run in multiples of `together`. A few long parts may leave programs out, and
    a row then has more parts.

    Args:
        splits: parts at least.
        line: the elements that divide a part (`part_of_row`).
        access: elements of one access of all the program's threads.
        room: programs that run at once.
    """

    def pieces_in(splits: int) -> tuple[int, int]:
        return pieces_of(-(-n // (splits * line)) * line, access)

    def busy(splits: int) -> int:
        return room // splits // together * together * splits

    block, pieces = pieces_in(splits)
    splits = -(-n // (block * pieces))  # the last piece may have room for what a part less has
    best = splits
    for more in range(splits + 1, 2 * splits if together > 1 else 0):
        if busy(more) > busy(best) * WORTH_SPLITTING:
            best = more
    return *pieces_in(best), best


def told_splits(n: int, held: int, splits: int) -> int:
    """SPLITS of `part_of_row`, for rows of n elements and programs that hold `held`."""
    return power_of_2(splits) if splits == -(-n // held) else -splits


def choose_split(
    device: Device,
    n: int,
    size: int,
    vector: int,
    inputs: int,
    is_column: bool,
    rank: int,
    norm: NormRows | None,
    count: int,
    is_peeled: bool,
    together: int,
) -> Way | None:
    """The way of rows, or columns, that programs share; None if they do not.

    Args:
        rank: how many other dimensions there are.
        count: rows.
        is_peeled: whether rows are.
        together: groups of programs run in multiples of it, unless all rows run at once.
    """
    aside = max(device.tuned("rows.triton.column_bytes") // size, 1) if is_column else 1
    if norm is not None:
        alone, split = norm.alone(is_peeled), norm.shared(is_peeled)
    elif is_column:
        alone = device.tuned("rows.triton.alone_bytes") // (aside * size)
        split = Split(**device.tuned("rows.triton.shared", rank))
    else:
        alone = device.tuned("rows.triton.alone_elements", inputs, size)
        split = Split(**device.tuned("rows.triton.shared", 0))
    if n <= alone:
        return None
    bytes = split.bytes // 2 if size == 8 and norm is None else split.bytes
    part = bytes // (inputs * size * aside)
    splits = -(-n // part)
    if not is_column:
        # Programs hold longer parts if all rows then run at once, and few programs are missing.
        room, rows = planned_device(device).room(split.programs), planned_rows(device, count)
        each = room // rows
        held = inputs if norm is None else norm.arrays_held()
        most = int(device.tuned("rows.triton.once_bytes") / (held * size))
        if 1 < each < splits and -(-n // each) <= most and each * rows >= room * BUSY:
            splits = each
            part = -(-n // splits)
    if not 1 < splits <= planned_device(device).room(split.programs):
        return None
    warps = split.warps
    if is_column:
        side = device.tuned("rows.triton.column_bytes") // (size * vector)
        kind, block, pieces = SPLIT_COLUMNS.value, part, 1
    else:
        room = planned_device(device).room(split.programs)
        if planned_rows(device, count) * splits <= room:  # all rows run at once
            together = 1
            if norm is not None:
                warps = max(warps, norm.warps_at_once())
        kind, side, access = SPLIT_ROWS.value, 1, warps * 32 * ACCESS_BYTES // size
        line = 8 * vector  # a multiple of that of `part_of_row`
        block, pieces, splits = choose_parts(n, splits, line, access, room, together)
    most = registers(warps, split.programs)
    early = split.early > 0
    return Way(kind, warps, side, block, pieces, split.programs, splits, early, most)


def count_chunks(device: Device, n: int, strips: int, block: int) -> int:
    """How many chunks columns of n elements have, in whole tiles of `block` elements."""
    wanted = max(
        device.tuned("rows.both.chunk_blocks") // strips, device.tuned("rows.both.many_chunks")
    )
    chunks = max(min(wanted, n // device.tuned("rows.both.chunk_elements")), 1)
    length = -(-n // chunks // block) * block
    return -(-n // length)


class Way(NamedTuple):
    """The variant that runs, and the shape of its programs.

    Attributes:
        kind: the variant.
        warps: of a program.
        side: rows, or accesses side by side.
        block, pieces: elements of a row in a tile, and tiles that a program holds.
        programs: on a multiprocessor, if they share rows.
        splits: programs that share a row.
        early: whether weight and bias are loaded before the reduction.
        registers: of a thread; None: as many as the compiler likes.
    """

    kind: int
    warps: int
    side: int
    block: int
    pieces: int = 1
    programs: int = 0
    splits: int = 1
    early: bool = True
    registers: int | None = None


def choose_chunks(device: Device, columns: int, inputs: tuple[int, ...], vector: int) -> Way:
    """The way of columns in two launches. `inputs` has the bytes of an element of each input."""
    width = min(inputs) * vector
    side = min(device.tuned("rows.both.strip_bytes") // width, power_of_2(columns))
    bytes = device.tuned("rows.triton.chunk_tile_bytes")
    tile = min(device.tuned("rows.triton.chunk_tile"), bytes // sum(inputs))
    warps = device.tuned("rows.triton.chunk_warps")
    return Way(REDUCED_CHUNKS.value, warps, side, max(tile // (vector * side), 1))


def choose_tile(
    device: Device,
    n: int,
    alone: int,
    count: int,
    size: int,
    vector: int,
    is_column: bool,
    inputs: int,
    held: Callable[[int], tuple[int, int, int]] | None,
) -> Way:
    """The way of rows, or columns, that each have a program to themselves.

    Args:
        n: elements of a row in pieces that begin alike in all rows.
        alone: the same where pieces of a row begin at its first whole access.
        held: given a number of elements, returns warps, registers and `early` of a program that
            holds them. None: the tunables `rows` decide.
    """
    held_by = "rows.triton.most_columns" if is_column else "rows.triton.most_held"
    most = device.tuned(held_by, inputs, size)
    if not is_column and n > most:
        tile = device.tuned("rows.triton.tile_elements", inputs, size)
        warps = device.tuned("rows.triton.tile_warps")
        block = max(tile, warps * 32 * vector)  # an access of each thread
        return Way(TILES.value, warps, 1, block)
    kind, side, access = ROWS.value, 1, 1
    block = max(2, power_of_2(n))
    if is_column:
        column_bytes = device.tuned("rows.triton.column_bytes")
        kind, side, access = COLUMNS.value, max(1, column_bytes // (size * vector)), vector
        if block * side * access > most:
            elements = device.tuned("rows.triton.column_elements", inputs, size)
            kind, block = COLUMN_TILES.value, max(elements // (side * access), 1)
    few_elements = device.tuned("rows.triton.few_elements")
    while 2 * block * side * access <= few_elements and side < count:
        side *= 2
    is_alone = kind == ROWS.value and side == 1
    elements = n if is_alone else block * side * access
    limit, early = 0, 1
    if kind == ROWS.value and held is not None:
        warps, limit, early = held(elements)
    else:
        is_narrow = size == 2 and inputs == 1 and not is_column
        by = "rows.triton.narrow_warps" if is_narrow else "rows.triton.warps"
        warps = device.tuned(by, elements * (2 if size == 8 else 1))
    if kind == COLUMN_TILES.value:
        warps = max(warps, device.tuned("rows.triton.tile_warps"))
    if not is_alone:
        return Way(kind, warps, side, block, early=early > 0, registers=limit or None)
    more = at_once(device, count, n, warps)
    warps = more or warps
    # Few programs have registers for weight and bias, unless the row takes most of them.
    is_early = early > 0 or (more is not None and n <= warps * 32 * MOST_EARLY)
    block, pieces = pieces_of(alone, warps * 32 * ACCESS_BYTES // size)
    return Way(kind, warps, 1, block, pieces, early=is_early, registers=limit or None)
