"""The driver of a kernel that reduces rows and then maps them. KIND chooses the variant.

A tile of rows is (rows, elements). Columns are the second dimension of a tile (elements, columns).
One program holds a row in registers while it fits (resident.py). Triton has no memory in which a
program could keep a longer row, so several programs that run at once split it (split.py). Where
programs cannot wait for each other, one program reads it in two passes (tiled.py). Tall columns
take two launches (split_columns.py). Twin of csrc/include/diglot/rows/rows.cuh.
"""

import triton
import triton.language as tl

from .resident import map_resident_rows
from .split import map_split_rows
from .split_columns import reduce_or_map_column_chunk
from .tiled import map_tiled_rows

ROWS, TILES, COLUMNS, COLUMN_TILES, SPLIT_ROWS, SPLIT_COLUMNS, REDUCED_CHUNKS, MAPPED_CHUNKS = (
    tl.constexpr(0),
    tl.constexpr(1),
    tl.constexpr(2),
    tl.constexpr(3),
    tl.constexpr(4),
    tl.constexpr(5),
    tl.constexpr(6),
    tl.constexpr(7),
)


@triton.jit
def reduce_then_map_rows(
    inputs, scratch, output, n, count, sizes, starts, strides, steps,
    REDUCE: tl.constexpr, COMBINE: tl.constexpr, NONE: tl.constexpr, FOLD: tl.constexpr,
    MAP: tl.constexpr, OTHER: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr,
    RANK: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    ALIKE: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    EARLY: tl.constexpr, THREADS: tl.constexpr, SPLITS: tl.constexpr,
    PHASE: tl.constexpr,
    second=None, weight=None, bias=None, statistics=None, numbers=None,
    HOLD: tl.constexpr = None, FINISH: tl.constexpr = None,
):  # fmt: skip
    """output = map(states, inputs), where the states are those of whole rows (operation.py).

    Args:
        inputs: one array, or two.
        scratch: for split rows, mailboxes, zeros at first (sync/mailbox.py). For columns in two
            launches, room for the states of their chunks. Else None.
        n: accesses of a row if ALIGNED, else elements. The same for columns.
        count: rows; for columns, accesses side by side.
        sizes: of the other dimensions, the fastest first.
        starts, strides, steps: for the output, each input and, last, the statistics as one array.
            `starts` has the offset of the first row, `strides` the strides of the other dimensions,
            `steps` the step from an element of a row to the next one.
        OTHER: the value of masked elements.
        T: the element type that `reduce` and `map` compute for.
        KIND: the variant, such as ROWS.
        RANK: how many other dimensions there are.
        STEPS: whether some step is not 1.
        VECTOR: elements of an access.
        ALIGNED: whether all accesses are at multiples of 16 bytes. If not, rows with a VECTOR are
            peeled (pieces.py).
        ALIKE: whether all rows of a program begin equally far from a multiple of 16 bytes.
        SIDE: rows of a program; for columns, accesses side by side.
        BLOCK: elements of a row in a tile.
        PIECES: tiles of a held row, or of a program's part of one.
        EARLY: whether a program loads weight and bias before the reduction, so that it waits only
            once. Loading them after it takes fewer registers. If programs split rows: whether a
            program loads its next rows before it maps one.
        SPLITS: of a split row, a power of 2 that is at least the number of its programs, or minus
            that number, as in `part_of_row`.
        PHASE: of a split row: 1 publishes, 2 collects and maps, ALL_PHASES does both.
        second: an array with the output's layout, for the held tile; or None.
        weight, bias: arrays of n elements without gaps; or None.
        statistics: arrays of one element for each row, to be written; or None.
        numbers: arguments of `finish`.
    """
    COLUMN: tl.constexpr = (KIND == COLUMNS) | (KIND == COLUMN_TILES) | (KIND >= SPLIT_COLUMNS)
    if not COLUMN and ALIGNED:
        n = n * VECTOR  # the compiler sees a multiple: the end cuts no access
    if (KIND == SPLIT_ROWS) | (KIND == SPLIT_COLUMNS):
        map_split_rows(
            inputs, scratch, output, n, count, sizes, starts, strides, steps,
            second, weight, bias, statistics, numbers, REDUCE, COMBINE, NONE, FOLD, MAP, HOLD,
            FINISH, OTHER, T, KIND == SPLIT_COLUMNS, RANK, STEPS, VECTOR, ALIGNED, ALIKE, SIDE,
            BLOCK, PIECES, EARLY, THREADS, SPLITS, PHASE,
        )  # fmt: skip
    elif (KIND == REDUCED_CHUNKS) | (KIND == MAPPED_CHUNKS):
        reduce_or_map_column_chunk(
            inputs, scratch, output, n, count, sizes, starts, strides, steps,
            REDUCE, COMBINE, NONE, FOLD, MAP, OTHER, T, KIND == MAPPED_CHUNKS, RANK, STEPS,
            VECTOR, ALIGNED, SIDE, BLOCK, THREADS,
        )  # fmt: skip
    elif (KIND == ROWS) | (KIND == COLUMNS):
        map_resident_rows(
            inputs, output, n, count, sizes, starts, strides, steps,
            second, weight, bias, statistics, numbers, REDUCE, COMBINE, MAP, HOLD, FINISH, OTHER, T,
            COLUMN, RANK, STEPS, VECTOR, ALIGNED, SIDE, BLOCK, PIECES, EARLY,
        )  # fmt: skip
    else:
        map_tiled_rows(
            inputs, output, n, count, sizes, starts, strides, steps,
            second, weight, bias, statistics, numbers, REDUCE, COMBINE, NONE, FOLD, MAP,
            HOLD, FINISH, OTHER, T, COLUMN, RANK, STEPS, VECTOR, ALIGNED, SIDE, BLOCK, THREADS,
        )  # fmt: skip
