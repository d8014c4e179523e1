"""The backward pass of a norm whose rows are resident: a program, or several that split a row, hold
it in registers.

A program walks its rows with the next ones in flight, and sums the gradients of weight and bias in
registers: a thread has the same columns of all rows. Twin of
csrc/include/diglot/norm/backward_resident.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.rows.tile import load_parameters, tile_mask
from diglot.triton_ops.lib.sync.mailbox import collect, publish
from diglot.triton_ops.lib.types import compute_type, opaque, widen

from .backward import load_rows, load_statistic, normalized, scaled, store_gradient
from .group_sums import add_product, over_rows, store_sums


@triton.jit
def sums_of_rows(h, product):
    """Each row's sum(h) and sum(product), as columns."""
    return tl.sum(h, 1, keep_dims=True), tl.sum(product, 1, keep_dims=True)


@triton.jit
def sums_of_lines(parts, line, SIDE: tl.constexpr):
    """The sum of each line's parts, as a column.

    Summed to scalars, so that the few parts need not have the layout of the large tiles.
    """
    sums = tl.full((SIDE, 1), 0.0, parts.dtype)
    for row in tl.static_range(SIDE):
        total = tl.sum(parts if SIDE == 1 else tl.where(line == row, parts, 0.0))
        sums = tl.where(tl.arange(0, SIDE)[:, None] == row, total, sums)
    return sums


