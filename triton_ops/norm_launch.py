"""The backward pass of a norm: kernels, and how they are launched. Twin of
csrc/include/diglot/norm_backward_launch.h.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from diglot.triton_ops.launch import ALL_PHASES, launch, launch_cooperatively, most_programs
from diglot.triton_ops.lib.norm_backward import sum_groups, walk_rows, walk_rows_in_tiles
from diglot.triton_ops.row_launch import ACCESS_BYTES, ROW_RANK, RowShare, _power_of_2, rows_of

# Of the forward pass, by the bytes of an element and whether there is a residual: warps, and
# registers of a thread.
NARROW = {2048: (2, None), 8192: (4, None)}
WIDE = {1024: (1, None), 2048: (4, None), 8192: (16, None)}
FORWARD = {
    (2, False): RowShare(16384, NARROW | {16384: (8, None), 32768: (32, None)}, (16384, 4, 3)),
    (2, True): RowShare(16384, NARROW | {16384: (16, None), 32768: (32, None)}, (32768, 8, 2)),
    (4, False): RowShare(16384, WIDE | {16384: (16, 64), 32768: (32, None)}, (16384, 4, 3)),
    (4, True): RowShare(16384, WIDE | {16384: (32, None), 32768: (32, None)}, (32768, 8, 2)),
    (8, False): RowShare(0, {}, (16384, 8, 2)),
    (8, True): RowShare(0, {}, (32768, 8, 2)),
}
# An RMS norm needs fewer registers for a thread that has more.
WITHOUT_MEAN = FORWARD | {
    (4, False): RowShare(16384, WIDE | {16384: (8, 128), 32768: (32, None)}, (16384, 4, 3))
}
GROUPS = 264  # without a workspace, which says how many there are at most
# Of the partial sums of a gradient: groups and columns of a tile, and warps.
SUMMED_GROUPS, SUMMED_COLUMNS, SUMMING_WARPS = 64, 32, 8
REGISTERS = 65536  # of a multiprocessor


class Share(NamedTuple):
    """How a program walks its rows.

    Attributes:
        held: elements of all arrays' tiles that it holds at most.
        warps: of a program.
        stages: of loads in flight.
        groups: programs, or groups of them, at most.
    """

    held: int
    warps: int
    stages: int
    groups: int


# By the bytes of an element, for rows of so many elements at most.
ALONE = {
    2: {2048: Share(4096, 4, 3, 264), 4096: Share(4096, 8, 3, 264), 8192: Share(8192, 8, 3, 132)},
    4: {2048: Share(4096, 8, 2, 264), 4096: Share(4096, 16, 3, 132), 8192: Share(8192, 16, 2, 132)},
    8: {1024: Share(1024, 8, 2, 264), 2048: Share(2048, 16, 2, 132)},
}
# Longer rows are shared: elements of a row that one program has, rows at a time, warps, stages,
# programs on a multiprocessor, and LATE of `walk_rows`. Of the longest, so that fewer wait.
SHARED = {2: (4096, 1, 4, 3, 2, 1), 4: (2048, 1, 8, 3, 2, 1), 8: (2048, 1, 16, 2, 1, 0)}
SHARED_LONG = {2: (8192, 1, 8, 3, 1, 1), 4: (4096, 1, 8, 3, 1, 1), 8: (2048, 1, 16, 2, 1, 0)}
LONG = 131072
TILES = {2: 4096, 4: 2048, 8: 1024}
TILE_WARPS = 8


@triton.jit
def norm_backward_rows(
    grad_output, grad_sum, input, mean, rstd, weight, workspace, words, grad_input,
    n, count, groups, size0, size1, size2,
    out_start, out0, out1, out2,
    grad_start, grad0, grad1, grad2,
    sum_start, sum0, sum1, sum2,
    in_start, in0, in1, in2,
    rstd_start, rstd0, rstd1, rstd2,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    KEEP: tl.constexpr, STAGES: tl.constexpr, SHARES: tl.constexpr, LATE: tl.constexpr,
    PHASE: tl.constexpr,
):  # fmt: skip
    walk_rows(
        grad_output, grad_sum, input, mean, rstd, weight, workspace, words, grad_input,
        n, count, groups, (size0, size1, size2),
        (out_start, grad_start, sum_start, in_start, rstd_start),
        ((out0, out1, out2), (grad0, grad1, grad2), (sum0, sum1, sum2), (in0, in1, in2),
         (rstd0, rstd1, rstd2)),
        WEIGHT, BIAS, LATER, RANK, VECTOR, ALIGNED, SIDE, BLOCK, KEEP, STAGES, SHARES, LATE,
        PHASE,
    )  # fmt: skip


@triton.jit
def norm_backward_tiles(
    grad_output, grad_sum, input, mean, rstd, weight, workspace, grad_input,
    n, count, groups, size0, size1, size2,
    out_start, out0, out1, out2,
    grad_start, grad0, grad1, grad2,
    sum_start, sum0, sum1, sum2,
    in_start, in0, in1, in2,
    rstd_start, rstd0, rstd1, rstd2,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    walk_rows_in_tiles(
        grad_output, grad_sum, input, mean, rstd, weight, workspace, grad_input,
        n, count, groups, (size0, size1, size2),
        (out_start, grad_start, sum_start, in_start, rstd_start),
        ((out0, out1, out2), (grad0, grad1, grad2), (sum0, sum1, sum2), (in0, in1, in2),
         (rstd0, rstd1, rstd2)),
        WEIGHT, BIAS, LATER, RANK, VECTOR, ALIGNED, BLOCK, THREADS,
    )  # fmt: skip


@triton.jit
def norm_backward_sums(
    grad_weight, grad_bias, workspace, n, groups, room, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.program_id(0).to(tl.int64) * BLOCK
    if grad_weight is not None:
        sum_groups(workspace, grad_weight, 0, n, groups, room, column, ROWS, BLOCK)
    if grad_bias is not None:
        field: tl.constexpr = 0 if grad_weight is None else 1
        sum_groups(workspace, grad_bias, field, n, groups, room, column, ROWS, BLOCK)


def _alone(n: int, size: int) -> Share | None:
    return next((share for most, share in ALONE[size].items() if n <= most), None)


def _shared(n: int, size: int) -> tuple[int, int, int, int, int, int]:
    return (SHARED if n < LONG else SHARED_LONG)[size]


def row_share(size: int, has_residual: bool, has_mean: bool) -> RowShare:
    """How rows of the forward pass are shared out."""
    return (FORWARD if has_mean else WITHOUT_MEAN)[size, has_residual]


def count_words(input: torch.Tensor) -> int:
    """Words that `launch_norm_backward` takes for what programs tell each other; 0 if they share no
    rows, or cannot wait.
    """
    n, size = input.shape[-1], input.element_size()
    if _alone(n, size) is not None:
        return 0
    held, side, _, _, per, _ = _shared(n, size)
    shares = -(-n // held)
    rows = -(-(input.numel() // n) // side) * side
    return rows * shares * 2 if shares <= most_programs(input, per) else 0


def launch_norm_backward(
    grad_output: torch.Tensor,
    grad_sum: torch.Tensor | None,
    input: torch.Tensor,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    workspace: torch.Tensor | None,
    words: torch.Tensor | None,
    grad_weight: torch.Tensor | None,
    grad_bias: torch.Tensor | None,
    grad_input: torch.Tensor,
) -> str:
    """Launches the backward pass of a norm of rows, and says how.

    Args:
        grad_output, grad_sum, input: of the shape (*outer, n); the last dimension has no gaps.
        mean, rstd: of the shape (*outer); without a mean, the RMS norm.
        weight: of the shape (n,), without gaps.
        workspace: (gradients of weight and bias asked for, groups, n), of the type computed in.
        words: as many zeros as `count_words` says; None: no rows are shared.
        grad_weight, grad_bias: of the shape (n,), or None.
        grad_input: like input, without gaps.
    """
    given = (grad_output, grad_sum, input)
    arrays = (grad_input, *(t for t in given if t is not None))
    n, _, outer = rows_of(arrays, grad_input.dim() - 1, rstd)
    size = grad_input.element_size()
    vector = ACCESS_BYTES // size
    read = (*arrays, *(t for t in (weight, workspace) if t is not None))
    is_aligned = (
        type(grad_input) is torch.Tensor
        and n % vector == 0
        and all([outer.has_multiples(a, vector, 0) for a in range(len(arrays))])
        and all([t.data_ptr() % ACCESS_BYTES == 0 for t in read])
    )
    vector = vector if is_aligned else 1
    room = min(GROUPS, outer.numel) if workspace is None else workspace.shape[1]
    how = _alone(n, size)
    slices = list(outer.slices(ROW_RANK))
    groups = 0
    for number, (slice, start) in enumerate(slices):
        missing = (0,) * (ROW_RANK - len(slice.sizes))
        integers = [n // vector, slice.numel, room, *slice.sizes, *((1,) * len(missing))]
        for a in (0, 1, 1 + (grad_sum is not None), len(arrays) - 1, len(arrays)):
            integers += [start[a] if start else 0, *(of[a] for of in slice.strides), *missing]
        asked = (grad_weight is not None, grad_bias is not None)
        constants = (*asked, number > 0, len(slice.sizes), vector, is_aligned)
        before = (grad_output, grad_sum, input, mean, rstd, weight, workspace)
        if how is not None:
            block = _power_of_2(n)
            # Where a thread has columns of few rows at a time, each has its own sums.
            has_few = block < how.warps * 32 * vector
            side = max(1, how.held // block // (2 if has_few or not is_aligned else 1))
            keep = side == 1 or has_few
            groups = min(room, how.groups)
            launch(
                norm_backward_rows,
                groups,
                (*before, None, grad_input),
                tuple(integers),
                (*constants, side, block, keep, how.stages, 1, 0, ALL_PHASES.value),
                how.warps,
            )
            name = f"rows in registers, blocks of {block}"
        elif words is not None and len(slices) == 1:
            held, side, warps, stages, per, late = _shared(n, size)
            shares = -(-n // held)
            groups = (
                launch_cooperatively(
                    norm_backward_rows,
                    room * shares,
                    per,
                    (*before, words, grad_input),
                    tuple(integers),
                    (*constants, side, held, side == 1, stages, _power_of_2(shares), late),
                    warps,
                    phases=2,
                    max_registers=REGISTERS // (per * warps * 32) // 8 * 8,
                    together=shares,
                )
                // shares
            )
            name = f"a row shared by programs, blocks of {held}"
        else:
            groups = room
            launch(
                norm_backward_tiles,
                groups,
                (*before, grad_input),
                tuple(integers),
                (*constants, TILES[size], TILE_WARPS * 32),
                TILE_WARPS,
            )
            name = f"a row read twice, blocks of {TILES[size]}"
    if workspace is not None:
        launch(
            norm_backward_sums,
            -(-n // SUMMED_COLUMNS),
            (grad_weight, grad_bias, workspace),
            (n, groups, room),
            (SUMMED_GROUPS, SUMMED_COLUMNS),
            SUMMING_WARPS,
        )
    return f"{name}{', 16-byte accesses' if is_aligned else ''}"
