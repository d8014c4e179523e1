"""An operation on rows: it reduces each row to a state, and then maps the row by it.

An operation is a set of @triton.jit functions on whole tiles. A state is a tuple of numbers.

    reduce(values, mask, length, AXIS, T)
                              the states of a tile's rows. `values` has a tile of each input,
                              `mask` tells which elements exist, `length` how many of a row
    combine(a, b, T)          the states of two parts of the same rows, as one
    none(zeros, T)            the states of no elements, in the shape of `zeros`
    fold(states, AXIS, T)     a tile of states combined along an axis, which is kept; with ALL, to
                              scalars
    map(states, values, T)    the output's tile, in the type that is computed in

For example, division by the sum of a row: `reduce` is `(tl.sum(values[0], AXIS, keep_dims=True),)`,
`combine` is `(a[0] + b[0],)`, `none` is `(zeros,)`, and `map` is `values[0] / states[0]`.

An operation on rows, not on columns, may also take a weight and a bias, the same for every row. Its
map(states, values, weight, bias, T) gets a tile of each, or None. Such an operation also has

    finish(states, n, numbers, T)
                              makes of the states of whole rows of n elements what `map` takes; the
                              kernel can store these statistics, one element for each row
    hold(values, T)           the one tile to keep in place of the inputs' tiles. It is stored as a
                              second output. An operation without it keeps the inputs

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
    """What `map` takes, from the states of whole rows. Stores it where `statistics` are given."""
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
