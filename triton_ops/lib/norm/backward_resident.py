"""The backward pass of a norm whose rows are resident: a program holds each row in registers, or
several programs split it.

A program walks its rows with the next ones in flight, and sums the gradients of weight and bias in
registers. A thread has the same columns of all rows. Loads in flight are asynchronous copies to
shared memory. These have four bytes at least, so accesses of two bytes are loaded into registers,
one turn ahead, except edges that are read as words. Twin of
csrc/include/diglot/norm/backward_resident.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.math import fma
from diglot.triton_ops.lib.rows.pieces import (
    copied_pieces,
    is_peeled,
    is_whole,
    load_all_edges,
    load_parameter_pieces,
    load_pieces,
    piece_index,
    piece_mask,
    pieces_of,
    scalar_of,
    scalars_of,
    width_of,
)
from diglot.triton_ops.lib.rows.split import most_splits, part_of_row, part_of_rows
from diglot.triton_ops.lib.rows.tile import LOADS
from diglot.triton_ops.lib.sync.mailbox import collect, publish
from diglot.triton_ops.lib.types import compute_type, opaque, widen

from .backward import centered, load_statistic, scaled, store_gradient
from .group_sums import store_sums


@triton.jit
def sums_of_rows(held, scales, center, PIECES: tl.constexpr, COMPUTE: tl.constexpr):
    """Each row's sum(h) and sum(h (x - mean)), as columns."""
    total, distance = terms(held[0], scales, center, 0, COMPUTE)
    product = total * distance
    for p in tl.static_range(1, PIECES):
        h, distance = terms(held[p], scales, center, p, COMPUTE)
        total += h
        product = fma(h, distance, product)
    sum_h, sum_hy = tl.sum(total, 1, keep_dims=True), tl.sum(product, 1, keep_dims=True)
    for p in tl.static_range(PIECES, len(held)):  # the edges of one row
        middle = None if center is None else scalar_of(center)
        h, distance = terms(held[p], scales, middle, p, COMPUTE)
        sum_h += tl.sum(h)
        sum_hy += tl.sum(h * distance)
    return sum_h, sum_hy


@triton.jit
def terms(tiles, scales, center, P: tl.constexpr, COMPUTE: tl.constexpr):
    """h, and x - mean, of a piece."""
    scale = None if scales is None else scales[P]
    h = scaled(widen(tiles[1], COMPUTE), scale)
    return h, centered(widen(tiles[0], COMPUTE), center)


