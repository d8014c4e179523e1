"""How an elementwise kernel walks its arrays: flat or strided.

A kernel calls `map_flat` or `map_strided` with the op's function, a @triton.jit function of

    (*elements, *parameters, OUT, *constants)

`elements` has a tile of each input, OUT is the output's element type, and the result is a tile of
that type. `parameters` are runtime values of the kernel, `constants` its compile-time arguments.
With INDEXED the function also takes, before the elements, the row-major index at which each run of
neighbouring elements begins, of shape [runs, 1].

Twin of csrc/include/diglot/elementwise.cuh and strides.cuh.
"""

import triton
import triton.language as tl

HEAD = tl.constexpr(16)  # more than the elements before an array's first 16-byte boundary


@triton.jit
def map_flat(
    FUNCTION: tl.constexpr, inputs, output, n, head, parameters, constants,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, INDEXED: tl.constexpr = False,
):  # fmt: skip
    """output = FUNCTION(inputs) for elements below n: BLOCK of them, and the first program's head.

    Behind the first `head` elements every array is at a multiple of 16 bytes, as ALIGNED promises.
    With INDEXED there is no head: it would shift every access.
    """
    start = flat_start(head, BLOCK)
    index = tl.arange(0, BLOCK)
    pointers = ()
    for i in tl.static_range(len(inputs)):
        pointers += (shifted(inputs[i], start, ALIGNED),)  # type: ignore[assignment]
    out_pointer = shifted(output, start, ALIGNED)
    RUN: tl.constexpr = 128 // output.dtype.element_ty.primitive_bitwidth if ALIGNED else 4
    # Whole programs take no mask: it would split their 16-byte accesses.
    if start + BLOCK <= n:
        map_tile(
            FUNCTION, pointers, out_pointer, index, None, start, parameters, constants,
            RUN if INDEXED else 0,
        )  # fmt: skip
    else:
        map_tile(
            FUNCTION, pointers, out_pointer, index, index < n - start, start, parameters, constants,
            RUN if INDEXED else 0,
        )  # fmt: skip
    if not INDEXED:
        if (tl.program_id(0) == 0) & (head > 0):
            element = tl.arange(0, HEAD)
            map_tile(FUNCTION, inputs, output, element, element < head, 0, parameters, constants, 0)


@triton.jit
def map_tile(
    FUNCTION: tl.constexpr, inputs, output, index, mask, start, parameters, constants,
    RUN: tl.constexpr,
):  # fmt: skip
    """Maps the elements at these offsets from the pointers; runs of RUN elements have an index."""
    OUT: tl.constexpr = output.dtype.element_ty
    values = ()
    for i in tl.static_range(len(inputs)):
        values += (tl.load(inputs[i] + index, mask=mask),)  # type: ignore[assignment]
    # With a mask, or with random bits, registers are scarce, so the address is computed only after
    # the arithmetic.
    if mask is None and RUN == 0:
        address = output + index
    if RUN > 0:
        # The thread that accesses a run of 16 bytes also computes the values that depend on its
        # index.
        first = start + RUN * tl.arange(0, index.shape[0] // RUN)
        result = FUNCTION(first[:, None], *values, *parameters, OUT, *constants)
    else:
        result = FUNCTION(*values, *parameters, OUT, *constants)
    if mask is not None or RUN > 0:
        address = output + index
    tl.store(address, result, mask=mask)


@triton.jit
def map_strided(
    FUNCTION: tl.constexpr, inputs, output, n, sizes, starts, strides, parameters, constants,
    RANK: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr, BROADCAST: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, INDEXED: tl.constexpr = False,
):  # fmt: skip
    """`map_flat` over strided arrays: n, sizes and strides count accesses of VECTOR elements.

    `starts` and `strides` are those of the output, of each input and, with INDEXED, of the
    row-major index. Bit i of BROADCAST: an access to input i has one element, repeated.
    """
    OUT: tl.constexpr = output.dtype.element_ty
    index, mask = strided_index(n, BLOCK // VECTOR, WIDE)
    offsets = ()
    for i in tl.static_range(len(starts)):
        offsets += (strided_offset(index, sizes, starts[i], strides[i], RANK, WIDE),)  # type: ignore[assignment]
    values = ()
    for i in tl.static_range(len(inputs)):
        values += (  # type: ignore[assignment]
            strided_load(inputs[i], offsets[1 + i], mask, VECTOR, BROADCAST & (1 << i), ALIGNED),
        )
    if INDEXED:
        first = offsets[1 + len(inputs)]  # type: ignore[var-annotated]
        result = FUNCTION(first[:, None], *values, *parameters, OUT, *constants)
    else:
        result = FUNCTION(*values, *parameters, OUT, *constants)
    strided_store(output, offsets[0], result, mask, VECTOR, ALIGNED)  # type: ignore[misc]


@triton.jit
def flat_start(head, BLOCK: tl.constexpr):
    """Index of the first element of this program: `head`, then BLOCK elements each."""
    return tl.program_id(0).to(tl.int64) * BLOCK + head


@triton.jit
def shifted(pointer, offset, ALIGNED: tl.constexpr):
    """pointer + offset, promised to be a multiple of 16 bytes if ALIGNED.

    The sum is made here because inlining loses a hint on a function's own parameter. None stays
    None.
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
def strided_pointers(pointer, offset, VECTOR: tl.constexpr, ALIGNED: tl.constexpr):
    """A tile of pointers: to the VECTOR elements from each offset on, one access per row.

    ALIGNED promises that every access starts at a multiple of 16 bytes.
    """
    first = pointer + offset
    if ALIGNED:
        first = tl.multiple_of(first, 16)
    return first[:, None] + tl.arange(0, VECTOR)[None, :]


@triton.jit
def strided_load(
    pointer, offset, mask, VECTOR: tl.constexpr, BROADCAST: tl.constexpr, ALIGNED: tl.constexpr
):
    """The tile of elements; with BROADCAST, an access has one element, repeated.

    None for an absent array.
    """
    values = None
    if pointer is not None:
        if BROADCAST:
            one = tl.load(pointer + offset, mask=mask)
            values = tl.broadcast_to(one[:, None], (offset.shape[0], VECTOR))
        else:
            values = tl.load(strided_pointers(pointer, offset, VECTOR, ALIGNED), mask=mask[:, None])
    return values


@triton.jit
def strided_store(pointer, offset, values, mask, VECTOR: tl.constexpr, ALIGNED: tl.constexpr):
    """Stores the tile of elements."""
    tl.store(strided_pointers(pointer, offset, VECTOR, ALIGNED), values, mask=mask[:, None])
