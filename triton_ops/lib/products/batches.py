"""Tiles of matrices by descriptors. Those of a batch have three dimensions. A matrix that a batch
shares has two.
"""

import triton
import triton.language as tl


@triton.jit
def load_of(matrices, batch, row, column):
    """A tile of a batch's matrix, which begins at `row` and `column`."""
    SHAPE: tl.constexpr = matrices.block_shape
    if len(SHAPE) == 2:
        tile = matrices.load([row, column])
    else:
        tile = matrices.load([batch, row, column]).reshape(SHAPE[1], SHAPE[2])
    return tile


@triton.jit
def store_of(matrices, batch, row, column, values):
    """Stores a tile there."""
    if len(matrices.block_shape) == 2:
        matrices.store([row, column], values)
    else:
        values = values.reshape(1, values.shape[0], values.shape[1])
        matrices.store([batch, row, column], values)


@triton.jit
def matrix_of(pointer, batch, stride):
    """A pointer to a batch's matrix; a descriptor, or None, as it is."""
    if pointer is None or stride is None:
        result = pointer
    else:
        result = pointer + batch.to(tl.int64) * stride
    return result
