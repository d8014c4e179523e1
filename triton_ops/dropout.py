"""Dropout: kernels and launchers. Twin of csrc/ops/dropout.cu."""

import torch
import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.elementwise_launch import plan_elementwise
from diglot.triton_ops.launch import launcher, number_halves
from diglot.triton_ops.lib.elementwise import (
    flat_start,
    shifted,
    strided_index,
    strided_load,
    strided_offset,
    strided_store,
)
from diglot.triton_ops.lib.philox import philox_4x32, random_bits
from diglot.triton_ops.lib.types import compute_type, convert, number
from diglot.triton_ops.plan import NOTHING, Launch, Operand, Unseen

PHILOX_BLOCK, PHILOX_WARPS = 128, 4


@triton.jit
def dropout(input, bits, threshold, scale_high, scale_low, OUT: tl.constexpr):
    """The elements whose random bits reach `threshold`, times the scale; the others times zero.

    Which leaves NaN of NaN and infinities.
    """
    COMPUTE: tl.constexpr = compute_type(OUT)
    scale = number(scale_high, scale_low, COMPUTE)
    is_kept = bits >= tl.full((), threshold, tl.int64).to(tl.uint32)
    return convert(input.to(COMPUTE) * tl.where(is_kept, scale, 0.0), OUT)


@triton.jit
def flat_bits(seed, offset, start, OUT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """The bits of BLOCK elements, made by the threads that make the 16-byte accesses to them."""
    RUN: tl.constexpr = 128 // OUT.primitive_bitwidth if ALIGNED else 4
    index = start + RUN * tl.arange(0, BLOCK // RUN)
    return tl.reshape(random_bits(tl.load(seed), offset, index[:, None], RUN), (BLOCK,))


@triton.jit
def dropout_flat(
    seed, input, output, n, head,
    offset_high, offset_low, threshold, scale_high, scale_low,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = output.dtype.element_ty
    start = flat_start(head, BLOCK)
    index = tl.arange(0, BLOCK)
    in_pointer = shifted(input, start, ALIGNED)
    out_pointer = shifted(output, start, ALIGNED)
    offset = number(offset_high, offset_low, tl.int64)
    if start + BLOCK <= n:
        x = tl.load(in_pointer + index)
        bits = flat_bits(seed, offset, start, OUT, ALIGNED, BLOCK)
        tl.store(out_pointer + index, dropout(x, bits, threshold, scale_high, scale_low, OUT))
    else:
        mask = index < n - start
        x = tl.load(in_pointer + index, mask=mask)
        bits = flat_bits(seed, offset, start, OUT, ALIGNED, BLOCK)
        result = dropout(x, bits, threshold, scale_high, scale_low, OUT)
        tl.store(out_pointer + index, result, mask=mask)


@triton.jit
def dropout_strided(
    seed, input, output, n,
    size0, size1, size2, size3, size4, size5, size6, size7,
    out_start, out0, out1, out2, out3, out4, out5, out6, out7,
    in_start, in0, in1, in2, in3, in4, in5, in6, in7,
    at_start, at0, at1, at2, at3, at4, at5, at6, at7,
    offset_high, offset_low, threshold, scale_high, scale_low,
    RANK: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr, BROADCAST: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = output.dtype.element_ty
    sizes = (size0, size1, size2, size3, size4, size5, size6, size7)
    index, mask = strided_index(n, BLOCK // VECTOR, WIDE)
    out_strides = (out0, out1, out2, out3, out4, out5, out6, out7)
    out_at = strided_offset(index, sizes, out_start, out_strides, RANK, WIDE)
    in_strides = (in0, in1, in2, in3, in4, in5, in6, in7)
    in_at = strided_offset(index, sizes, in_start, in_strides, RANK, WIDE)
    at_strides = (at0, at1, at2, at3, at4, at5, at6, at7)
    at = strided_offset(index, sizes, at_start, at_strides, RANK, WIDE)
    x = strided_load(input, in_at, mask, VECTOR, BROADCAST & 1, ALIGNED)
    offset = number(offset_high, offset_low, tl.int64)
    bits = random_bits(tl.load(seed), offset, at[:, None], VECTOR)
    result = dropout(x, bits, threshold, scale_high, scale_low, OUT)
    strided_store(output, out_at, result, mask, VECTOR, ALIGNED)


@triton.jit
def philox_rows(rows, output, n, BLOCK: tl.constexpr):
    """A counter of four words and a key of two in each of n rows; four words in each output row."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n
    in_pointer, out_pointer = rows + 6 * row, output + 4 * row
    counter0 = tl.load(in_pointer, mask=mask).to(tl.uint32, bitcast=True)
    counter1 = tl.load(in_pointer + 1, mask=mask).to(tl.uint32, bitcast=True)
    counter2 = tl.load(in_pointer + 2, mask=mask).to(tl.uint32, bitcast=True)
    counter3 = tl.load(in_pointer + 3, mask=mask).to(tl.uint32, bitcast=True)
    key0 = tl.load(in_pointer + 4, mask=mask).to(tl.uint32, bitcast=True)
    key1 = tl.load(in_pointer + 5, mask=mask).to(tl.uint32, bitcast=True)
    word0, word1, word2, word3 = philox_4x32(counter0, counter1, counter2, counter3, key0, key1)
    tl.store(out_pointer, word0.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out_pointer + 1, word1.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out_pointer + 2, word2.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out_pointer + 3, word3.to(tl.int32, bitcast=True), mask=mask)


def numbers(offset: int, threshold: int, scale: float) -> tuple[int, ...]:
    """What kernels take for these."""
    _, low = number_halves(threshold, torch.int64)
    return (*number_halves(offset, torch.int64), low, *number_halves(scale, torch.float64))


@launcher
def dropout_forward(
    input: Operand, seed: Operand, offset: Unseen, threshold: Unseen, scale: Unseen, out: Operand
) -> Plan:
    """out = input, dropped out: the mask is that of the seed and the offset."""
    return plan_elementwise(
        dropout_flat,
        dropout_strided,
        (input, out),
        numbers=numbers,
        common=(seed,),
        indexed=True,
    )


@launcher
def dropout_backward(
    grad_output: Operand,
    seed: Operand,
    offset: Unseen,
    threshold: Unseen,
    scale: Unseen,
    out: Operand,
) -> Plan:
    """out = grad_output, dropped out by the same mask."""
    return dropout_forward.planner(grad_output, seed, offset, threshold, scale, out)


@launcher
def philox_words(rows: Operand, out: Operand) -> Plan:
    """Philox of given counters and keys. `rows` is int32 [n, 6], `out` int32 [n, 4], contiguous."""
    n = out.shape[0]
    if n == 0:
        return NOTHING
    grid = (-(-n // PHILOX_BLOCK),)
    launch = Launch(philox_rows, grid, (rows, out), (n,), (PHILOX_BLOCK,), PHILOX_WARPS)
    return Plan("a row per element", (launch,), None)
