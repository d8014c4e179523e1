"""Host side of a kernel that reduces rows and then maps them: how rows lie in the arrays, which
variant runs, and its grid. Twin of csrc/include/diglot/row_launch.h.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from diglot.ops.row_words import CHUNK_BLOCKS, CHUNK_ELEMENTS, CHUNK_FIELDS, TALL

# Relative, because mypy finds this folder under its name in the tree.
from .launch import ALL_PHASES, launch, launch_cooperatively, most_programs
from .layout import Layout, compute_layout
from .lib.row_reduce import (
    COLUMN_TILES,
    COLUMNS,
    MAPPED_COLUMNS,
    REDUCED_COLUMNS,
    ROWS,
    SHARED_COLUMNS,
    SHARED_ROWS,
    TILES,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .launch import Tensors

ACCESS_BYTES = 16
ROW_RANK = 3  # other dimensions that a kernel takes; of more, a launch takes a slice
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


def _power_of_2(n: int) -> int:
    """The least that is not below n. Of a symbol, a range is found out, and not the value."""
    result = 1
    while result < n:
        result *= 2
    return result


def rows_of(
    tensors: tuple[torch.Tensor, ...], dim: int, statistic: torch.Tensor | None = None
) -> tuple[int, tuple[int, ...], Layout]:
    """Elements of a row along a dimension, the step to the next in each tensor, and the layout of
    the other dimensions.

    `statistic` lacks the dimension, and is the last array.
    """
    shape = tuple(tensors[0].shape)
    strides = tuple([t.stride() for t in tensors])
    if statistic is not None:
        of = statistic.stride()
        strides = (*strides, (*of[:dim], 0, *of[dim:]))
    if type(tensors[0]) is torch.Tensor:
        return _cached(shape, strides, dim)
    return _rows_of(shape, strides, dim)  # sizes may be symbols, which do not hash


def _rows_of(
    shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], dim: int
) -> tuple[int, tuple[int, ...], Layout]:
    if not shape:
        return 1, (1,) * len(strides), compute_layout(((),) * len(strides), ((),) * len(strides))
    n = shape[dim]
    steps = tuple(1 if n == 1 else of[dim] for of in strides)
    others = tuple((*of[:dim], *of[dim + 1 :]) for of in (shape, *strides))
    return n, steps, compute_layout((others[0],) * len(strides), others[1:])


_cached = functools.lru_cache(maxsize=4096)(_rows_of)


class RowShare(NamedTuple):
    """How an operation that has a weight and statistics has its rows: others have fewer registers.

    Attributes:
        alone: elements of a row that one program holds at most.
        warps: by elements that it holds at most, its warps, and registers of a thread, or None.
        shared: as SHARED.
    """

    alone: int
    warps: dict[int, tuple[int, int | None]]
    shared: tuple[int, int, int]


def _sharing(is_column: bool, outer: Layout) -> tuple[int, int, int]:
    return SHARED[min(len(outer.sizes), max(SHARED)) if is_column else 0]


def _shares(
    n: int,
    size: int,
    inputs: int,
    is_column: bool,
    bytes: int,
    room: int,
    how: RowShare | None = None,
) -> tuple[int, int]:
    """How many programs share a row, or columns, and elements of a row that each holds.

    One: they are not shared. `bytes` of the inputs fit one of them, and `room` run at once.
    """
    aside = COLUMN_BYTES // size if is_column else 1
    if how is not None:
        is_alone = n <= how.alone or n * size <= ALONE_BYTES
    elif is_column:
        is_alone = n * aside * size <= ALONE_BYTES
    else:
        is_alone = n <= min(ALONE_ELEMENTS, MOST_HELD[inputs, size == 8])
    if is_alone:
        return 1, 0
    if how is None and size == 8:
        bytes //= 2
    held = bytes // (inputs * size * aside)
    shares = -(-n // held)
    return (shares, held) if shares <= room else (1, 0)


def count_words(arrays: tuple[torch.Tensor, ...], dim: int) -> int:
    """Words that a launch on arrays, the output first, takes for what programs tell each other of
    the rows along a dimension that they share; 0 if none are shared, or programs cannot wait.
    """
    n, steps, outer = rows_of(arrays, dim)
    if len(outer.sizes) > ROW_RANK or outer.numel == 0:
        return 0
    size = min(t.element_size() for t in arrays)
    is_column = _is_column(n, steps, outer)
    bytes, _, per = _sharing(is_column, outer)
    shares, _ = _shares(n, size, len(arrays) - 1, is_column, bytes, most_programs(arrays[0], per))
    aside = COLUMN_BYTES // size if is_column else 1
    if shares == 1:
        return 0
    # As many again: of a row that has a weight, a program holds half as much.
    return -(-outer.numel // aside) * aside * 2 * shares * STATE_FIELDS


def _is_column(n: int, steps: tuple[int, ...], outer: Layout) -> bool:
    return bool(outer.sizes) and n > 1 and outer.strides[0][0] < steps[0]


def _is_symbolic(n: int, steps: tuple[int, ...], outer: Layout) -> bool:
    numbers = (n, *steps, *outer.sizes, *itertools.chain(*outer.strides))
    return any(isinstance(number, torch.SymInt) for number in numbers)


@functools.cache
def _variant(kind: int, block: int, is_aligned: bool) -> str:
    what = {
        ROWS.value: "rows in registers",
        TILES.value: "a row read twice",
        COLUMNS.value: "columns in registers",
        COLUMN_TILES.value: "columns read twice",
        SHARED_ROWS.value: "a row shared by programs",
        SHARED_COLUMNS.value: "columns shared by programs",
        REDUCED_COLUMNS.value: "columns in two launches",
    }[kind]
    return f"{what}, blocks of {block}{', 16-byte accesses' if is_aligned else ''}"


def launch_rows(
    kernel: Any,
    tensors: Tensors,
    dim: int,
    words: torch.Tensor | None = None,
    shared: tuple[torch.Tensor | None, ...] = (),
    statistics: tuple[torch.Tensor, ...] = (),
    held: tuple[torch.Tensor | None, ...] = (),
    numbers: tuple[int, ...] = (),
    how: RowShare | None = None,
    tall: int = TALL,
) -> str:
    """Launches a kernel on the rows of tensors along a dimension, and says how.

    Args:
        kernel: of (pointers: the inputs, shared, statistics, held, words, the output; n, count,
            three sizes; for each array, the output first, then the inputs, its start, three strides
            and step; for the statistics a start and three strides; numbers; KIND, RANK, STEPS,
            VECTOR, ALIGNED, SIDE, BLOCK, THREADS, SHARES, PHASE), as `reduce_then_map_rows`
            takes them.
        tensors: one input or two, then the output, of one shape. The second input may be None.
        dim: a dimension of them, from 0.
        words: as `row_words` has them; None: no rows are shared, and columns take one launch. Rows
            are shared if accesses are of 16 bytes.
        shared: arrays of one row without gaps, the same for every row.
        statistics: arrays of one element for each row, all with the same strides.
        held: a second output, which lies as the output does.
        numbers: 64-bit arguments.
        how: instead of HELD_WARPS and SHARED.
        tall: elements of the longest column that takes one launch.

    Raises:
        ValueError: there are too few words for the states of tall columns.
    """
    *given, out = tensors
    if out.numel() == 0:
        return "nothing to do"
    pointers: Any = (*given, *shared, *statistics, *held, words, out)
    arrays = (out, *(t for t in given if t is not None))
    n, steps, outer = rows_of(arrays, dim, statistics[0] if statistics else None)
    size = min([t.element_size() for t in arrays])
    vector = ACCESS_BYTES // size
    every = range(len(arrays))
    has_steps = any([steps[a] != 1 for a in every])
    is_column = _is_column(n, steps, outer)
    if _is_symbolic(n, steps, outer):
        vector = 1  # what divides a symbol would be one more thing to compile anew for
    elif is_column:
        if not all(outer.has_vectors(a, vector) and steps[a] % vector == 0 for a in every):
            vector = 1
    elif has_steps or n % vector or not all(outer.has_multiples(a, vector, 0) for a in every):
        vector = 1
    # Addresses of traced tensors are unknown; the compiler that traces them knows alignments.
    is_aligned = False
    if vector > 1 and type(out) is torch.Tensor:
        whole = (*arrays, *(t for t in (*shared, *held) if t is not None))
        is_aligned = all([t.data_ptr() % ACCESS_BYTES == 0 for t in whole])
        vector = vector if is_aligned else 1
    if is_column and vector > 1:
        outer = outer.in_vectors(vector)
    shares, part, sharing = 1, 0, (0, 0, 0)
    is_tall = words is not None and is_column and n > tall
    if words is not None and vector > 1 and not is_tall:  # other parts would not fit the registers
        sharing = _sharing(is_column, outer) if how is None else how.shared
        room = most_programs(out, sharing[2])
        shares, part = _shares(n, size, len(arrays) - 1, is_column, sharing[0], room, how)
        rows = outer.numel * (vector if is_column else 1)
        if rows * shares * STATE_FIELDS > words.numel():
            shares = 1
    if is_tall:
        kind, warps = REDUCED_COLUMNS.value, CHUNK_WARPS
        side = min(STRIP_BYTES // (size * vector), _power_of_2(outer.numel))
        tile = min(CHUNK_TILE, CHUNK_TILE_BYTES // sum(t.element_size() for t in arrays[1:]))
        block = tile // (vector * side)
    elif shares > 1:
        kind = (SHARED_COLUMNS if is_column else SHARED_ROWS).value
        side = COLUMN_BYTES // (size * vector) if is_column else 1
        block, (_, warps, per) = part, sharing
    else:
        kind, side, block, warps = _share_out(
            n, outer.numel, size, vector, is_column, len(arrays) - 1
        )
    # Where an input is not given, a kernel takes strides for it all the same.
    places = [0, *_places(given)]
    for slice, start in outer.slices(ROW_RANK):
        missing = (0,) * (ROW_RANK - len(slice.sizes))
        integers = [
            n // vector if not is_column else n,
            slice.numel,
            *slice.sizes,
            *((1,) * len(missing)),
        ]
        for a in places:
            integers += [
                start[a] if start else 0,
                *(of[a] for of in slice.strides),
                *missing,
                steps[a],
            ]
        if statistics:
            integers += [start[-1] if start else 0, *(of[-1] for of in slice.strides), *missing]
        integers += numbers
        shape = (len(slice.sizes), has_steps, vector, is_aligned, side, block, warps * 32)
        programs = -(-slice.numel // side)
        if is_tall and words is not None:
            chunks = _count_chunks(n, programs, block)
            needed = chunks * slice.numel * vector * CHUNK_FIELDS
            if words.numel() < needed:
                raise ValueError(
                    f"the states of columns take {needed} words, and there are {words.numel()}"
                )
            at_once = CHUNK_PROGRAMS[len(slice.sizes) > 1]
            for launched in (REDUCED_COLUMNS, MAPPED_COLUMNS):
                constants = (launched.value, *shape, 1, ALL_PHASES.value)
                launch(
                    kernel,
                    programs * chunks,
                    pointers,
                    tuple(integers),
                    constants,
                    warps,
                    _registers(warps, at_once) if vector > 1 else None,
                )
        elif shares == 1:
            constants = (kind, *shape, 1, ALL_PHASES.value)
            registers = None
            if how is not None and kind == ROWS.value and size < 8:
                tile = block * side
                warps, registers = next(of for most, of in how.warps.items() if tile <= most)
                constants = (*constants[:7], warps * 32, *constants[8:])
            launch(kernel, programs, pointers, tuple(integers), constants, warps, registers)
        else:
            launch_cooperatively(
                kernel,
                programs * shares,
                per,
                pointers,
                tuple(integers),
                (
                    kind,
                    *shape,
                    _power_of_2(max(shares, warps * 32 // (side * vector) if is_column else 1)),
                ),
                warps,
                phases=2,
                max_registers=_registers(warps, per),
                together=shares,
            )
    return _variant(kind, block, is_aligned)


def _registers(warps: int, programs: int) -> int:
    """Of a thread at most, so that so many programs run on a multiprocessor."""
    return REGISTERS // (programs * warps * 32) // 8 * 8


def _places(given: list[torch.Tensor | None]) -> Iterator[int]:
    """The numbers of the inputs among the arrays that are there; of one that is not, any."""
    place = 0
    for tensor in given:
        place += tensor is not None
        yield place


def _count_chunks(n: int, strips: int, block: int) -> int:
    """How many chunks columns of n elements have, of whole tiles of so many."""
    chunks = min(max(CHUNK_BLOCKS // strips, MANY_CHUNKS), n // CHUNK_ELEMENTS)
    share = -(-n // chunks // block) * block
    return -(-n // share)


def _share_out(
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
    kind, side, access, block = ROWS.value, 1, 1, max(2, _power_of_2(n))
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
