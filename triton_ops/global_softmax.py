"""Softmax over all elements and its derivative: kernels and launchers. Twin of
csrc/ops/global_softmax.cu.
"""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.global_ import plan_chunks
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import ALL_PHASES, Operand
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
    combine_all_max_sums,
    combine_max_sum,
    exp_nonpositive_for,
    max_sum_of,
    thread_sums,
)
from diglot.triton_ops.lib.sync import grid_barrier
from diglot.triton_ops.lib.types import compute_type, convert


@triton.jit
def forward(x, max, factor, T: tl.constexpr):
    return convert(exp_nonpositive_for(x.to(compute_type(T)) - max, T) * factor, T)


@triton.jit
def backward(grad, y, total, T: tl.constexpr):
    COMPUTE: tl.constexpr = compute_type(T)
    return convert(y.to(COMPUTE) * (grad.to(COMPUTE) - total), T)


@triton.jit
def global_softmax_forward_phases(
    input, barrier_state, workspace, output, n, chunks, chunk_tiles,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, FOLD: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = output.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    tiles = count_tiles(chunks, chunk_tiles)
    held = tl.full((BLOCK,), -float("inf"), COMPUTE).to(T)
    if PHASE != 2:
        maxima = tl.full((THREADS,), -float("inf"), COMPUTE)
        sums = tl.full((THREADS,), 0.0, COMPUTE)
        for i in range(tiles):
            held = load_tile(
                input, tile_start(i, chunk_tiles, BLOCK), n, -float("inf"), ALIGNED, BLOCK
            )
            tile_maxima, tile_sums = max_sum_of(by_thread(held, T, BLOCK).to(COMPUTE), T)
            maxima, sums = combine_max_sum(maxima, sums, tile_maxima, tile_sums, T)
            if (i + 1) % chunk_tiles == 0:
                chunk = tl.program_id(0) + i // chunk_tiles * tl.num_programs(0)
                max, sum = combine_all_max_sums(maxima, sums, T)
                store_state(workspace, chunk, 0, max)
                store_state(workspace, chunk, 1, sum)
                maxima = tl.full((THREADS,), -float("inf"), COMPUTE)
                sums = tl.full((THREADS,), 0.0, COMPUTE)
    if PHASE == ALL_PHASES:
        grid_barrier.sync(barrier_state)
    if PHASE != 1:
        maxima = load_states(workspace, chunks, 0, -float("inf"), FOLD)
        sums = load_states(workspace, chunks, 1, 0.0, FOLD)
        # If nothing is greater than -inf, the result is NaN, as in PyTorch.
        max, sum = combine_all_max_sums(maxima, sums, T)
        factor = 1.0 / sum
        for later in range(tiles):
            start = tile_start(tiles - 1 - later, chunk_tiles, BLOCK)
            if (later > 0) | (PHASE == 2):
                held = load_tile(input, start, n, -float("inf"), ALIGNED, BLOCK)
            store_tile(output, start, n, forward(held, max, factor, T), ALIGNED, BLOCK)


@triton.jit
def global_softmax_backward_phases(
    grad_output, output, barrier_state, workspace, grad_input, n, chunks, chunk_tiles,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, FOLD: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = grad_input.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    tiles = count_tiles(chunks, chunk_tiles)
    grad = tl.full((BLOCK,), 0.0, COMPUTE).to(T)
    y = tl.full((BLOCK,), 0.0, COMPUTE).to(T)
    if PHASE != 2:
        sums = tl.full((THREADS,), 0.0, COMPUTE)
        for i in range(tiles):
            start = tile_start(i, chunk_tiles, BLOCK)
            grad = load_tile(grad_output, start, n, 0.0, ALIGNED, BLOCK)
            y = load_tile(output, start, n, 0.0, ALIGNED, BLOCK)
            sums += thread_sums(
                by_thread(grad, T, BLOCK).to(COMPUTE) * by_thread(y, T, BLOCK).to(COMPUTE)
            )
            if (i + 1) % chunk_tiles == 0:
                chunk = tl.program_id(0) + i // chunk_tiles * tl.num_programs(0)
                store_state(workspace, chunk, 0, tl.sum(sums))
                sums = tl.full((THREADS,), 0.0, COMPUTE)
    if PHASE == ALL_PHASES:
        grid_barrier.sync(barrier_state)
    if PHASE != 1:
        total = tl.sum(load_states(workspace, chunks, 0, 0.0, FOLD))
        for later in range(tiles):
            start = tile_start(tiles - 1 - later, chunk_tiles, BLOCK)
            if (later > 0) | (PHASE == 2):
                grad = load_tile(grad_output, start, n, 0.0, ALIGNED, BLOCK)
                y = load_tile(output, start, n, 0.0, ALIGNED, BLOCK)
            store_tile(grad_input, start, n, backward(grad, y, total, T), ALIGNED, BLOCK)


@launcher
def global_softmax_forward(input: Operand, blocks: int, out: Operand) -> Plan:
    """out = softmax(input); both lie in memory in one dense order."""
    return plan_chunks(global_softmax_forward_phases, (input,), 8, blocks, out)


@launcher
def global_softmax_backward(
    grad_output: Operand, output: Operand, blocks: int, out: Operand
) -> Plan:
    """out = output * (grad_output - sum(grad_output * output)); all in one dense order."""
    return plan_chunks(global_softmax_backward_phases, (grad_output, output), 4, blocks, out)
