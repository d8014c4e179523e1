"""The sum of a tensor over all ranks of a group, a residual added, and the RMS norm: one launch.

Kernels and launcher. Twin of csrc/ops/distributed/all_reduce_add_rms_norm.cu.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import NOTHING, Launch, Operand, Unseen
from diglot.triton_ops.lib.math import reciprocal_root
from diglot.triton_ops.lib.sync import signal
from diglot.triton_ops.lib.sync.exchange import most_programs, name_of, numbers
from diglot.triton_ops.lib.types import convert

NUMBER = tl.constexpr(10)  # for reports
WARPS = 16
THREADS = 32 * WARPS
MOST_ROW_BYTES = 32 << 10


@triton.jit
def factor_of(squares, columns, eps):
    """1 / sqrt(mean square + eps)."""
    return reciprocal_root(squares / columns.to(tl.float32) + eps)


@triton.jit
def row_of(array, row, columns, BLOCK: tl.constexpr):
    """Pointers to a row, which begins at a multiple of 16 bytes, and the mask of its elements."""
    i = tl.arange(0, BLOCK)
    ELEMENTS: tl.constexpr = 128 // array.dtype.element_ty.primitive_bitwidth
    is_there = tl.max_constancy(i < columns, (ELEMENTS,))
    return tl.multiple_of(array + row * columns, 16) + i, is_there


@triton.jit
def load_row(array, row, columns, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr):
    """A row. IS_WHOLE: it has BLOCK elements, so that masks take no registers."""
    pointers, is_there = row_of(array, row, columns, BLOCK)
    if IS_WHOLE:
        return tl.load(pointers)
    else:  # noqa: RET505
        return tl.load(pointers, mask=is_there, other=0)


@triton.jit
def store_row(array, row, columns, values, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr):
    pointers, is_there = row_of(array, row, columns, BLOCK)
    if IS_WHOLE:
        tl.store(pointers, values)
    else:
        tl.store(pointers, values, mask=is_there)


@triton.jit
def rows_pull(
    space, input, residual, weight, statistics, sum, out, rank, first, rows, columns, staging,
    buffer_bytes, eps, call, source, patience,
    RANKS: tl.constexpr, IS_STAGED: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_STATISTICS: tl.constexpr, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr,
    THREADS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """Each row has a program, the same on all ranks, which reads the row of all ranks."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    # Whether a thread has registers for its part of the weight while the program reduces.
    HOLDS_WEIGHT: tl.constexpr = HAS_WEIGHT and BLOCK * DTYPE.primitive_bitwidth <= 256 * THREADS
    peers = signal.peers(space, rank, RANKS, THREADS)
    sources = signal.places(space, 0 if IS_STAGED else source, RANKS)
    start, turn = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    if IS_STAGED:  # this load is in flight while the epoch is
        values = load_row(input, first + start, columns, BLOCK, IS_WHOLE)
    epoch, patience = signal.begin(space, patience)
    buffer = staging * 0
    if IS_STAGED:
        buffer = staging + (epoch & 1) * buffer_bytes
        target = (space.to(tl.int64, bitcast=True) + buffer).to(tl.pointer_type(DTYPE))
        store_row(target, start, columns, values, BLOCK, IS_WHOLE)
        for row in range(start + turn, rows, turn):
            values = load_row(input, first + row, columns, BLOCK, IS_WHOLE)
            store_row(target, row, columns, values, BLOCK, IS_WHOLE)
    has_met = signal.meet(space, peers, signal.OPENING, rank, NUMBER, call, epoch, patience)
    for row in range(start, rows, turn):
        added = load_row(residual, first + row, columns, BLOCK, IS_WHOLE)
        array = (sources[0] + buffer).to(tl.pointer_type(DTYPE))
        total = load_row(array, row, columns, BLOCK, IS_WHOLE).to(tl.float32)
        for r in tl.static_range(1, RANKS):
            array = (sources[r] + buffer).to(tl.pointer_type(DTYPE))
            total += load_row(array, row, columns, BLOCK, IS_WHOLE).to(tl.float32)
        total = convert(tl.where(has_met, total, float("nan")), DTYPE).to(tl.float32)
        # Rounded as all_reduce rounds, and then as add_rms_norm does.
        rounded = convert(total + added.to(tl.float32), DTYPE)
        store_row(sum, first + row, columns, rounded, BLOCK, IS_WHOLE)
        total = rounded.to(tl.float32)
        if HOLDS_WEIGHT:  # this load is in flight while the program reduces
            scales = load_row(weight, 0, columns, BLOCK, IS_WHOLE)
        squares = tl.sum(total * total)  # elements behind the row are 0
        if not IS_STAGED:
            if row + turn >= rows:  # the program has read the peers' last row
                signal.arrive(space, peers, signal.CLOSING, rank, call, epoch, patience)
        factor = factor_of(squares, columns, eps)
        if HAS_STATISTICS:
            tl.store(statistics + first + row, factor)
        total *= factor
        if HAS_WEIGHT:
            if not HOLDS_WEIGHT:
                scales = load_row(weight, 0, columns, BLOCK, IS_WHOLE)
            total *= scales.to(tl.float32)
        store_row(out, first + row, columns, convert(total, DTYPE), BLOCK, IS_WHOLE)
    if not IS_STAGED:
        signal.wait(space, peers, signal.CLOSING, rank, NUMBER, call, epoch, patience)


