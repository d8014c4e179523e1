"""The backward pass of a norm: kernels, and how they are launched. Twin of
csrc/include/diglot/launch/norm_backward.h.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from diglot.backends.plans import Plan, Scratch
from diglot.triton_ops.lib.norm.backward_resident import norm_backward_resident
from diglot.triton_ops.lib.norm.backward_streaming import norm_backward_streaming
from diglot.triton_ops.lib.norm.group_sums import sum_groups

from .plan import ACCESS_BYTES, ALL_PHASES, NOTHING, Device, Launch, Operand, Part, Scalar
from .row_splits import power_of_2, registers
from .rows import ROW_RANK, mailbox_dtype, padded, rows_of, strides_of


class ResidentRows(NamedTuple):
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


class SplitRows(NamedTuple):
    """How programs that share a row walk theirs.

    Attributes:
        held: elements of a row that one has.
        side: rows at a time.
        warps: of a program.
        stages: of loads in flight.
        programs: on a multiprocessor.
        late: LATE of `norm_backward_resident`.
    """

    held: int
    side: int
    warps: int
    stages: int
    programs: int
    late: int


@triton.jit
def norm_backward_rows(
    grad_output, grad_sum, input, statistics, weight, workspace, mailboxes, grad_input,
    n, count, groups, size0, size1, size2,
    out_start, out0, out1, out2,
    grad_start, grad0, grad1, grad2,
    sum_start, sum0, sum1, sum2,
    in_start, in0, in1, in2,
    row_start, row0, row1, row2, row_field,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    KEEP: tl.constexpr, STAGES: tl.constexpr, SPLITS: tl.constexpr, LATE: tl.constexpr,
    PHASE: tl.constexpr,
):  # fmt: skip
    mean = statistics if row_field is not None else None
    rstd = statistics + row_field if row_field is not None else statistics
    norm_backward_resident(
        grad_output, grad_sum, input, mean, rstd, weight, workspace, mailboxes, grad_input,
        n, count, groups, (size0, size1, size2),
        (out_start, grad_start, sum_start, in_start, row_start),
        ((out0, out1, out2), (grad0, grad1, grad2), (sum0, sum1, sum2), (in0, in1, in2),
         (row0, row1, row2)),
        WEIGHT, BIAS, LATER, RANK, VECTOR, ALIGNED, SIDE, BLOCK, KEEP, STAGES, SPLITS, LATE,
        PHASE,
    )  # fmt: skip


@triton.jit
def norm_backward_tiles(
    grad_output, grad_sum, input, statistics, weight, workspace, grad_input,
    n, count, groups, size0, size1, size2,
    out_start, out0, out1, out2,
    grad_start, grad0, grad1, grad2,
    sum_start, sum0, sum1, sum2,
    in_start, in0, in1, in2,
    row_start, row0, row1, row2, row_field,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    mean = statistics if row_field is not None else None
    rstd = statistics + row_field if row_field is not None else statistics
    norm_backward_streaming(
        grad_output, grad_sum, input, mean, rstd, weight, workspace, grad_input,
        n, count, groups, (size0, size1, size2),
        (out_start, grad_start, sum_start, in_start, row_start),
        ((out0, out1, out2), (grad0, grad1, grad2), (sum0, sum1, sum2), (in0, in1, in2),
         (row0, row1, row2)),
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


def count_groups(device: Device, rows: int, n: int, has_sums: bool) -> int:
    """How many groups share `rows` rows of `n` elements at most: at least one."""
    if not has_sums:
        return max(1, min(device.tuned("norm_backward.triton.groups_without_sums"), rows))
    groups = device.tuned("norm_backward.triton.groups", n)
    enough = device.tuned("norm_backward.triton.enough_groups")
    each = device.tuned("norm_backward.triton.rows_each")
    return max(1, min(groups, rows, max(enough, -(-rows // each))))


def plan_norm_backward(
    grad_output: Operand,
    grad_sum: Operand | None,
    input: Operand,
    statistics: Operand,
    weight: Operand | None,
    grad_weight: Operand | None,
    grad_bias: Operand | None,
    grad_input: Operand,
) -> Plan:
    """Plans the backward pass of a norm of rows.

    Args:
        grad_output, grad_sum, input: of the shape (*outer, n); the last dimension has no gaps.
        statistics: (2, *outer), mean and rstd; or (1, *outer), rstd, of the RMS norm.
        weight: of the shape (n,), without gaps.
        grad_weight, grad_bias: of the shape (n,), or None.
        grad_input: like input, without gaps.
    """
    if grad_input.numel() == 0:
        return NOTHING
    sources = (grad_output, grad_sum, input)
    arrays = (grad_input, *(array for array in sources if array is not None))
    n, _, outer = rows_of(arrays, grad_input.dim() - 1, statistics)
    size, device = grad_input.element_size(), grad_input.device
    tuned = device.tuned
    vector = ACCESS_BYTES // size
    is_aligned = (
        n % vector == 0
        and all(outer.has_multiples(a, vector, 0) for a in range(len(arrays)))
        and all(array.is_aligned for array in (*arrays, weight) if array is not None)
    )
    vector = vector if is_aligned else 1
    lie = f"rows{', 16-byte accesses' * is_aligned}"
    device.choose(lie, (outer.numel, n), grad_input, grad_sum, weight)
    fields = (grad_weight is not None) + (grad_bias is not None)
    room = count_groups(device, outer.numel, n, fields > 0)
    slices = list(outer.slices(ROW_RANK))
    alone, shared, splits = None, None, 0
    if n <= tuned("norm_backward.triton.longest_alone", size):
        alone = ResidentRows(**tuned("norm_backward.triton.alone", size, n))
    elif n <= tuned("norm_backward.triton.longest_shared") and len(slices) == 1:
        shared = SplitRows(**tuned("norm_backward.triton.shared", size, n))
        splits = -(-n // shared.held)
        shared = shared if splits <= device.room(shared.programs) else None
    tile, tile_warps = 0, 0
    mailboxes: Part | None = None
    if alone is not None:
        name = f"rows in registers, blocks of {power_of_2(n)}"
        groups = min(room, alone.groups)
    elif shared is not None:
        name = f"a row shared by programs, blocks of {shared.held}"
        groups = device.programs(room * splits, shared.programs, splits) // splits
        rows = -(-outer.numel // shared.side) * shared.side
        mailboxes = Part(mailbox_dtype(grad_input), rows * splits * 2)
    else:
        tile_warps = tuned("norm_backward.triton.tile_warps")
        # An access of each thread at least.
        tile = max(tuned("norm_backward.triton.tile_elements", size), tile_warps * 32 * vector)
        name = f"a row read twice, blocks of {tile}"
        groups = room
    sums: Part | None = None
    if fields:
        sums = Part(statistics.dtype, fields * room * n).after(mailboxes)
    launches: list[Launch] = []
    for number, (slice, start) in enumerate(slices):
        scalars: list[Scalar] = [n // vector, slice.numel, room, *padded(slice.sizes)]
        place = 0
        for array in (grad_input, *sources, statistics):
            if array is None:
                scalars += [None] * (ROW_RANK + 1)
            else:
                scalars += strides_of(slice, start, place)
                place += 1
        scalars.append(statistics.strides[0] if statistics.shape[0] == 2 else None)
        asked = (grad_weight is not None, grad_bias is not None)
        constants = (*asked, number > 0, len(slice.sizes), vector, is_aligned)
        before = (*sources, statistics, weight, sums)
        if alone is not None:
            block = power_of_2(n)
            # Where a thread has columns of few rows at a time, each has its own sums.
            has_few = block < alone.warps * 32 * vector
            side = max(1, alone.held // block // (2 if has_few or not is_aligned else 1))
            keep = side == 1 or has_few
            launch = Launch(
                norm_backward_rows,
                (groups,),
                (*before, None, grad_input),
                tuple(scalars),
                (*constants, side, block, keep, alone.stages, 1, 0, ALL_PHASES.value),
                alone.warps,
            )
        elif shared is not None:
            held, side, warps, stages, programs, late = shared
            launch = Launch(
                norm_backward_rows,
                (groups * splits,),
                (*before, mailboxes, grad_input),
                tuple(scalars),
                (*constants, side, held, side == 1, stages, power_of_2(splits), late),
                warps,
                phases=2,
                per_multiprocessor=programs,
                max_registers=registers(warps, programs),
            )
        else:
            launch = Launch(
                norm_backward_tiles,
                (groups,),
                (*before, grad_input),
                tuple(scalars),
                (*constants, tile, tile_warps * 32),
                tile_warps,
            )
        launches.append(launch)
    if sums is not None:
        columns = tuned("norm_backward.triton.summed_columns")
        launch = Launch(
            norm_backward_sums,
            (-(-n // columns),),
            (grad_weight, grad_bias, sums),
            (n, groups, room),
            (tuned("norm_backward.triton.summed_groups", groups), columns),
            tuned("norm_backward.triton.summing_warps"),
        )
        launches.append(launch)
    last = sums or mailboxes
    scratch = None
    if last is not None:
        scratch = Scratch(last.end, 0 if mailboxes is None else mailboxes.end, "call")
    return Plan(f"{name}{', 16-byte accesses' * is_aligned}", tuple(launches), scratch)
