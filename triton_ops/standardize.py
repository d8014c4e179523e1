"""Standardization over all elements and its derivative: kernels and launchers. Twin of
csrc/ops/standardize.cu.
"""

import torch
import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.global_ import plan_chunks
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.numbers import numbers_of
from diglot.triton_ops.launch.plan import ALL_PHASES, Operand, Unseen
from diglot.triton_ops.lib.math import fma, negate, reciprocal_root
from diglot.triton_ops.lib.reduce.global_ import (
    THREADS,
    by_thread,
    count_tiles,
    load_states,
    load_tile,
    store_state,
    store_tile,
    tile_start,
)
from diglot.triton_ops.lib.reduce.states import (
    combine_all_moments,
    combine_moments,
    moments_of,
    thread_sums,
)
from diglot.triton_ops.lib.sync import grid_barrier
from diglot.triton_ops.lib.types import compute_type, convert, number


@triton.jit
def forward(x, center, factor, T: tl.constexpr):
    return convert((x.to(compute_type(T)) - center) * factor, T)


@triton.jit
def backward(grad, x, center, factor, grad_mean, slope, T: tl.constexpr):
    COMPUTE: tl.constexpr = compute_type(T)
    y = (x.to(COMPUTE) - center) * factor
    return convert(factor * fma(y, negate(slope), grad.to(COMPUTE) - grad_mean), T)


@triton.jit
def standardize_forward_phases(
    input, statistics, barrier_state, workspace, output, n, chunks, chunk_tiles, eps_high, eps_low,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, FOLD: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = output.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    tiles = count_tiles(chunks, chunk_tiles)
    held = tl.full((BLOCK,), 0.0, COMPUTE).to(T)
    if PHASE != 2:
        counts = tl.full((THREADS,), 0.0, COMPUTE)
        centers = tl.full((THREADS,), 0.0, COMPUTE)
        squares = tl.full((THREADS,), 0.0, COMPUTE)
        for i in range(tiles):
            start = tile_start(i, chunk_tiles, BLOCK)
            held = load_tile(input, start, n, 0.0, ALIGNED, BLOCK)
            x = by_thread(held, T, BLOCK).to(COMPUTE)
            tile_counts, tile_centers, tile_squares = moments_of(x, n - start)
            counts, centers, squares = combine_moments(
                counts, centers, squares, tile_counts, tile_centers, tile_squares
            )
            if (i + 1) % chunk_tiles == 0:
                chunk = tl.program_id(0) + i // chunk_tiles * tl.num_programs(0)
                count = tl.sum(counts)
                center, total = combine_all_moments(counts, centers, squares, count)
                store_state(workspace, chunk, 0, count)
                store_state(workspace, chunk, 1, center)
                store_state(workspace, chunk, 2, total)
                counts = tl.full((THREADS,), 0.0, COMPUTE)
                centers = tl.full((THREADS,), 0.0, COMPUTE)
                squares = tl.full((THREADS,), 0.0, COMPUTE)
    if PHASE == ALL_PHASES:
        grid_barrier.sync(barrier_state)
    if PHASE != 1:
        count = n.to(COMPUTE)
        center, total = combine_all_moments(
            load_states(workspace, chunks, 0, 0.0, FOLD),
            load_states(workspace, chunks, 1, 0.0, FOLD),
            load_states(workspace, chunks, 2, 0.0, FOLD),
            count,
        )
        factor = reciprocal_root(total / count + number(eps_high, eps_low, COMPUTE))
        if tl.program_id(0) == 0:
            tl.store(statistics, center)
            tl.store(statistics + 1, factor)
        for later in range(tiles):
            start = tile_start(tiles - 1 - later, chunk_tiles, BLOCK)
            if (later > 0) | (PHASE == 2):
                held = load_tile(input, start, n, 0.0, ALIGNED, BLOCK)
            store_tile(output, start, n, forward(held, center, factor, T), ALIGNED, BLOCK)


@triton.jit
def standardize_backward_phases(
    grad_output, input, statistics, barrier_state, workspace, grad_input, n, chunks, chunk_tiles,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, FOLD: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = grad_input.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    tiles = count_tiles(chunks, chunk_tiles)
    center = tl.load(statistics)
    factor = tl.load(statistics + 1)
    grad = tl.full((BLOCK,), 0.0, COMPUTE).to(T)
    x = tl.full((BLOCK,), 0.0, COMPUTE).to(T)
    if PHASE != 2:
        sums = tl.full((THREADS,), 0.0, COMPUTE)
        products = tl.full((THREADS,), 0.0, COMPUTE)
        for i in range(tiles):
            start = tile_start(i, chunk_tiles, BLOCK)
            grad = load_tile(grad_output, start, n, 0.0, ALIGNED, BLOCK)
            x = load_tile(input, start, n, 0.0, ALIGNED, BLOCK)
            wide = by_thread(grad, T, BLOCK).to(COMPUTE)
            sums += thread_sums(wide)
            products += thread_sums(wide * ((by_thread(x, T, BLOCK).to(COMPUTE) - center) * factor))
            if (i + 1) % chunk_tiles == 0:
                chunk = tl.program_id(0) + i // chunk_tiles * tl.num_programs(0)
                store_state(workspace, chunk, 0, tl.sum(sums))
                store_state(workspace, chunk, 1, tl.sum(products))
                sums = tl.full((THREADS,), 0.0, COMPUTE)
                products = tl.full((THREADS,), 0.0, COMPUTE)
    if PHASE == ALL_PHASES:
        grid_barrier.sync(barrier_state)
    if PHASE != 1:
        grad_mean = tl.sum(load_states(workspace, chunks, 0, 0.0, FOLD)) / n.to(COMPUTE)
        slope = tl.sum(load_states(workspace, chunks, 1, 0.0, FOLD)) / n.to(COMPUTE)
        for later in range(tiles):
            start = tile_start(tiles - 1 - later, chunk_tiles, BLOCK)
            if (later > 0) | (PHASE == 2):
                grad = load_tile(grad_output, start, n, 0.0, ALIGNED, BLOCK)
                x = load_tile(input, start, n, 0.0, ALIGNED, BLOCK)
            result = backward(grad, x, center, factor, grad_mean, slope, T)
            store_tile(grad_input, start, n, result, ALIGNED, BLOCK)


@launcher
def standardize_forward(
    input: Operand, eps: Unseen, blocks: int, statistics: Operand, out: Operand
) -> Plan:
    """out = (input - mean) * rstd, and the statistics, mean and rstd; input and out in one dense
    order.
    """
    return plan_chunks(
        standardize_forward_phases,
        (input,),
        8,
        blocks,
        out,
        (statistics,),
        numbers_of(torch.float64),
    )


@launcher
def standardize_backward(
    grad_output: Operand, input: Operand, statistics: Operand, blocks: int, out: Operand
) -> Plan:
    """The gradient of the input, from the forward's mean and rstd; all in one dense order."""
    inputs = (grad_output, input)
    return plan_chunks(standardize_backward_phases, inputs, 4, blocks, out, (statistics,))
