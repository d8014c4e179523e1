"""An operation on rows: it reduces each row to a state, and then maps the row by it.

An operation is a set of @triton.jit functions on whole tiles. A state is a tuple of numbers.

    reduce(pieces, masks, length, AXIS, T)
                              returns the states of rows that are held in pieces of one shape. Each
                              piece has a tile of every input, and a mask of the elements that
                              exist; True: all do. `length` counts those of a row.
    combine(a, b, T)          merges the states of two parts of the same rows.
    none(zeros, T)            returns the states of empty rows, shaped like `zeros`.
    fold(states, count, AXIS, T)
                              a tile of states combined along an axis, which is kept; with ALL, to
                              scalars. `count` is the number of elements that they are of.
    map(states, values, T)    the output's tile, in the type that is computed in

For example, division by the sum of a row: `reduce` is `(sum_along(total_of(pieces, T), AXIS),)`,
`combine` is `(a[0] + b[0],)`, `none` is `(zeros,)`, and `map` is `values[0] / states[0]`.

An operation on rows, not on columns, may also take a weight and a bias, the same for every row. Its
map(states, values, weight, bias, T) gets a tile of each, or None. Such an operation also has

    finish(states, n, numbers, T)
                              turns the states of whole rows of n elements into the statistics
                              that `map` takes. The kernel can store them, one element per row.
    hold(values, T)           returns the one tile that replaces the inputs' tiles. The kernel
                              stores it as a second output. Without `hold` the inputs are kept.

Twin of csrc/include/diglot/rows/operation.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.types import convert

from .tile import all_opaque, tile_pointers


@triton.jit
def store_statistic(pointer, value, offset, mask):
    """Stores one element for each row."""
    if len(value.shape) == 0:
        tl.store(pointer + offset, tl.broadcast_to(value, offset.shape), mask=mask)
    else:
        tl.store((pointer + offset)[:, None], value, mask=mask[:, None])


@triton.jit
def finish_rows(
    states, statistics, row, row_mask, n, sizes, start, strides, numbers,
    FINISH: tl.constexpr, T: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """The states that `map` takes, from the states of whole rows. Stores them if `statistics` are
    given.
    """
    results = states
    if FINISH is not None:
        results = FINISH(states, n, numbers, T)
        if statistics is not None:
            offset = strided_offset(row, sizes, start, strides, RANK, True)
            for k in tl.static_range(len(statistics)):
                store_statistic(statistics[k], results[k], offset, row_mask)
    return results


@triton.jit
def map_tile(
    output, second, weight, bias, values, states, start, step, index, mask,
    MAP: tl.constexpr, FINISH: tl.constexpr, T: tl.constexpr,
    COLUMN: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Maps and stores a tile. The second output, if there is one, gets the held tile itself."""
    values = all_opaque(values)
    if second is not None:
        pointers = tile_pointers(second, start, step, index, COLUMN, STEPS, VECTOR, ALIGNED)
        tl.store(pointers, values[0], mask=mask)
    if FINISH is None:
        result = MAP(states, values, T)
    else:
        result = MAP(states, values, weight, bias, T)
    pointers = tile_pointers(output, start, step, index, COLUMN, STEPS, VECTOR, ALIGNED)
    tl.store(pointers, convert(result, output.dtype.element_ty), mask=mask)
