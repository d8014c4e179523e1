"""Tiles of matrices by descriptors, of a batch of at most two dimensions. A descriptor has those of
them along which its matrices differ.
"""

import triton
import triton.language as tl


@triton.jit
def numbers_in_batch(index, inner, IS_OUTER: tl.constexpr):
    """A matrix's numbers along the two dimensions of a batch, for `load_of` and `store_of`.

    Args:
        index: of the matrix.
        inner: matrices along the second dimension; None where there is no first.
        IS_OUTER: whether the operand's matrices differ along the first dimension alone.
    """
    if inner is None:
        numbers = index, index
    elif IS_OUTER:
        numbers = index // inner, index // inner
    else:
        numbers = index // inner, index % inner
    return numbers


@triton.jit
def load_of(matrices, numbers, row, column):
    """A tile of a matrix, which begins at `row` and `column`."""
    SHAPE: tl.constexpr = matrices.block_shape
    if len(SHAPE) == 2:
        tile = matrices.load([row, column])
    elif len(SHAPE) == 3:
        tile = matrices.load([numbers[1], row, column]).reshape(SHAPE[1], SHAPE[2])
    else:
        tile = matrices.load([numbers[0], numbers[1], row, column]).reshape(SHAPE[2], SHAPE[3])
    return tile


@triton.jit
def store_of(matrices, numbers, row, column, values):
    """Stores a tile there."""
    if len(matrices.block_shape) == 2:
        matrices.store([row, column], values)
    elif len(matrices.block_shape) == 3:
        values = values.reshape(1, values.shape[0], values.shape[1])
        matrices.store([numbers[1], row, column], values)
    else:
        values = values.reshape(1, 1, values.shape[0], values.shape[1])
        matrices.store([numbers[0], numbers[1], row, column], values)


@triton.jit
def offset_of(index, inner, steps):
    """Where a matrix of the batch begins behind a pointer; 0 for a descriptor.

    Args:
        steps: from a matrix to the next, along the first dimension and the second.
    """
    if steps[1] is None:
        result = 0
    elif inner is None:
        result = index.to(tl.int64) * steps[1]
    else:
        outer, within = (index // inner).to(tl.int64), (index % inner).to(tl.int64)
        result = outer * steps[0] + within * steps[1]
    return result
