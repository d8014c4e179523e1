"""Host side of a kernel that reduces rows and then maps them: how rows lie in the arrays, which
variant runs, and its grid. Twin of csrc/include/diglot/launch/rows.h.
"""

from __future__ import annotations

import math
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
from .norm_forward import NormRows
from .plan import ACCESS_BYTES, ALL_PHASES, NOTHING, Launch, Operand, Part, Scalar
from .row_splits import (
    CHUNK_FIELDS,
    STATE_FIELDS,
    choose_chunks,
    choose_split,
    choose_tile,
    count_chunks,
    planned_rows,
    power_of_2,
    registers,
    told_splits,
)

ROW_RANK = 3  # other dimensions of a kernel; larger arrays take a launch for each slice
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
    """Elements of a row along a dimension, the step to the next element in each array, and the
    layout of the other dimensions.

    `statistics` is the last array. It lacks the dimension, and has an additional first one.
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
    """The type in which programs write states: integers as wide as the type of the computation."""
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

    Other rows are peeled if they begin equally far from such a multiple in all arrays. Their
    accesses still have several elements. `whole`: the arrays, and others that lie as the output
    does. `same`: arrays that are the same for every row.
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
    is_peeled = not is_column and all(steps[a] == 1 for a in every)
    is_peeled = is_peeled and are_congruent(arrays, whole, outer, vector)
    is_peeled = is_peeled and n >= arrays[0].device.tuned("rows.triton.peeled_elements")
    return vector if is_peeled else 1, False


def are_congruent(
    arrays: tuple[Operand, ...], whole: tuple[Operand, ...], outer: Layout, vector: int
) -> bool:
    """Whether each row begins equally far from a multiple of 16 bytes in all arrays."""
    return (
        len({array.element_size() for array in arrays}) == 1
        and None not in (addresses := {array.address for array in whole})
        and len(addresses) == 1
        and all((s[a] - s[0]) % vector == 0 for s in outer.strides for a in range(len(arrays)))
    )


def are_alike(slice: Layout, groups: int, vector: int) -> bool:
    """Whether all rows of each group begin equally far from a multiple of 16 bytes in the first
    array. A group takes every `groups`-th row.
    """
    if slice.numel <= groups:
        return True
    step = groups if len(slice.sizes) == 1 else 1
    return all(stride[0] * step % vector == 0 for stride in slice.strides)


def rows_apart(outer: Layout, vector: int) -> int:
    """Every how many rows rows begin equally far from a multiple of 16 bytes in the first array."""
    if len(outer.sizes) != 1:
        return vector
    return vector // math.gcd(vector, outer.strides[0][0])


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

    Programs share rows whose elements are neighbours, and columns whose accesses have 16 bytes. The
    device must support cooperative launches.

    Args:
        kernel: takes pointers to the inputs, shared, statistics, held, states and the output. Then
            it takes n, count, and three sizes. For each array, the output first, it takes a start,
            three strides and a step. For statistics the step is from one statistic to the next.
            Numbers and constants come last: KIND, RANK, STEPS, VECTOR, ALIGNED, ALIKE, SIDE, BLOCK,
            PIECES, EARLY, THREADS, SPLITS and PHASE, as in `reduce_then_map_rows`.
        operands: one input or two, then the output, of one shape. The second input may be None.
        dim: a dimension of them, from 0.
        shared: arrays of one row without gaps, such as a weight, the same for every row.
        statistics: for a kernel that has some, an array (statistics, *outer); or None.
        held: a second output with the output's layout.
        numbers: makes 64-bit arguments from the launcher's unseen ones.
        norm: the norm's rows, if it is a norm.
        tall: the tunable that decides which columns take two launches.
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
    is_tall = is_column and n > device.tuned(tall)
    reach = n + vector - 1 if is_peeled else n  # from the multiple of 16 bytes before a row
    inner = max(n - vector - 1, 1) if is_peeled else n  # less the first access, and the last one
    # The most elements of one row's whole accesses, less the first and the last one.
    whole_elements = max(n // vector - 2, 1) * vector if is_peeled else n
    rank, way = len(outer.sizes), None
    # A program loads the same elements of weight and bias for all its rows, if these begin alike.
    together = rows_apart(outer, vector) if is_peeled and same else 1
    is_dense = vector > 1 if is_column else not has_steps
    if is_tall:
        sizes = tuple(array.element_size() for array in arrays[1:])
        way = choose_chunks(device, outer.numel, sizes, vector)
    elif is_dense and rank <= ROW_RANK:
        way = choose_split(
            device, reach, size, vector, inputs, is_column, rank, norm, outer.numel, is_peeled,
            together,
        )  # fmt: skip
    if way is None:
        held_by = norm.held if norm is not None and size < 8 else None
        count = planned_rows(device, outer.numel)
        way = choose_tile(
            device, inner, whole_elements, count, size, vector, is_column, inputs, held_by
        )
    kind, warps, side, block = way.kind, way.warps, way.side, way.block
    is_split = kind in (SPLIT_ROWS.value, SPLIT_COLUMNS.value)
    # The begin of a program's part of a row is a product with a step. If the compiler knew the
    # step, it would add the part to each offset, and run out of registers.
    keeps_steps = has_steps or is_split
    launches: list[Launch] = []
    states: Part | None = None
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
        programs, most, registers_of = strips, 1, way.registers
        if is_tall:
            chunks = count_chunks(device, n, strips, block)
            states = Part(mailbox_dtype(out), chunks * slice.numel * vector * CHUNK_FIELDS)
            programs = strips * chunks
            if vector > 1:
                each = device.tuned("rows.triton.chunk_programs", len(slice.sizes))
                registers_of = registers(warps, each)
        elif is_split:
            programs = device.programs(strips * way.splits, way.programs, way.splits)
            is_once = programs == strips * way.splits  # a program has one row
            if not is_once:
                alike = min(together, strips, max(device.room(way.programs) // way.splits, 1))
                programs = device.programs(strips * way.splits, way.programs, way.splits * alike)
            if is_once and norm is not None:
                way = way._replace(early=False)
            width = side * vector if is_column else 1
            states = Part(mailbox_dtype(out), strips * width * way.splits * STATE_FIELDS)
            most = told_splits(reach, block * way.pieces, way.splits)
            if is_column:
                most = power_of_2(max(way.splits, warps * 32 // width))
        is_alike = not is_peeled or are_alike(slice, programs // way.splits, vector)
        pointers = (*sources, *shared, *statistics, *held, states, out)
        for launched in (kind, MAPPED_CHUNKS.value) if is_tall else (kind,):
            shape = (side, block, way.pieces, way.early, warps * 32, most)
            constants = (
                launched, len(slice.sizes), has_steps, vector, is_aligned, is_alike, *shape
            )  # fmt: skip
            launches.append(
                Launch(
                    kernel,
                    (programs,),
                    pointers,
                    tuple(scalars),
                    constants if is_split else (*constants, ALL_PHASES.value),
                    warps,
                    numbers,
                    phases=2 if is_split else 0,
                    per_multiprocessor=way.programs if is_split else None,
                    max_registers=registers_of,
                )
            )
    scratch = None
    if states is not None:
        scratch = Scratch(states.end, 0 if is_tall else states.end, "call")
    blocks = f"{block} by {way.pieces}" if way.pieces > 1 else f"{block}"
    accesses = ", 16-byte accesses" * is_aligned + ", whole accesses, edges apart" * is_peeled
    name = f"{NAMES[kind]}, blocks of {blocks}{accesses}"
    return Plan(name, tuple(launches), scratch)


def padded(numbers: tuple[int, ...]) -> tuple[int | None, ...]:
    """A size for each dimension of a kernel. None, which costs nothing, for a missing one."""
    return (*numbers, *(None,) * (ROW_RANK - len(numbers)))


def strides_of(slice: Layout, start: tuple[int, ...], array: int) -> tuple[int | None, ...]:
    """Where an array's first row begins, and its strides."""
    first = start[array] if start else 0
    return first, *padded(tuple(stride[array] for stride in slice.strides))
