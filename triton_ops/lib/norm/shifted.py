"""Copies of a norm's weight and bias for peeled rows (rows/pieces.py), which begin between
multiples of 16 bytes.

Copy number s belongs to rows that begin s elements past such a multiple: its first element lies
there, too, so what belongs to an access of the row is one access.
"""

import triton
import triton.language as tl


@triton.jit
def copy_length(n, VECTOR: tl.constexpr):
    """Elements from one copy to the next: whole accesses, of the copy that is shifted most."""
    return (n + 2 * VECTOR - 2) // VECTOR * VECTOR


@triton.jit
def shifted_copies(
    weight, bias, weight_copies, bias_copies, n, VECTOR: tl.constexpr, BLOCK: tl.constexpr
):
    """Writes VECTOR copies of the weight and of the bias. Each may be None, and so its copies."""
    length = copy_length(n, VECTOR)
    programs = (length + BLOCK - 1) // BLOCK  # of a copy
    program = tl.program_id(0).to(tl.int64)
    shift, block = program // programs, program % programs
    index = block * BLOCK + tl.arange(0, BLOCK)
    if weight is not None:
        _copy_shifted(weight, weight_copies, n, length, shift, index)
    if bias is not None:
        _copy_shifted(bias, bias_copies, n, length, shift, index)


@triton.jit
def _copy_shifted(parameter, copies, n, length, shift, index):
    source = index - shift
    values = tl.load(parameter + source, mask=(source >= 0) & (source < n), other=0.0)
    tl.store(copies + shift * length + index, values, mask=index < length)


@triton.jit
def copy_for(copies, shift, n, VECTOR: tl.constexpr):
    """Where the copy for rows with this shift begins; None of None."""
    first = None
    if copies is not None:
        SIZE: tl.constexpr = copies.dtype.element_ty.primitive_bitwidth // 8
        first = copies + shift.to(tl.int64) * copy_length(n, VECTOR).to(tl.int64)
        first = tl.multiple_of(first, min(16, VECTOR * SIZE))
    return first
