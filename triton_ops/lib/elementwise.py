"""How an elementwise kernel walks its arrays: flat or strided.

Twin of csrc/include/diglot/elementwise.cuh and strides.cuh.
"""

import triton
import triton.language as tl


@triton.jit
def flat_start(head, BLOCK: tl.constexpr):
    """Index of the first element of this program: `head`, then BLOCK elements each."""
    return tl.program_id(0).to(tl.int64) * BLOCK + head


@triton.jit
def shifted(pointer, offset, ALIGNED: tl.constexpr):
    """pointer + offset, with the promise that it is a multiple of 16 bytes if ALIGNED.

    The sum is made here because a hint on a function's own parameter is lost when it is inlined.
    An array that is not given (None) stays so.
    """
    result = None
    if pointer is not None:
        result = pointer + offset
        if ALIGNED:
            result = tl.multiple_of(result, 16)
    return result


@triton.jit
def strided_index(n, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Linear indices of this program's BLOCK accesses, and which of them are below n."""
    if WIDE:
        index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    else:
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return index, index < n


@triton.jit
def strided_offset(index, sizes, start, strides, RANK: tl.constexpr, WIDE: tl.constexpr):
    """Offsets of the accesses with linear indices `index` in an array of these strides.

    Dimension 0 varies fastest; `start` is the offset of the first access.
    """
    INDEX: tl.constexpr = tl.int64 if WIDE else tl.int32
    offset = tl.full(index.shape, start, INDEX)
    rest = index
    for d in tl.static_range(RANK):
        stride = tl.full((), strides[d], INDEX)
        size = tl.full((), sizes[d], INDEX)
        if d + 1 < RANK:
            quotient = rest // size
            offset += (rest - quotient * size) * stride
            rest = quotient
        else:
            offset += rest * stride
    return offset


@triton.jit
def strided_pointers(pointer, at, VECTOR: tl.constexpr, ALIGNED: tl.constexpr):
    """A tile of pointers: to the VECTOR elements from each offset on, one access per row.

    With ALIGNED, the promise that every access starts at a multiple of 16 bytes.
    """
    first = pointer + at
    if ALIGNED:
        first = tl.multiple_of(first, 16)
    return first[:, None] + tl.arange(0, VECTOR)[None, :]


@triton.jit
def strided_load(
    pointer, at, mask, VECTOR: tl.constexpr, BROADCAST: tl.constexpr, ALIGNED: tl.constexpr
):
    """The tile of elements; with BROADCAST, an access has one element, repeated.

    None for an array that is not given.
    """
    values = None
    if pointer is not None:
        if BROADCAST:
            one = tl.load(pointer + at, mask=mask)
            values = tl.broadcast_to(one[:, None], (at.shape[0], VECTOR))
        else:
            values = tl.load(strided_pointers(pointer, at, VECTOR, ALIGNED), mask=mask[:, None])
    return values


@triton.jit
def strided_store(pointer, at, values, mask, VECTOR: tl.constexpr, ALIGNED: tl.constexpr):
    """Stores the tile of elements."""
    tl.store(strided_pointers(pointer, at, VECTOR, ALIGNED), values, mask=mask[:, None])