@launcher
def all_reduce_add_rms_norm(
    workspaces: Unseen,
    workspace: Operand,
    input: Operand,
    residual: Operand,
    weight: Operand | None,
    group: str,
    protocol: str,
    rank: int,
    ranks: int,
    packets: int,
    most_pushed: int,
    staging: int,
    most_staged: int,
    blocks: int,
    call: Unseen,
    source: Unseen,
    patience: Unseen,
    eps: float,
    statistics: Operand | None,
    sum: Operand,
    out: Operand,
) -> Plan:
    """The sum of `input` over the ranks, rounded, and `residual`: `sum`; its RMS norm: `out`.

    Args:
        residual, weight: of the dtype of `input`. Rows begin at multiples of 16 bytes.
        statistics: the factor of each row, float32.
        Others: as in `all_reduce`.
    """
    if input.numel() == 0:
        return NOTHING
    columns = input.shape[-1]
    rows, row_bytes = input.numel() // columns, columns * input.element_size()
    tensors: list[Any] = [input, residual, sum, out, *([] if weight is None else [weight])]
    if row_bytes % 16 or not all(tensor.is_aligned for tensor in tensors):
        raise ValueError("all_reduce_add_rms_norm: rows begin at multiples of 16 bytes")
    if row_bytes > MOST_ROW_BYTES:
        raise ValueError("all_reduce_add_rms_norm: a row has more than 32 KiB")
    if protocol == "push":
        raise ValueError("all_reduce_add_rms_norm: rows are pulled")
    is_staged = protocol != "in place"
    most = most_staged // row_bytes if is_staged else rows
    if most == 0:
        raise ValueError("all_reduce_add_rms_norm: a row is longer than a buffer")
    pointers = (workspace, input, residual, weight, statistics, sum, out)
    has = (weight is not None, statistics is not None)
    device, registers = out.device, 64 if ranks <= 2 else 128
    programs = most_programs(blocks, out)
    if ranks > 2:  # a program fills an SM, and the programs of two groups run at once
        programs = max(programs // 2, 1)
    block = max(THREADS, triton.next_power_of_2(columns))
    launches = tuple(
        Launch(
            rows_pull,
            (device.programs(min(count, programs), 1),),
            pointers,
            (rank, first, count, columns, staging, most_staged, eps),
            (ranks, is_staged, *has, block, columns == block, THREADS),
            WARPS,
            numbers,
            phases=1,
            per_multiprocessor=1,
            max_registers=registers,
        )
        for first in range(0, rows, most)
        for count in (min(most, rows - first),)
    )
    return Plan(name_of(protocol), launches, None)
