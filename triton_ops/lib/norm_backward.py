"""The backward pass of a norm: how its rows are shared out, and what is summed over them. Twin of
csrc/include/diglot/norm_backward.cuh.

Groups share the rows, one program each, which walks its rows with the next ones on their way, and
sums the gradients of weight and bias over them in registers: a thread has the same columns of all
rows. The sums of the groups are written to a workspace, and summed by another launch.

    y = (x - mean) * rstd, or x * rstd      h = grad * weight
    grad_input = rstd * (h - mean(h) - y * mean(h y)), where mean(h) is left out without a mean
    grad_weight = sum(grad * y), grad_bias = sum(grad), over rows
"""

import triton
import triton.language as tl

from .elementwise import strided_offset
from .math import fma, negate
from .reduce.states import BY_THREAD, sum_along
from .row_reduce import LOADS, by_thread, load_shared, tile_mask, tile_pointers
from .sync.mailbox import collect, publish
from .types import compute_type, convert, opaque, widen


@triton.jit
def normalized(x, mean, rstd):
    """y, of tiles; without a mean, mean is None."""
    return x * rstd if mean is None else (x - mean) * rstd


@triton.jit
def load_statistic(pointer, at, there):
    """A number for each row, as a column; None if it is not given."""
    value = None
    if pointer is not None:
        value = tl.load(pointer + at, mask=there, other=0.0)[:, None]
    return value


@triton.jit
def gradient_of(y, h, rstd, mean_h, mean_hy):
    """rstd * (h - mean_h - y * mean_hy)."""
    centered = h if mean_h is None else h - mean_h
    return rstd * fma(y, negate(mean_hy), centered)


