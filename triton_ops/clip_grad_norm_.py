"""The norm of many gradients, taken as one vector, and their scaling by it, in one launch: kernel
and launcher. Twin of csrc/ops/clip_grad_norm_.cu.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.global_ import (
    BARRIER,
    barrier_scratch,
    behind_barrier,
    compute_dtype,
)
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.numbers import number_halves
from diglot.triton_ops.launch.plan import ALL_PHASES, Launch, Operand, Unseen
from diglot.triton_ops.lib.chunks import (
    BFLOAT16,
    FLOAT16,
    FLOAT64,
    read_chunk,
    whole_blocks,
)
from diglot.triton_ops.lib.math import divide, fma, maximum, minimum, square_root
from diglot.triton_ops.lib.sync import grid_barrier
from diglot.triton_ops.lib.types import compute_type, convert, number

PARTIALS_BLOCK = tl.constexpr(2048)

# A norm is a fold over elements that begins with 0. These functions add an element to a fold,
# combine two folds, and make the norm of the fold of all elements.
SUM = tl.constexpr(1)
EUCLIDEAN = tl.constexpr(2)
MAXIMUM = tl.constexpr(3)
NORMS = {1.0: SUM.value, 2.0: EUCLIDEAN.value, math.inf: MAXIMUM.value}


@triton.constexpr_function
def block_elements(dtype):
    """Elements at a time: as many as an SM's registers hold for four programs."""
    return 1024 if dtype == tl.float64 else 4096


@triton.jit
def add_element(fold, x, NORM: tl.constexpr):
    if NORM == SUM:
        result = fold + tl.abs(x)
    elif NORM == EUCLIDEAN:
        result = fma(x, x, fold)
    else:
        result = maximum(fold, tl.abs(x))
    return result


@triton.jit
def combine(a, b, NORM: tl.constexpr):
    return maximum(a, b) if NORM == MAXIMUM else a + b


@triton.jit
def sum_of(a, b):
    return a + b


@triton.jit
def fold_block(folds, NORM: tl.constexpr):
    """The fold of a block of folds."""
    if NORM == MAXIMUM:
        fold = tl.reduce(folds, 0, maximum)
    else:
        fold = tl.reduce(folds, 0, sum_of)
    return fold


@triton.jit
def finish(fold, NORM: tl.constexpr):
    return square_root(fold) if NORM == EUCLIDEAN else fold


@triton.jit
def fold_elements(address, count, NORM: tl.constexpr, DTYPE: tl.constexpr):
    """The fold of a chunk."""
    COMPUTE: tl.constexpr = compute_type(DTYPE)
    BLOCK: tl.constexpr = block_elements(DTYPE)
    data, whole = whole_blocks(address, count, DTYPE, BLOCK)
    index = tl.arange(0, BLOCK)
    folds = tl.zeros((BLOCK,), COMPUTE)
    for first in range(0, whole, BLOCK):
        x = tl.load(tl.multiple_of(data + first, 16) + index)
        folds = add_element(folds, x.to(COMPUTE), NORM)
    if whole < count:
        x = tl.load(data + whole + index, mask=index < count - whole, other=0)
        folds = add_element(folds, x.to(COMPUTE), NORM)
    return fold_block(folds, NORM)


@triton.jit
def scale_elements(address, count, coefficient, DTYPE: tl.constexpr):
    """Scales a chunk."""
    COMPUTE: tl.constexpr = compute_type(DTYPE)
    BLOCK: tl.constexpr = block_elements(DTYPE)
    data, whole = whole_blocks(address, count, DTYPE, BLOCK)
    index = tl.arange(0, BLOCK)
    factor = coefficient.to(COMPUTE)
    for first in range(0, whole, BLOCK):
        pointers = tl.multiple_of(data + first, 16) + index
        tl.store(pointers, convert(factor * tl.load(pointers).to(COMPUTE), DTYPE))
    if whole < count:
        pointers = data + whole + index
        mask = index < count - whole
        scaled = factor * tl.load(pointers, mask=mask).to(COMPUTE)
        tl.store(pointers, convert(scaled, DTYPE), mask=mask)


