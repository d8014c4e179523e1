"""The backward pass of a norm: kernels, and the plan of their launches. Twin of
csrc/include/diglot/launch/norm_backward.h.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from diglot.backends.plans import Plan, Scratch
from diglot.triton_ops.lib.norm.backward_resident import norm_backward_resident
from diglot.triton_ops.lib.norm.backward_streaming import norm_backward_streaming
from diglot.triton_ops.lib.norm.group_sums import sum_groups

from .layout import Layout
from .plan import (
    ACCESS_BYTES,
    ALL_PHASES,
    NOTHING,
    PDL_ARCHITECTURE,
    Device,
    Launch,
    Operand,
    Part,
    Scalar,
)
from .row_splits import (
    choose_parts,
    pieces_of,
    planned_device,
    planned_rows,
    power_of_2,
    registers,
    told_splits,
)
from .rows import (
    ROW_RANK,
    are_alike,
    are_congruent,
    mailbox_dtype,
    padded,
    rows_apart,
    rows_of,
    strides_of,
)

# Of a program, beside what it loads, and of the driver: an upper bound.
OTHER_SHARED_BYTES = 2048


class ResidentRows(NamedTuple):
    """How a program walks rows that it holds alone.

    Attributes:
        together: warps for a row.
        warps: warps of a program; with more than `together` it walks several rows at a time.
        stages: of loads in flight.
        groups: the most programs.
        registers: of a thread; 0: as many as the compiler likes.
    """

    together: int
    warps: int
    stages: int
    groups: int
    registers: int


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
    grad_output, grad_sum, input, statistics, weight, workspace, mailboxes, grad_weight, grad_bias,
    grad_input, n, count, groups, size0, size1, size2,
    out_start, out0, out1, out2,
    grad_start, grad0, grad1, grad2,
    sum_start, sum0, sum1, sum2,
    in_start, in0, in1, in2,
    row_start, row0, row1, row2, row_field,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    PIECES: tl.constexpr, STAGES: tl.constexpr, SPLITS: tl.constexpr, LATE: tl.constexpr,
    PDL: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
    mean = statistics if row_field is not None else None
    rstd = statistics + row_field if row_field is not None else statistics
    norm_backward_resident(
        grad_output, grad_sum, input, mean, rstd, weight, workspace, mailboxes,
        (grad_weight, grad_bias), grad_input, n, count, groups, (size0, size1, size2),
        (out_start, grad_start, sum_start, in_start, row_start),
        ((out0, out1, out2), (grad0, grad1, grad2), (sum0, sum1, sum2), (in0, in1, in2),
         (row0, row1, row2)),
        WEIGHT, BIAS, LATER, RANK, VECTOR, ALIGNED, SIDE, BLOCK, PIECES, STAGES, SPLITS, LATE,
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
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
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
    grad_weight, grad_bias, workspace, n, groups, room, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0).to(tl.int64) * BLOCK
    field = tl.program_id(1)
    if PDL:
        gdc_wait()  # for the launch that wrote the sums
    if grad_weight is not None and field == 0:
        sum_groups(workspace, grad_weight, 0, n, groups, room, column, ROWS, BLOCK, TILES)
    if grad_bias is not None:
        FIELD: tl.constexpr = 0 if grad_weight is None else 1
        if field == FIELD:
            sum_groups(workspace, grad_bias, FIELD, n, groups, room, column, ROWS, BLOCK, TILES)


def count_groups(device: Device, rows: int, n: int, has_sums: bool) -> int:
    """How many groups share `rows` rows of `n` elements at most: at least one."""
    if not has_sums:
        return max(1, min(device.tuned("norm_backward.triton.groups_without_sums"), rows))
    if rows <= device.tuned("norm_backward.triton.one_group_rows", n):
        return 1
    groups = device.tuned("norm_backward.triton.groups", n)
    enough = device.tuned("norm_backward.triton.enough_groups")
    each = device.tuned("norm_backward.triton.rows_each")
    return max(1, min(groups, rows, max(enough, -(-rows // each))))


def aligned_elements(
    arrays: tuple[Operand, ...], weight: Operand | None, outer: Layout, n: int
) -> int:
    """Elements of the widest access, a power of 2 of 16 bytes at most, at whose multiples all rows
    begin and end, and the weight begins.
    """
    given = [array for array in (*arrays, weight) if array is not None]
    elements = ACCESS_BYTES // arrays[0].element_size()
    while elements > 1 and not (
        n % elements == 0
        and all(outer.has_multiples(a, elements, 0) for a in range(len(arrays)))
        and all(array.begins_at(elements) for array in given)
    ):
        elements //= 2
    return elements


def fitting_stages(device: Device, stages: int, tile: int, arrays: int) -> int:
    """As many stages of loads in flight, at most `stages`, as shared memory has room for.

    Args:
        tile: bytes that a program loads of each array at a time.
        arrays: arrays that it loads. Each has a buffer less than there are stages.
    """
    room = device.shared_bytes - OTHER_SHARED_BYTES
    return max(1, min(stages, 1 + room // (arrays * tile))) if room > 0 else stages


class Way(NamedTuple):
    """How rows are shared out.

    Attributes:
        name: of the variant.
        groups: of rows, that have sums of their own.
        block, pieces: elements of a tile, and tiles of a row, or of a program's part of one.
        program: what one has; None: it reads its rows twice.
        splits: programs that share a row.
        side: rows at a time.
        late: LATE of `norm_backward_resident`.
        registers: of a thread; None: as many as the compiler likes.
    """

    name: str
    groups: int
    block: int
    pieces: int = 1
    program: ResidentRows | SplitRows | None = None
    splits: int = 1
    side: int = 1
    late: int = 0
    registers: int | None = None


def share_out(
    device: Device,
    n: int,
    size: int,
    peeled: int,
    apart: int,
    is_single: bool,
    room: int,
    is_one: bool,
    fields: int,
    rows: int,
) -> Way:
    """How at most `room` groups share out rows of n elements.

    Args:
        peeled: elements of an access of peeled rows, or 1.
        apart: if the number of groups is a multiple of it, all rows of a group begin alike.
        is_single: whether elements are accessed one by one.
        is_one: whether one launch has all rows.
        fields: gradients of weight and bias that are wanted.
        rows: how many there are.
    """
    tuned = device.tuned
    access = 32 * ACCESS_BYTES // size  # elements of an access of a warp
    reach = n + peeled - 1  # from the multiple of 16 bytes before a row
    # Whole accesses of a peeled row, less the first and the last one, or all elements.
    inner = n if peeled == 1 else max(n // peeled - 2, 1) * peeled
    # Edges and both sums leave a longer row no registers.
    held = n if fields == 2 else inner
    planned = planned_rows(device, rows)
    is_alone = held <= tuned("norm_backward.triton.longest_alone", size, planned)
    if not is_alone and n <= tuned("norm_backward.triton.longest_shared") and is_one:
        if peeled > 1:
            shared = SplitRows(**tuned("norm_backward.triton.shared_peeled", size, n))
        else:
            shared = SplitRows(**tuned("norm_backward.triton.shared", size, n))
        line = 8 * ACCESS_BYTES // size  # a multiple of that of `part_of_row`
        device_of, least = planned_device(device), -(-reach // shared.held)
        block, pieces, splits = choose_parts(
            reach, least, line, shared.warps // shared.side * access,
            device_of.room(shared.programs), apart,
        )  # fmt: skip
        if 1 < splits <= device_of.room(shared.programs):
            groups = device_of.programs(room * splits, shared.programs, splits) // splits
            groups = groups // apart * apart or groups
            # A group of one row has no next one to publish before it collects.
            each = -(-rows // (groups * shared.side))
            # Edges and both sums of 16-bit rows leave no registers for the row before.
            is_full = peeled > 1 and fields == 2 and size == 2
            is_late = each >= tuned("norm_backward.triton.late_rows") and not is_full
            late = shared.late if is_late else 0
            how = (splits, shared.side, late, registers(shared.warps, shared.programs))
            return Way("a row shared by programs", groups, block, pieces, shared, *how)
        is_alone = splits == 1  # a row that one program would hold is not read twice
    if is_alone:
        alone = ResidentRows(**tuned("norm_backward.triton.alone", size, held))
        is_narrow = is_single and n <= tuned("norm_backward.triton.narrow_elements")
        block, pieces = pieces_of(inner, alone.together * (32 if is_narrow else access))
        row = power_of_2(block * pieces) if is_narrow else block
        side, most = max(1, alone.warps * access // row), alone.registers or None
        groups = min(room, alone.groups)
        groups = groups // apart * apart or groups
        return Way("rows in registers", groups, block, pieces, alone, 1, side, 0, most)
    warps = tuned("norm_backward.triton.tile_warps")
    # An access of each thread at least.
    block = max(tuned("norm_backward.triton.tile_elements", size), warps * access)
    return Way("a row read twice", room, block)


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
    aligned = aligned_elements(arrays, weight, outer, n)
    is_aligned = aligned == vector
    lie = f"rows{', 16-byte accesses' * is_aligned}"
    device.choose(lie, (outer.numel, n), grad_input, grad_sum, weight)
    fields = (grad_weight is not None) + (grad_bias is not None)
    room = count_groups(device, outer.numel, n, fields > 0)
    slices = list(outer.slices(ROW_RANK))
    is_peeled = not is_aligned and n >= tuned("norm_backward.triton.peeled_elements", size)
    is_peeled = is_peeled and n <= tuned("norm_backward.triton.longest_peeled")
    is_peeled = is_peeled and are_congruent(arrays, arrays, outer, vector)
    is_one = len(slices) == 1
    if n <= tuned("norm_backward.triton.narrow_elements") and not is_aligned:
        aligned = 1
    is_single = aligned == 1
    peeled, apart = (vector, rows_apart(outer, vector)) if is_peeled else (1, 1)
    single = is_single and not is_peeled
    way = share_out(device, n, size, peeled, apart, single, room, is_one, fields, outer.numel)
    can_peel = way.program is not None and way.side == 1
    if is_peeled and not (
        can_peel and all(are_alike(slice, way.groups, vector) for slice, _ in slices)
    ):
        is_peeled = False
        way = share_out(device, n, size, 1, 1, is_single, room, is_one, fields, outer.numel)
    if not is_peeled:
        vector, is_aligned = aligned, aligned > 1
    groups, splits, block = way.groups, way.splits, way.block
    mailboxes: Part | None = None
    if isinstance(way.program, SplitRows):
        rows = -(-outer.numel // way.side) * way.side
        mailboxes = Part(mailbox_dtype(grad_input), rows * splits * 2)
    sums: Part | None = None
    # The sums of one group are the result.
    is_result = fields > 0 and is_one and groups == 1 and way.program is not None
    results = (grad_weight, grad_bias) if is_result else (None, None)
    if fields and not is_result:
        sums = Part(statistics.dtype, fields * room * n).after(mailboxes)
    # The launch that adds up the sums starts while the last one before it runs.
    uses_pdl = sums is not None and device.architecture >= PDL_ARCHITECTURE
    # Where few programs run, there is room for it beside them.
    is_small = groups * splits <= device.multiprocessors // 2
    uses_pdl = uses_pdl and (is_small or tuned("norm_backward.triton.pdl", n) > 0)
    launches: list[Launch] = []
    for number, (slice, start) in enumerate(slices):
        accesses = n // vector if is_aligned else n
        scalars: list[Scalar] = [accesses, slice.numel, room, *padded(slice.sizes)]
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
        if way.program is None:
            tile_warps = tuned("norm_backward.triton.tile_warps")
            launch = Launch(
                norm_backward_tiles,
                (groups,),
                (*before, grad_input),
                tuple(scalars),
                (*constants, block, tile_warps * 32, uses_pdl),
                tile_warps,
            )
        else:
            told = 1
            if splits > 1:
                # Edges leave few registers: the compiler is to know the number.
                told = -splits if is_peeled else told_splits(n, block * way.pieces, splits)
            tile = way.side * block * way.pieces * size
            stages = fitting_stages(device, way.program.stages, tile, 2 + (grad_sum is not None))
            shape = (way.side, block, way.pieces, stages, told)
            each = way.program.programs if isinstance(way.program, SplitRows) else None
            launch = Launch(
                norm_backward_rows,
                (groups * splits,),
                (*before, mailboxes, *results, grad_input),
                tuple(scalars),
                (*constants, *shape, way.late, uses_pdl, *(() if each else (ALL_PHASES.value,))),
                way.program.warps,
                phases=2 if each else 0,
                per_multiprocessor=each,
                max_registers=way.registers,
            )
        launches.append(launch)
    if sums is not None:
        summed = min(power_of_2(groups), tuned("norm_backward.triton.summed_groups", n))
        elements = tuned("norm_backward.triton.summed_elements", n)
        columns = max(elements // summed, tuned("norm_backward.triton.summed_columns"))
        launch = Launch(
            norm_backward_sums,
            (-(-n // columns), fields),
            (grad_weight, grad_bias, sums),
            (n, groups, room),
            (summed, columns, -(-groups // summed), uses_pdl),
            tuned("norm_backward.triton.summing_warps", n),
            uses_pdl=uses_pdl,
        )
        launches.append(launch)
    last = sums or mailboxes
    scratch = None
    if last is not None:
        scratch = Scratch(last.end, 0 if mailboxes is None else mailboxes.end, "call")
    blocks = f"blocks of {block}{f' by {way.pieces}' * (way.pieces > 1)}"
    accesses_of = f", {vector * size}-byte accesses" * is_aligned
    accesses_of += ", whole accesses, edges apart" * is_peeled
    return Plan(f"{way.name}, {blocks}{accesses_of}", tuple(launches), scratch)