@triton.jit
def load_rows(
    pointer, row, index, mask, sizes, start, strides,
    RANK: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A tile of an array; None if it is not given."""
    tile = None
    if pointer is not None:
        at = strided_offset(row, sizes, start, strides, RANK, True)
        tile = tl.load(
            tile_pointers(pointer, at, 1, index, False, False, VECTOR, ALIGNED),
            mask=mask, other=0.0, eviction_policy=LOADS,
        )  # fmt: skip
    return tile


@triton.jit
def sums_of_rows(h, product):
    """Of each row: sum(h), sum(product), as columns."""
    return tl.sum(h, 1, keep_dims=True), tl.sum(product, 1, keep_dims=True)


@triton.jit
def sums_of_lines(parts, line, SIDE: tl.constexpr):
    """As a column, the sums of the parts that belong to each line.

    By scalars, so that the parts, which are few, need not lie like the tiles computed with.
    """
    sums = tl.full((SIDE, 1), 0.0, parts.dtype)
    for row in tl.static_range(SIDE):
        own = tl.sum(parts if SIDE == 1 else tl.where(line == row, parts, 0.0))
        sums = tl.where(tl.arange(0, SIDE)[:, None] == row, own, sums)
    return sums


@triton.jit
def over_rows(tile, KEEP: tl.constexpr):
    """What is added of a tile to the sums over rows: its own sum, or itself, to be summed last."""
    return tile if KEEP else tl.sum(tile, 0, keep_dims=True)


@triton.jit
def add_product(sums, a, b, KEEP: tl.constexpr):
    """sums + a b, over rows."""
    return fma(a, b, sums) if KEEP else sums + over_rows(a * b, KEEP)


@triton.jit
def store_sums(
    workspace, FIELD: tl.constexpr, group, groups, index, n, sums,
    LATER: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Writes a group's sums of a field; added to those of earlier launches, if there were some."""
    at = (workspace + (FIELD * groups + group) * n + index)[None, :]
    if ALIGNED:
        at = tl.multiple_of(at, [16, 16])
    mask = (index < n)[None, :]
    total = sums if sums.shape[0] == 1 else tl.sum(sums, 0, keep_dims=True)
    if LATER:
        total += tl.load(at, mask=mask, other=0.0)
    tl.store(at, total, mask=mask)


@triton.jit
def store_gradient(
    grad_input, more, y, h, factor, mean_h, mean_hy, row, index, mask, sizes, start, strides,
    T: tl.constexpr, RANK: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    result = gradient_of(y, h, factor, mean_h, mean_hy)
    if more is not None:
        result += more.to(result.dtype)
    at = strided_offset(row, sizes, start, strides, RANK, True)
    tl.store(
        tile_pointers(grad_input, at, 1, index, False, False, VECTOR, ALIGNED),
        convert(result, T),
        mask=mask,
    )


@triton.jit
def scaled(grad, scale):
    """h."""
    return grad if scale is None else grad * widen(scale, grad.dtype)


@triton.jit
def walk_rows(
    grad_output, grad_sum, input, mean, rstd, weight, workspace, words, grad_input,
    n, count, groups, sizes, starts, strides,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    KEEP: tl.constexpr, STAGES: tl.constexpr, SHARES: tl.constexpr, LATE: tl.constexpr,
    PHASE: tl.constexpr,
):  # fmt: skip
    """A program's part of the backward pass: of the rows of a group, BLOCK elements of each.

    Args:
        words: for what programs that share rows tell each other, zeros, as row_exchange.py has
            them, two for each program and row, of rows up to a multiple of SIDE; or None.
        n: accesses of a row.
        count: rows.
        groups: that the workspace has room for; there are no more.
        sizes: of the outer dimensions, the fastest first.
        starts, strides: of grad_input, grad_output, grad_sum, input, and the statistics.
        WEIGHT, BIAS: whether their gradients are asked for.
        LATER: whether the workspace has sums of an earlier launch.
        SIDE: rows at a time.
        KEEP: whether each of them has its own sums until all are added up.
        STAGES: of loads in flight.
        SHARES: of programs that share a row, not less than there are; 1: it is not shared.
        LATE: whether they ask for a row's sums only when they have those of their next row: 0, at
            once; 1, and keep the row until then; 2, and read it again, from the L2 cache.
        PHASE: of what is before the words are written and what is after, 1 or 2, or all.
    """
    T: tl.constexpr = grad_input.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    n = n * VECTOR
    part = tl.full((), 1.0, COMPUTE) / tl.full((), n, COMPUTE)
    program = tl.program_id(0).to(tl.int64)
    if SHARES > 1:
        programs = (n + BLOCK - 1) // BLOCK  # of a group
        group, share = program // programs, program % programs
        walkers = tl.num_programs(0) // programs
        index = share * BLOCK + tl.arange(0, BLOCK)
        # Words of the rows at a time: of each, one field of all programs, then the other.
        word = tl.arange(0, SIDE * SHARES)
        line, of = word // SHARES, word % SHARES
    else:
        group = program
        walkers = tl.num_programs(0)
        index = tl.arange(0, BLOCK).to(tl.int64)
    scale = load_shared(weight, index, n, ALIGNED)
    by_weight = tl.full((SIDE if KEEP else 1, BLOCK), 0.0, COMPUTE)
    by_bias = by_weight
    step = walkers * SIDE
    # Programs that share a row may go on to the next one's sums before they ask for others' sums.
    end = tl.where(group * SIDE < count, count + step, count) if LATE != 0 else count
    if LATE == 1:
        x_before = tl.full((SIDE, BLOCK), 0.0, COMPUTE).to(T)
        grad_before = x_before
    for first in tl.range(group * SIDE, end, step, num_stages=STAGES):
        row = first + tl.arange(0, SIDE)
        there = row < count
        mask = tile_mask(index, n, there, False)
        x = load_rows(input, row, index, mask, sizes, starts[3], strides[3], RANK, VECTOR, ALIGNED)
        grad = load_rows(
            grad_output, row, index, mask, sizes, starts[1], strides[1], RANK, VECTOR, ALIGNED
        )
        at = strided_offset(row, sizes, starts[4], strides[4], RANK, True)
        center = load_statistic(mean, at, there)
        factor = load_statistic(rstd, at, there)
        y = normalized(widen(x, COMPUTE), center, factor)
        h = scaled(widen(grad, COMPUTE), scale)
        sum_h, sum_hy = sums_of_rows(h, h * y)
        if SHARES > 1:
            if PHASE != 2:
                lines = tl.arange(0, SIDE)[:, None] * (programs * 2)
                publish(
                    words + first * (programs * 2),
                    lines + share,
                    programs,
                    (sum_h, sum_hy),
                    tl.full((SIDE, 1), first < count, tl.int1),
                )
            if LATE != 0:
                row -= step
                there = (row < count) & (row >= group * SIDE)
                mask = tile_mask(index, n, there, False)
                at = strided_offset(row, sizes, starts[4], strides[4], RANK, True)
                center = load_statistic(mean, at, there)
                factor = load_statistic(rstd, at, there)
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
                # At first there are none before, and what is not needed is waited for.
                begin = tl.maximum(first - step, group * SIDE) if LATE != 0 else first
                nothing = tl.full(line.shape, 0.0, COMPUTE)
                parts_h, parts_hy = collect(
                    words + begin * (programs * 2),
                    line * (programs * 2) + tl.minimum(of, programs.to(tl.int32) - 1), programs,
                    of < programs, (nothing, nothing),
                )  # fmt: skip
                sum_h = sums_of_lines(parts_h, line, SIDE)
                sum_hy = sums_of_lines(parts_hy, line, SIDE)
        if PHASE != 1:
            # Narrow types are converted again, rather than kept wide until here.
            wide = widen(opaque(grad), COMPUTE)
            y = normalized(widen(opaque(x), COMPUTE), center, factor)
            if WEIGHT:
                by_weight = add_product(by_weight, wide, y, KEEP)
            if BIAS:
                by_bias += over_rows(wide, KEEP)
            more = load_rows(
                grad_sum, row, index, mask, sizes, starts[2], strides[2], RANK, VECTOR, ALIGNED
            )
            store_gradient(
                grad_input, more, y, scaled(wide, scale), factor,
                None if mean is None else sum_h * part, sum_hy * part,
                row, index, mask, sizes, starts[0], strides[0], T, RANK, VECTOR, ALIGNED,
            )  # fmt: skip
    if PHASE != 1:
        if WEIGHT:
            store_sums(workspace, 0, group, groups, index, n, by_weight, LATER, ALIGNED)
        if BIAS:
            field: tl.constexpr = 1 if WEIGHT else 0
            store_sums(workspace, field, group, groups, index, n, by_bias, LATER, ALIGNED)


@triton.jit
def walk_rows_in_tiles(
    grad_output, grad_sum, input, mean, rstd, weight, workspace, grad_input,
    n, count, groups, sizes, starts, strides,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """The same of rows that a program cannot hold, where programs cannot wait for each other: it
    reads each twice, and adds to its group's sums in memory.
    """
    T: tl.constexpr = grad_input.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    n = n * VECTOR
    part = tl.full((), 1.0, COMPUTE) / tl.full((), n, COMPUTE)
    group = tl.program_id(0).to(tl.int64)
    BIAS_FIELD: tl.constexpr = 1 if WEIGHT else 0
    if not LATER:
        for first in range(0, n, BLOCK):
            index = first + tl.arange(0, BLOCK)
            nothing = tl.full((1, BLOCK), 0.0, COMPUTE)
            if WEIGHT:
                store_sums(workspace, 0, group, groups, index, n, nothing, False, ALIGNED)
            if BIAS:
                store_sums(workspace, BIAS_FIELD, group, groups, index, n, nothing, False, ALIGNED)
    for one in range(group, count, tl.num_programs(0)):
        row = one + tl.arange(0, 1)
        there = row < count
        at = strided_offset(row, sizes, starts[4], strides[4], RANK, True)
        center = load_statistic(mean, at, there)
        factor = load_statistic(rstd, at, there)
        sums_h = tl.full((1, THREADS, 1), 0.0, COMPUTE)
        sums_hy = tl.full((1, THREADS, 1), 0.0, COMPUTE)
        for first in range(0, n, BLOCK):
            index = first + tl.arange(0, BLOCK)
            mask = tile_mask(index, n, there, False)
            x = load_rows(
                input, row, index, mask, sizes, starts[3], strides[3], RANK, VECTOR, ALIGNED
            )
            grad = load_rows(
                grad_output, row, index, mask, sizes, starts[1], strides[1], RANK, VECTOR, ALIGNED
            )
            y = normalized(x.to(COMPUTE), center, factor)
            h = scaled(grad.to(COMPUTE), load_shared(weight, index, n, ALIGNED))
            sums_h += sum_along(by_thread(h, VECTOR, THREADS), BY_THREAD)
            sums_hy += sum_along(by_thread(h * y, VECTOR, THREADS), BY_THREAD)
        mean_h, mean_hy = tl.sum(sums_h) * part, tl.sum(sums_hy) * part
        for first in range(0, n, BLOCK):
            index = first + tl.arange(0, BLOCK)
            mask = tile_mask(index, n, there, False)
            x = load_rows(
                input, row, index, mask, sizes, starts[3], strides[3], RANK, VECTOR, ALIGNED
            )
            grad = load_rows(
                grad_output, row, index, mask, sizes, starts[1], strides[1], RANK, VECTOR, ALIGNED
            )
            more = load_rows(
                grad_sum, row, index, mask, sizes, starts[2], strides[2], RANK, VECTOR, ALIGNED
            )
            y = normalized(x.to(COMPUTE), center, factor)
            wide = grad.to(COMPUTE)
            if WEIGHT:
                store_sums(workspace, 0, group, groups, index, n, wide * y, True, ALIGNED)
            if BIAS:
                store_sums(workspace, BIAS_FIELD, group, groups, index, n, wide, True, ALIGNED)
            store_gradient(
                grad_input, more, y, scaled(wide, load_shared(weight, index, n, ALIGNED)), factor,
                None if mean is None else mean_h, mean_hy,
                row, index, mask, sizes, starts[0], strides[0], T, RANK, VECTOR, ALIGNED,
            )  # fmt: skip


@triton.jit
def sum_groups(
    workspace, result, field, n, groups, room, column, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """result = the sums of a field over groups, in order, of BLOCK columns from `column` on.

    The workspace has room for `room` groups.
    """
    index = column + tl.arange(0, BLOCK)
    inside = index < n
    part = tl.arange(0, ROWS)
    sums = tl.full((ROWS, BLOCK), 0.0, workspace.dtype.element_ty)
    for first in tl.range(0, groups, ROWS):
        group = first + part
        at = workspace + ((field * room + group) * n)[:, None] + index[None, :]
        sums += tl.load(at, mask=(group < groups)[:, None] & inside[None, :], other=0.0)
    total = convert(tl.sum(sums, 0), result.dtype.element_ty)
    tl.store(result + index, total, mask=inside)
