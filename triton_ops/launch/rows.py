"""Host side of a kernel that reduces rows and then maps them: how rows lie in the arrays, which
variant runs, and its grid. Twin of csrc/include/diglot/launch/rows.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl

from diglot.backends.plans import Plan, Scratch
from diglot.triton_ops.lib.rows.rows import (
    COLUMN_TILES,
    COLUMNS,
    MAPPED_CHUNKS,
    REDUCED_CHUNKS,
    ROWS,
    SPLIT_COLUMNS,
    SPLIT_ROWS,
    TILES,
)

# Relative, because mypy finds this folder under its name in the tree.
from .layout import Layout, compute_layout
from .norm_forward import NormRows, copy_shifted, count_splits_of_norm
from .plan import ACCESS_BYTES, ALL_PHASES, NOTHING, Launch, Operand, Part, Scalar
from .row_splits import (
    CHUNK_FIELDS,
    STATE_FIELDS,
    at_once,
    blocks_of,
    choose_tile,
    count_chunks,
    count_splits,
    exchange_once,
    planned_rows,
    power_of_2,
    registers,
)

ROW_RANK = 3  # other dimensions that a kernel takes; of more, a launch takes a slice
ONE = tl.constexpr(1)
NAMES = {
    ROWS.value: "rows in registers",
    TILES.value: "a row read twice",
    COLUMNS.value: "columns in registers",
    COLUMN_TILES.value: "columns read twice",
    SPLIT_ROWS.value: "a row shared by programs",
    SPLIT_COLUMNS.value: "columns shared by programs",
    REDUCED_CHUNKS.value: "columns in two launches",
}


def rows_of(
    operands: tuple[Operand, ...], dim: int, statistics: Operand | None = None
) -> tuple[int, tuple[int, ...], Layout]:
    """Elements of a row along a dimension, the step to the next in each array, and the layout of
    the other dimensions.

    `statistics` lacks the dimension, has a first one of its own, and is the last array.
    """
    shape, strides = operands[0].shape, tuple(operand.strides for operand in operands)
    if statistics is not None:
        each = statistics.strides[1:]
        strides = (*strides, (*each[:dim], 0, *each[dim:]))
    if not shape:
        return 1, (1,) * len(strides), compute_layout(((),) * len(strides), ((),) * len(strides))
    n = shape[dim]
    steps = tuple(1 if n == 1 else axes[dim] for axes in strides)
    others = tuple((*axes[:dim], *axes[dim + 1 :]) for axes in (shape, *strides))
    return n, steps, compute_layout((others[0],) * len(strides), others[1:])


def mailbox_dtype(operand: Operand) -> torch.dtype:
    """What programs write states as: integers of the size of what is computed in."""
    return torch.int64 if operand.dtype == torch.float64 else torch.int32


def _access(
    arrays: tuple[Operand, ...],
    whole: tuple[Operand, ...],
    same: tuple[Operand, ...],
    n: int,
    steps: tuple[int, ...],
    outer: Layout,
    is_column: bool,
) -> tuple[int, bool]:
    """Elements of an access, and whether rows begin and end at multiples of 16 bytes.

    Rows are peeled that do not, but begin equally far from one in all arrays: their accesses have
    several elements all the same. `whole`: also those that lie as the output; `same`: those that
    are the same for every row.
    """
    size = min(array.element_size() for array in arrays)
    vector = ACCESS_BYTES // size
    every = range(len(arrays))
    if is_column:
        is_cut = not all(outer.has_vectors(a, vector) and steps[a] % vector == 0 for a in every)
    else:
        is_cut = any(steps[a] != 1 for a in every) or n % vector != 0
        is_cut = is_cut or not all(outer.has_multiples(a, vector, 0) for a in every)
    if not is_cut and all(array.is_aligned for array in (*whole, *same)):
        return vector, True
    is_congruent = (
        not is_column
        and all(steps[a] == 1 for a in every)
        and all(array.element_size() == size for array in arrays)
        and None not in (addresses := {array.address for array in whole})
        and len(addresses) == 1
        and all((s[a] - s[0]) % vector == 0 for s in outer.strides for a in every)
    )
    tuned = arrays[0].device.tuned
    is_peeled = is_congruent and n >= tuned("rows.triton.peeled_elements")
    if is_peeled and same:
        numel = planned_rows(arrays[0].device, arrays[0].numel() // n) * n
        is_peeled = numel >= tuned("norm_forward.triton.peeled_elements")
        is_peeled = is_peeled and numel >= n * tuned("norm_forward.triton.peeled_rows")
    return vector if is_peeled else 1, False


def plan_rows(
    kernel: Any,
    operands: tuple[Operand | None, ...],
    dim: int,
    shared: tuple[Operand | None, ...] = (),
    statistics: tuple[Operand | None, ...] = (),
    held: tuple[Operand | None, ...] = (),
    numbers: Callable[..., tuple[int, ...]] | None = None,
    norm: NormRows | None = None,
    tall: str = "rows.triton.tall",
) -> Plan:
    """Plans launches of a kernel on the rows of arrays along a dimension.

    Rows are shared where their elements are neighbours, columns where accesses have 16 bytes, and
    both where the device makes cooperative launches.

    Args:
        kernel: of (pointers: the inputs, shared, statistics, held, states, the output; n, count,
            three sizes; for each array, the output first, then the inputs, its start, three strides
            and step; for statistics a start, three strides, and the step from one to the next;
            numbers; KIND, RANK, STEPS, VECTOR, ALIGNED, SIDE, BLOCK, REST, ONCE, THREADS,
            SPLITS, PHASE), as `reduce_then_map_rows` takes them.
        operands: one input or two, then the output, of one shape. The second input may be None.
        dim: a dimension of them, from 0.
        shared: arrays of one row without gaps, the same for every row.
        statistics: for a kernel that has some, an array (statistics, *outer); or None.
        held: a second output, which lies as the output does.
        numbers: makes 64-bit arguments of the launcher's unseen ones.
        norm: which norm it is, if any.
        tall: the tunable that says which columns take two launches.
    """
    *sources, out = operands
    assert out is not None
    device = out.device
    if out.numel() == 0:
        return NOTHING
    arrays = (out, *(array for array in sources if array is not None))
    statistic = statistics[0] if statistics else None
    n, steps, outer = rows_of(arrays, dim, statistic)
    size, inputs = min(array.element_size() for array in arrays), len(arrays) - 1
    is_column = bool(outer.sizes) and n > 1 and outer.strides[0][0] < steps[0]
    whole = (*arrays, *(array for array in held if array is not None))
    same = tuple(array for array in shared if array is not None)
    vector, is_aligned = _access(arrays, whole, same, n, steps, outer, is_column)
    has_steps = any(step != 1 for step in steps[: len(arrays)])
    is_peeled = vector > 1 and not is_aligned
    accesses = ", 16-byte accesses" * (vector > 1) + ", edges apart" * is_peeled
    lie = f"{'columns' if is_column else 'rows'}{accesses}"
    device.choose(lie, (out.numel() // n, n), *arrays)
    if is_column and vector > 1:
        outer = outer.in_vectors(vector)
    count = planned_rows(device, outer.numel)
    is_tall = is_column and n > device.tuned(tall)
    reach = n + vector - 1 if is_peeled else n  # from the multiple of 16 bytes before a row
    splits, part, split = 1, 0, None
    is_dense = vector > 1 if is_column else not has_steps
    if is_dense and not is_tall and len(outer.sizes) <= ROW_RANK:
        rank = len(outer.sizes)
        if norm is not None:
            copies = len(same) if is_peeled else 0
            splits, part, split = count_splits_of_norm(reach, norm, copies)
        else:
            splits, part, split = count_splits(device, reach, size, inputs, is_column, rank)
    rest, most_registers = 0, 0
    if is_tall:
        kind, warps = REDUCED_CHUNKS.value, device.tuned("rows.triton.chunk_warps")
        strip_bytes = device.tuned("rows.both.strip_bytes")
        side = min(strip_bytes // (size * vector), power_of_2(outer.numel))
        bytes = device.tuned("rows.triton.chunk_tile_bytes")
        tile = min(
            device.tuned("rows.triton.chunk_tile"),
            bytes // sum(array.element_size() for array in arrays[1:]),
        )
        block = max(tile // (vector * side), 1)
    elif split is not None:
        kind = (SPLIT_COLUMNS if is_column else SPLIT_ROWS).value
        side = device.tuned("rows.triton.column_bytes") // (size * vector) if is_column else 1
        block, warps = part, split.warps
        if not is_column:
            second = device.tuned("rows.triton.second_block", size)
            block, rest = blocks_of(-(-reach // (splits * vector)) * vector, second)
    else:
        second = device.tuned("rows.triton.second_block", size)
        if norm is not None:
            second = norm.second_block(reach)
        kind, side, block, rest, warps = choose_tile(
            device, reach, count, size, vector, is_column, inputs, second
        )
        if kind == ROWS.value and norm is not None and size < 8:
            warps, most_registers = norm.held((block + rest) * side)
        if kind == ROWS.value and side == 1:
            warps = at_once(device, count, block + rest, warps)
    once = False
    if side == 1 and warps > 1:
        block, rest, once = exchange_once(device, block, rest, warps * 32 * vector)
    if split is not None and not is_column:
        splits = -(-reach // (block + rest))  # as the kernel counts them (`part_of_row`)
    # Where a program's part of a row begins is a product with a step: if the compiler knew it, it
    # would add the part to each offset, and run out of registers.
    keeps_steps = has_steps or split is not None
    launches: list[Launch] = []
    states: Part | None = None
    last: Part | None = None  # of scratch
    for slice, start in outer.slices(ROW_RANK):
        scalars: list[Scalar] = [n // vector if is_aligned and not is_column else n, slice.numel]
        scalars += padded(slice.sizes)
        place = 0
        for array in (out, *sources):
            if array is None:
                scalars += [None] * (ROW_RANK + 2)
                continue
            scalars += strides_of(slice, start, place)
            scalars.append(steps[place] if keeps_steps else ONE)
            place += 1
        if statistic is not None:
            scalars += [*strides_of(slice, start, place), statistic.strides[0]]
        elif statistics:
            scalars += [None] * (ROW_RANK + 2)
        strips = -(-slice.numel // side)
        programs, most, registers_of = strips, 1, most_registers or None
        if is_tall:
            chunks = count_chunks(device, n, strips, block)
            states = Part(mailbox_dtype(out), chunks * slice.numel * vector * CHUNK_FIELDS)
            programs = strips * chunks
            if vector > 1:
                each = device.tuned("rows.triton.chunk_programs", len(slice.sizes))
                registers_of = registers(warps, each)
        elif split is not None:
            width = side * vector if is_column else 1
            states = Part(mailbox_dtype(out), strips * width * splits * STATE_FIELDS)
            programs = device.programs(strips * splits, split.programs, splits)
            most = power_of_2(max(splits, warps * 32 // width if is_column else 1))
            registers_of = registers(warps, split.programs)
        parameters: tuple[Operand | Part | None, ...] = shared
        last = states
        if is_peeled and same:
            parameters, last, copying = copy_shifted(device, shared, n, vector, states)
            launches.append(copying)
        pointers = (*sources, *parameters, *statistics, *held, states, out)
        for launched in (kind, MAPPED_CHUNKS.value) if is_tall else (kind,):
            shape = (len(slice.sizes), has_steps, vector, is_aligned, side, block, rest)
            constants = (launched, *shape, once, warps * 32, most)
            launches.append(
                Launch(
                    kernel,
                    (programs,),
                    pointers,
                    tuple(scalars),
                    constants if split is not None else (*constants, ALL_PHASES.value),
                    warps,
                    numbers,
                    phases=2 if split is not None else 0,
                    per_multiprocessor=None if split is None else split.programs,
                    max_registers=registers_of,
                )
            )
    scratch = None
    if last is not None:
        zeroed = 0 if is_tall or states is None else states.end
        scratch = Scratch(last.end, zeroed, "call")
    blocks = f"{block} and {rest}" if rest else f"{block}"
    accesses = ", 16-byte accesses" * is_aligned + ", whole accesses, edges apart" * is_peeled
    name = f"{NAMES[kind]}, blocks of {blocks}{accesses}"
    return Plan(name, tuple(launches), scratch)


def padded(numbers: tuple[int, ...]) -> tuple[int | None, ...]:
    """For each dimension that a kernel takes; None, which costs nothing, where there is none."""
    return (*numbers, *(None,) * (ROW_RANK - len(numbers)))


def strides_of(slice: Layout, start: tuple[int, ...], array: int) -> tuple[int | None, ...]:
    """Where an array's first row begins, and its strides."""
    first = start[array] if start else 0
    return first, *padded(tuple(stride[array] for stride in slice.strides))
