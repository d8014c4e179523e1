"""Dropout: kernels and launchers. Twin of csrc/ops/dropout.cu."""

import torch
import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.elementwise import plan_elementwise
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.numbers import number_halves
from diglot.triton_ops.launch.plan import NOTHING, Launch, Operand, Unseen
from diglot.triton_ops.lib.elementwise_kernels import elementwise_kernels
from diglot.triton_ops.lib.philox import philox_4x32, random_bits
from diglot.triton_ops.lib.types import compute_type, convert, number

PHILOX_BLOCK, PHILOX_WARPS = 128, 4


@triton.jit
def dropout(index, input, seed, numbers, OUT: tl.constexpr):
    """Elements times the scale where their random bits reach the threshold, else times zero.

    So a dropped NaN or infinity becomes NaN. `numbers`: the offset in two halves, the threshold and
    the scale in two halves.
    """
    COMPUTE: tl.constexpr = compute_type(OUT)
    RUN: tl.constexpr = input.numel // index.numel
    offset = number(numbers[0], numbers[1], tl.int64)
    bits = tl.reshape(random_bits(tl.load(seed), offset, index, RUN), input.shape)
    scale = number(numbers[3], numbers[4], COMPUTE)
    is_kept = bits >= tl.full((), numbers[2], tl.int64).to(tl.uint32)
    return convert(input.to(COMPUTE) * tl.where(is_kept, scale, 0.0), OUT)


dropout_flat, dropout_strided = elementwise_kernels(
    "dropout", dropout, ("input",), common=("seed",), numbers=5, indexed=True
)


@triton.jit
def philox_rows(rows, output, n, BLOCK: tl.constexpr):
    """Philox of n rows. Each has a counter of four words and a key of two, and gives four words."""
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
    """The kernels' numbers."""
    _, low = number_halves(threshold, torch.int64)
    return (*number_halves(offset, torch.int64), low, *number_halves(scale, torch.float64))


@launcher
def dropout_forward(
    input: Operand, seed: Operand, offset: Unseen, threshold: Unseen, scale: Unseen, out: Operand
) -> Plan:
    """out = input, dropped out by the mask of the seed and the offset."""
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