@triton.jit
def zeros_of_pieces(
    SIDE: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, VECTOR: tl.constexpr,
    ALIGNED: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    pieces = ()
    for p in tl.static_range(pieces_of(PIECES, VECTOR, ALIGNED, False)):
        pieces += (zeros(SIDE, width_of(p, PIECES, BLOCK, VECTOR), T),)  # type: ignore[assignment]
    return pieces


@triton.jit
def zeros(SIDE: tl.constexpr, SIZE: tl.constexpr, T: tl.constexpr):
    return tl.full((SIDE, SIZE), 0.0, compute_type(T)).to(T)


@triton.jit
def load_range(
    FIRST: tl.constexpr, LAST: tl.constexpr, inputs, row, row_mask, count, sizes, starts, strides,
    shift, at, begin, stop, T: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr,
    PIECES: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Tiles of the pieces from FIRST to LAST, of one input or two, whose `count` rows begin at
    `starts`.
    """
    pieces = ()
    # Edges of 16 bits may be words, which a pipelined loop can copy.
    COPIED: tl.constexpr = copied_pieces(T, PIECES, VECTOR, ALIGNED)
    WORDS: tl.constexpr = T.primitive_bitwidth == 16 and COPIED > PIECES and LAST > PIECES
    WHOLE: tl.constexpr = PIECES if WORDS else LAST
    if FIRST < LAST:
        first = strided_offset(row, sizes, starts[0], strides[0], RANK, True) - shift
        second = first
        if len(inputs) == 2:
            second = strided_offset(row, sizes, starts[1], strides[1], RANK, True) - shift
        pieces = load_pieces(
            FIRST, WHOLE, inputs, (first, first, second), (1, 1, 1), at, begin, stop, row_mask, 0.0,
            LOADS, None, T, BLOCK, PIECES, False, False, VECTOR, ALIGNED,
        )  # fmt: skip
        if WORDS:
            edges = load_all_edges(
                inputs, (first, first, second), begin, stop, row, count, T, VECTOR
            )
            pieces += (edges,)  # type: ignore[assignment]
    return pieces


@triton.jit
def pairs_of(first, second):
    """Pieces that have a tile of each."""
    pairs = ()
    for p in tl.static_range(len(first)):
        pairs += ((first[p], second[p]),)  # type: ignore[assignment]
    return pairs


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
    grad_output, grad_sum, input, mean, rstd, weight, workspace, mailboxes, results, grad_input,
    n, count, groups, sizes, starts, strides,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    PIECES: tl.constexpr, STAGES: tl.constexpr, SPLITS: tl.constexpr, LATE: tl.constexpr,
    PHASE: tl.constexpr,
):  # fmt: skip
    """A persistent program of a group: it walks the group's rows, PIECES of BLOCK elements of each.

    Peeled rows (rows/pieces.py) of a group all begin equally far from a multiple of 16 bytes, so a
    thread has the same columns of all of them.

    Args:
        mailboxes: for programs that split a row, zeros at first (sync/mailbox.py): two for each
            program and row, of rows up to a multiple of SIDE; else None.
        results: the gradients of weight and bias, if one group has all rows; else None, twice.
        n: accesses of a row if ALIGNED, else elements.
        count: rows.
        groups: how many groups the workspace has room for; there are no more.
        sizes: of the outer dimensions, the fastest first.
        starts, strides: of grad_input, grad_output, grad_sum, input, and the statistics.
        WEIGHT, BIAS: whether their gradients are wanted.
        LATER: whether the workspace has sums of an earlier launch.
        SIDE: rows at a time; each place among them has its own sums until the end.
        STAGES: stages of loads in flight.
        SPLITS: as in `part_of_row`; 1: rows are not split.
        LATE: when a program collects a row's sums. 0: at once. 1: after those of its next row are
            published; it holds the row until then.
        PHASE: of split rows: 1 publishes, 2 collects and stores, ALL_PHASES does both.
    """
    T: tl.constexpr = grad_input.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    PEELED: tl.constexpr = is_peeled(VECTOR, ALIGNED, False)
    FIELD: tl.constexpr = 1 if WEIGHT else 0  # field of the bias
    if ALIGNED:
        n = n * VECTOR
    inverse = tl.full((), 1.0, COMPUTE) / tl.full((), n, COMPUTE)
    program = tl.program_id(0).to(tl.int64)
    if SPLITS != 1:
        # Programs of a group, and elements of each.
        programs, size = part_of_row(n, VECTOR, PEELED, BLOCK * PIECES, SPLITS)
        group, split = program // programs, program % programs
        walkers = tl.num_programs(0) // programs
        part = split * size
        # Mailboxes of the SIDE rows: for each row, one field of all programs, then the other.
        BOXES: tl.constexpr = most_splits(SPLITS)
        mailbox = tl.arange(0, SIDE * BOXES)
        line, sender = mailbox // BOXES, mailbox % BOXES
    else:
        group = program
        walkers = tl.num_programs(0)
        size = n + VECTOR
        part = tl.full((), 0, tl.int64)
    length = tl.minimum(tl.maximum(n - part, 0), size).to(tl.int32)
    row = group * SIDE + tl.arange(0, SIDE)
    first_of = strided_offset(row, sizes, starts[0] + part, strides[0], RANK, True)
    shift, begin, stop = part_of_rows(grad_input, first_of, n, part, size, length, VECTOR, PEELED)
    at = 0
    if PEELED and SPLITS == 1:
        at = None  # type: ignore[assignment]  # pieces of a whole row begin at its accesses
    parameters = None if weight is None else weight + part
    scales = load_parameter_pieces(
        parameters, shift, at, begin, stop, BLOCK, PIECES, False, VECTOR, ALIGNED
    )
    by_weight = zeros_of_pieces(SIDE, BLOCK, PIECES, VECTOR, ALIGNED, COMPUTE)
    by_bias = by_weight
    step = walkers * SIDE
    # Accesses of two bytes are loaded one turn ahead; a long row's would take too many registers.
    ALL_PIECES: tl.constexpr = pieces_of(PIECES, VECTOR, ALIGNED, False)
    COPIED: tl.constexpr = (
        ALL_PIECES if SPLITS != 1 and VECTOR == 1 else copied_pieces(T, PIECES, VECTOR, ALIGNED)
    )
    inputs = (input, grad_output)
    in_starts, in_strides = (starts[3] + part, starts[1] + part), (strides[3], strides[1])
    # The sum's gradient is needed last. Programs that split a row load it before they collect.
    sum_start = 0 if grad_sum is None else starts[2] + part
    ahead = load_range(
        COPIED, ALL_PIECES, inputs, row, row < count, count, sizes, in_starts, in_strides, shift,
        at, begin, stop, T, RANK, BLOCK, PIECES, VECTOR, ALIGNED,
    )  # fmt: skip
    FROM: tl.constexpr = PIECES if PEELED else COPIED  # pieces of it that are loaded early
    SUMS_AHEAD: tl.constexpr = grad_sum is not None and SPLITS == 1
    sums_ahead = ()
    if SUMS_AHEAD:
        sums_ahead = load_range(
            COPIED, ALL_PIECES, (grad_sum,), row, row < count, count, sizes, (sum_start,),
            (strides[2],), shift, at, begin, stop, T, RANK, BLOCK, PIECES, VECTOR, ALIGNED,
        )  # fmt: skip
    # Programs that split a row may publish the next row's sums before they collect the sums of this
    # row.
    end = tl.where(group * SIDE < count, count + step, count) if LATE != 0 else count
    if LATE == 1:
        no_row = zeros_of_pieces(SIDE, BLOCK, PIECES, VECTOR, ALIGNED, T)
        before = pairs_of(no_row, no_row)
        before_factor = tl.full((SIDE, 1), 0.0, COMPUTE)
        before_center = before_factor
    for first in tl.range(group * SIDE, end, step, num_stages=STAGES):
        row = first + tl.arange(0, SIDE)
        row_mask = row < count
        # A row that is not split exists, and so do all elements of its pieces except in the last
        # one.
        LOADED: tl.constexpr = SIDE == 1 and SPLITS == 1
        held = load_range(
            0, COPIED, inputs, row, None if LOADED else row_mask, count, sizes, in_starts,
            in_strides, shift, at, begin, stop, T, RANK, BLOCK, PIECES, VECTOR, ALIGNED,
        ) + ahead  # fmt: skip
        ahead = load_range(
            COPIED, ALL_PIECES, inputs, row + step, row + step < count, count, sizes, in_starts,
            in_strides, shift, at, begin, stop, T, RANK, BLOCK, PIECES, VECTOR, ALIGNED,
        )  # fmt: skip
        held_sums = sums_ahead
        if SUMS_AHEAD and FROM < COPIED:
            held_sums = load_range(
                FROM, ALL_PIECES, (grad_sum,), row, row_mask, count, sizes, (sum_start,),
                (strides[2],), shift, at, begin, stop, T, RANK, BLOCK, PIECES, VECTOR, ALIGNED,
            )  # fmt: skip
        elif SUMS_AHEAD:
            sums_ahead = load_range(
                COPIED, ALL_PIECES, (grad_sum,), row + step, row + step < count, count, sizes,
                (sum_start,), (strides[2],), shift, at, begin, stop, T, RANK, BLOCK, PIECES, VECTOR,
                ALIGNED,
            )  # fmt: skip
        offset = strided_offset(row, sizes, starts[4], strides[4], RANK, True)
        center = load_statistic(mean, offset, row_mask)
        factor = load_statistic(rstd, offset, row_mask)
        sum_h, sum_hy = sums_of_rows(held, scales, center, PIECES, COMPUTE)
        sum_hy *= factor
        if SPLITS != 1:
            if PHASE != 2:
                lines = tl.arange(0, SIDE)[:, None] * (programs * 2)
                publish(
                    mailboxes + first * (programs * 2),
                    lines + split,
                    programs,
                    (sum_h, sum_hy),
                    tl.full((SIDE, 1), first < count, tl.int1),
                )
            if LATE == 1:
                row -= step
                row_mask = (row < count) & (row >= group * SIDE)
                held, before = before, held
                factor, before_factor = before_factor, factor
                if mean is not None:
                    center, before_center = before_center, center
            if grad_sum is not None and PHASE != 1:
                held_sums = load_range(
                    FROM, ALL_PIECES, (grad_sum,), row, row_mask, count, sizes, (sum_start,),
                    (strides[2],), shift, at, begin, stop, T, RANK, BLOCK, PIECES, VECTOR, ALIGNED,
                )  # fmt: skip
            if PHASE != 1:
                # The first row has none before it, so it collects its own sums, which nobody uses.
                previous = tl.maximum(first - step, group * SIDE) if LATE != 0 else first
                nothing = tl.full(line.shape, 0.0, COMPUTE)
                parts_h, parts_hy = collect(
                    mailboxes + previous * (programs * 2),
                    line * (programs * 2) + tl.minimum(sender, programs.to(tl.int32) - 1),
                    programs, sender < programs, (nothing, nothing),
                )  # fmt: skip
                sum_h = sums_of_lines(parts_h, line, SIDE)
                sum_hy = sums_of_lines(parts_hy, line, SIDE)
        if PHASE != 1:
            out_offset = strided_offset(row, sizes, starts[0] + part, strides[0], RANK, True)
            sum_offset = out_offset
            if grad_sum is not None:
                sum_offset = strided_offset(row, sizes, sum_start, strides[2], RANK, True)
            row_numbers = (factor, sum_hy * inverse)
            if mean is not None:
                row_numbers += (center, sum_h * inverse)  # type: ignore[assignment]
            new_weight, new_bias = (), ()
            for p in tl.static_range(pieces_of(PIECES, VECTOR, ALIGNED, False)):
                # Narrow types are converted once more, so that they stay narrow until here.
                wide = widen(opaque(held[p][1]), COMPUTE)
                numbers = row_numbers if p < PIECES else scalars_of(row_numbers)
                middle = None if mean is None else numbers[2]  # type: ignore[misc]
                y = centered(widen(opaque(held[p][0]), COMPUTE), middle) * numbers[0]
                if WEIGHT:
                    new_weight += (fma(wide, y, by_weight[p]),)  # type: ignore[assignment]
                if BIAS:
                    new_bias += (by_bias[p] + wide,)  # type: ignore[assignment]
                store_gradient(
                    grad_input, grad_sum, y,
                    scaled(wide, None if scales is None else scales[p]), numbers[0],
                    None if mean is None else numbers[3], numbers[1], out_offset - shift,  # type: ignore[misc]
                    sum_offset - shift,
                    piece_index(p, at, begin, stop, BLOCK, PIECES, VECTOR),
                    piece_mask(
                        p, at, begin, stop, None if LOADED else row_mask, BLOCK, PIECES, False,
                        VECTOR, PEELED,
                    ),
                    T, VECTOR, is_whole(p, PIECES, VECTOR, ALIGNED, False),
                    held_sums[p - FROM][0] if grad_sum is not None and p >= FROM else None,
                )  # fmt: skip
            if WEIGHT:
                by_weight = new_weight
            if BIAS:
                by_bias = new_bias
    if PHASE != 1:
        exists = tl.full((1,), True, tl.int1)
        for p in tl.static_range(pieces_of(PIECES, VECTOR, ALIGNED, False)):
            # Its first column is added to pointers, so that offsets stay short.
            column = piece_index(p, at, begin, stop, BLOCK, PIECES, VECTOR)
            mask = piece_mask(p, at, begin, stop, exists, BLOCK, PIECES, False, VECTOR, PEELED)
            if WEIGHT:
                store_sums(
                    workspace, 0, group, groups, part - shift, column, n, mask,
                    by_weight[p], LATER, VECTOR if ALIGNED else 1,
                    results[0],
                )  # fmt: skip
            if BIAS:
                store_sums(
                    workspace, FIELD, group, groups, part - shift, column, n, mask,
                    by_bias[p], LATER, VECTOR if ALIGNED else 1,
                    results[1],
                )  # fmt: skip