@triton.jit
def fold_chunks(table, chunks, partials, NORM: tl.constexpr):
    """partials[chunk] = the fold of the chunk, for this program's chunks.

    A fold depends only on its chunk.
    """
    VALUE: tl.constexpr = partials.dtype.element_ty
    programs = tl.num_programs(0)
    start = tl.program_id(0).to(tl.int64)
    address, count, code, _ = read_chunk(table, chunks, start)
    for index in range(start, chunks, programs):
        next_address, next_count, next_code, _ = read_chunk(table, chunks, index + programs)
        if code == FLOAT16:
            fold = fold_elements(address, count, NORM, tl.float16).to(VALUE)
        elif code == BFLOAT16:
            fold = fold_elements(address, count, NORM, tl.bfloat16).to(VALUE)
        elif VALUE == tl.float64 and code == FLOAT64:
            fold = fold_elements(address, count, NORM, tl.float64).to(VALUE)
        else:
            fold = fold_elements(address, count, NORM, tl.float32).to(VALUE)
        tl.store(partials + index, fold)
        address, count, code = next_address, next_count, next_code


@triton.jit
def fold_partials(chunks, partials, NORM: tl.constexpr):
    """The fold of all partial results. Every program computes it, in the same order."""
    index = tl.arange(0, PARTIALS_BLOCK)
    folds = tl.zeros((PARTIALS_BLOCK,), partials.dtype.element_ty)
    for first in range(0, chunks, PARTIALS_BLOCK):
        loaded = tl.load(partials + first + index, mask=first + index < chunks, other=0)
        folds = combine(folds, loaded, NORM)
    return fold_block(folds, NORM)


@triton.jit
def scale_chunks(table, chunks, coefficient):
    """Scales this program's chunks from the last one on: the chunks read last are still in the
    cache.
    """
    VALUE: tl.constexpr = coefficient.dtype
    programs = tl.num_programs(0)
    start = tl.program_id(0).to(tl.int64)
    last = start + (tl.cdiv(chunks - start, programs) - 1) * programs
    address, count, code, is_repeated = read_chunk(table, chunks, last)
    for step in range(start, chunks, programs):
        following = last - (step - start) - programs
        next_address, next_count, next_code, next_repeated = read_chunk(table, chunks, following)
        if is_repeated:
            count = 0
        if code == FLOAT16:
            scale_elements(address, count, coefficient, tl.float16)
        elif code == BFLOAT16:
            scale_elements(address, count, coefficient, tl.bfloat16)
        elif VALUE == tl.float64 and code == FLOAT64:
            scale_elements(address, count, coefficient, tl.float64)
        else:
            scale_elements(address, count, coefficient, tl.float32)
        address, count, code, is_repeated = next_address, next_count, next_code, next_repeated


@triton.jit
def clip_grad_norm_phases(
    table, partials, barrier_state, total, chunks, max_norm_high, max_norm_low,
    NORM: tl.constexpr, ERROR_IF_NONFINITE: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    VALUE: tl.constexpr = partials.dtype.element_ty
    if PHASE != 2:
        fold_chunks(table, chunks, partials, NORM)
    if PHASE == ALL_PHASES:
        grid_barrier.sync(barrier_state)
    if PHASE != 1:
        norm = finish(fold_partials(chunks, partials, NORM), NORM)
        rounded = convert(norm, total.dtype.element_ty)
        if tl.program_id(0) == 0:
            tl.store(total, rounded)
        max_norm = number(max_norm_high, max_norm_low, VALUE)
        one = tl.full((), 1, VALUE)
        coefficient = minimum(divide(max_norm, norm + tl.full((), 1e-6, VALUE)), one)
        is_scaled = coefficient != 1
        if ERROR_IF_NONFINITE:
            seen = rounded.to(VALUE)
            is_scaled = is_scaled & (seen - seen == 0)  # neither infinite nor NaN
        if is_scaled:
            scale_chunks(table, chunks, coefficient)


def numbers(grads: Any, max_norm: float) -> tuple[int, ...]:
    """The kernel's numbers. The table leads to the gradients, so their list is ignored."""
    return number_halves(max_norm, torch.float64)


@launcher
def clip_grad_norm(
    grads: Unseen,
    table: Operand,
    max_norm: Unseen,
    norm_type: float,
    error_if_nonfinite: bool,
    blocks: int,
    total: Operand,
) -> Plan:
    """Scales `grads` in place and writes their norm to `total`.

    The kernel finds the gradients by `table`. It runs `blocks` programs; 0 leaves the number to the
    planner.
    """
    chunks, tuned = table.shape[0], total.device.tuned
    programs = tuned("clip_grad_norm.triton.programs")
    partials = behind_barrier(compute_dtype(total.dtype), chunks)
    launch = Launch(
        clip_grad_norm_phases,
        (total.device.programs(blocks or max(chunks, 1), programs),),
        (table, partials, BARRIER, total),
        (chunks,),
        (NORMS[norm_type], error_if_nonfinite),
        tuned("clip_grad_norm.triton.warps"),
        numbers,
        phases=2,
        per_multiprocessor=programs,
    )
    return Plan("one launch", (launch,), barrier_scratch(partials))
