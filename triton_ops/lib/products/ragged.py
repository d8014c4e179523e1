"""Tiles of a run of a matrix's rows, by a descriptor of the whole matrix: TMA reads zeros behind
the run's end, and stores nothing there. The host knows no run when it makes the descriptor.

A `ragged` descriptor (launch/grouped_products.py) has two dimensions more. With the coordinates
below, a run ends where its third dimension does. The first dimension takes the address back again,
for addresses have 64 bits and wrap around. triton.tools.ragged_tma does the same.
"""

import triton
import triton.language as tl

RUN = tl.constexpr(1 << 30)  # rows of a run, at most


@triton.jit
def load_ragged(matrix, begin, end, row, column):
    """A tile, from a row of the run [begin, end) on, and from a column on."""
    SHAPE: tl.constexpr = matrix.block_shape
    tile = matrix.load([RUN, end, RUN - (end - begin) + row, column])
    return tile.reshape(SHAPE[2], SHAPE[3])


@triton.jit
def store_ragged(matrix, begin, end, row, column, values):
    """Stores a tile there."""
    values = values.reshape(1, 1, values.shape[0], values.shape[1])
    matrix.store([RUN, end, RUN - (end - begin) + row, column], values)