@triton.jit
def norm_backward_resident(
    grad_output, grad_sum, input, mean, rstd, weight, workspace, mailboxes, grad_input,
    n, count, groups, sizes, starts, strides,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    KEEP: tl.constexpr, STAGES: tl.constexpr, SPLITS: tl.constexpr, LATE: tl.constexpr,
    PHASE: tl.constexpr,
):  # fmt: skip
    """A persistent program of a group: it walks the group's rows, BLOCK elements of each.

    Args:
        mailboxes: for programs that split a row, zeros at first (sync/mailbox.py): two for each
            program and row, of rows up to a multiple of SIDE; else None.
        n: accesses of a row.
        count: rows.
        groups: for which the workspace has room; there are no more.
        sizes: of the outer dimensions, the fastest first.
        starts, strides: of grad_input, grad_output, grad_sum, input, and the statistics.
        WEIGHT, BIAS: whether their gradients are wanted.
        LATER: whether the workspace has sums of an earlier launch.
        SIDE: rows at a time.
        KEEP: whether each of them has its own sums until the end.
        STAGES: of loads in flight.
        SPLITS: at least as many as the programs that split a row; 1: rows are not split.
        LATE: when a program collects a row's sums. 0: at once. 1: after those of its next row are
            published; it holds the row until then. 2: likewise, but it loads the row again, from
            the L2 cache.
        PHASE: of split rows: 1 publishes, 2 collects and stores, ALL_PHASES does both.
    """
    T: tl.constexpr = grad_input.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    n = n * VECTOR
    part = tl.full((), 1.0, COMPUTE) / tl.full((), n, COMPUTE)
    program = tl.program_id(0).to(tl.int64)
    if SPLITS > 1:
        programs = (n + BLOCK - 1) // BLOCK  # of a group
        group, split = program // programs, program % programs
        walkers = tl.num_programs(0) // programs
        index = split * BLOCK + tl.arange(0, BLOCK)
        # Mailboxes of the SIDE rows: for each row, one field of all programs, then the other.
        mailbox = tl.arange(0, SIDE * SPLITS)
        line, sender = mailbox // SPLITS, mailbox % SPLITS
    else:
        group = program
        walkers = tl.num_programs(0)
        index = tl.arange(0, BLOCK).to(tl.int64)
    scale = load_parameters(weight, index, n, ALIGNED)
    by_weight = tl.full((SIDE if KEEP else 1, BLOCK), 0.0, COMPUTE)
    by_bias = by_weight
    step = walkers * SIDE
    # Programs that split a row may publish the next row's sums before they collect this one's.
    end = tl.where(group * SIDE < count, count + step, count) if LATE != 0 else count
    if LATE == 1:
        x_before = tl.full((SIDE, BLOCK), 0.0, COMPUTE).to(T)
        grad_before = x_before
    for first in tl.range(group * SIDE, end, step, num_stages=STAGES):
        row = first + tl.arange(0, SIDE)
        row_mask = row < count
        mask = tile_mask(index, n, row_mask, False)
        x = load_rows(input, row, index, mask, sizes, starts[3], strides[3], RANK, VECTOR, ALIGNED)
        grad = load_rows(
            grad_output, row, index, mask, sizes, starts[1], strides[1], RANK, VECTOR, ALIGNED
        )
        offset = strided_offset(row, sizes, starts[4], strides[4], RANK, True)
        center = load_statistic(mean, offset, row_mask)
        factor = load_statistic(rstd, offset, row_mask)
        y = normalized(widen(x, COMPUTE), center, factor)
        h = scaled(widen(grad, COMPUTE), scale)
        sum_h, sum_hy = sums_of_rows(h, h * y)
        if SPLITS > 1:
            if PHASE != 2:
                lines = tl.arange(0, SIDE)[:, None] * (programs * 2)
                publish(
                    mailboxes + first * (programs * 2),
                    lines + split,
                    programs,
                    (sum_h, sum_hy),
                    tl.full((SIDE, 1), first < count, tl.int1),
                )
            if LATE != 0:
                row -= step
                row_mask = (row < count) & (row >= group * SIDE)
                mask = tile_mask(index, n, row_mask, False)
                offset = strided_offset(row, sizes, starts[4], strides[4], RANK, True)
                center = load_statistic(mean, offset, row_mask)
                factor = load_statistic(rstd, offset, row_mask)
                if LATE == 1:
                    x, x_before = x_before, x
                    grad, grad_before = grad_before, grad
                else:
                    x = load_rows(
                        input, row, index, mask, sizes, starts[3], strides[3], RANK, VECTOR, ALIGNED
                    )
                    grad = load_rows(
                        grad_output,
                        row,
                        index,
                        mask,
                        sizes,
                        starts[1],
                        strides[1],
                        RANK,
                        VECTOR,
                        ALIGNED,
                    )
            if PHASE != 1:
                # The first time there is no row before: it collects its own sums, to no purpose.
                begin = tl.maximum(first - step, group * SIDE) if LATE != 0 else first
                nothing = tl.full(line.shape, 0.0, COMPUTE)
                parts_h, parts_hy = collect(
                    mailboxes + begin * (programs * 2),
                    line * (programs * 2) + tl.minimum(sender, programs.to(tl.int32) - 1),
                    programs, sender < programs, (nothing, nothing),
                )  # fmt: skip
                sum_h = sums_of_lines(parts_h, line, SIDE)
                sum_hy = sums_of_lines(parts_hy, line, SIDE)
        if PHASE != 1:
            # Narrow types are converted once more, so that they stay narrow until here.
            wide = widen(opaque(grad), COMPUTE)
            y = normalized(widen(opaque(x), COMPUTE), center, factor)
            if WEIGHT:
                by_weight = add_product(by_weight, wide, y, KEEP)
            if BIAS:
                by_bias += over_rows(wide, KEEP)
            sum_tile = load_rows(
                grad_sum, row, index, mask, sizes, starts[2], strides[2], RANK, VECTOR, ALIGNED
            )
            store_gradient(
                grad_input, sum_tile, y, scaled(wide, scale), factor,
                None if mean is None else sum_h * part, sum_hy * part,
                row, index, mask, sizes, starts[0], strides[0], T, RANK, VECTOR, ALIGNED,
            )  # fmt: skip
    if PHASE != 1:
        if WEIGHT:
            store_sums(workspace, 0, group, groups, index, n, by_weight, LATER, ALIGNED)
        if BIAS:
            field: tl.constexpr = 1 if WEIGHT else 0
            store_sums(workspace, field, group, groups, index, n, by_bias, LATER, ALIGNED)
