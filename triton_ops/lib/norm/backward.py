"""The backward pass of a norm: definitions that its variants share.

Groups split the rows among them. Each group sums the gradients of weight and bias over its rows,
and writes the sums to a workspace. Another launch adds the groups' sums (group_sums.py). A group is
one program, or several that split a row (backward_resident.py), or one that reads its rows in two
passes (backward_streaming.py).

    y = (x - mean) * rstd, or x * rstd      h = grad * weight
    grad_input = rstd * (h - mean(h) - y * mean(h y)), where mean(h) is left out without a mean
    grad_weight = sum(grad * y), grad_bias = sum(grad), over rows

Twin of csrc/include/diglot/norm/backward.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.math import fma, negate
from diglot.triton_ops.lib.rows.tile import LOADS, tile_pointers
from diglot.triton_ops.lib.types import convert, opaque, widen


@triton.jit
def centered(x, mean):
    """x - mean, of tiles; mean is None in a norm without a mean."""
    return x if mean is None else x - mean


@triton.jit
def scaled(grad, scale):
    """h."""
    return grad if scale is None else grad * widen(opaque(scale), grad.dtype)


@triton.jit
def gradient_of(y, h, rstd, mean_h, mean_hy):
    """rstd * (h - mean_h - y * mean_hy), in two steps for each element."""
    result = h * rstd if mean_h is None else fma(h, rstd, negate(rstd * mean_h))
    return fma(y, negate(rstd * mean_hy), result)


@triton.jit
def load_statistic(pointer, offset, mask):
    """A number for each row, as a column; None if there is no array."""
    value = None
    if pointer is not None:
        value = tl.load(pointer + offset, mask=mask, other=0.0)[:, None]
    return value


@triton.jit
def load_rows(
    pointer, row, index, mask, sizes, start, strides,
    RANK: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A tile of an array; None if there is no array."""
    tile = None
    if pointer is not None:
        offset = strided_offset(row, sizes, start, strides, RANK, True)
        tile = tl.load(
            tile_pointers(pointer, offset, 1, index, False, False, VECTOR, ALIGNED),
            mask=mask, other=0.0, eviction_policy=LOADS,
        )  # fmt: skip
    return tile


@triton.jit
def store_gradient(
    grad_input, grad_sum, y, h, factor, mean_h, mean_hy, start, sum_start, index, mask,
    T: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr, loaded=None,
):  # fmt: skip
    """Stores a tile of grad_input, whose rows begin at `start`. Adds the sum's own gradient, which
    begins at `sum_start`, if there is one; `loaded` is its tile, unless it must be loaded.
    """
    result = gradient_of(y, h, factor, mean_h, mean_hy)
    if loaded is not None:
        result += widen(opaque(loaded), result.dtype)
    elif grad_sum is not None:
        pointers = tile_pointers(grad_sum, sum_start, 1, index, False, False, VECTOR, ALIGNED)
        tile = tl.load(pointers, mask=mask, other=0.0, eviction_policy=LOADS)
        result += tile.to(result.dtype)
    pointers = tile_pointers(grad_input, start, 1, index, False, False, VECTOR, ALIGNED)
    tl.store(pointers, convert(result, T), mask=mask)
