"""Rows times a vector, and each product's share of them all: kernel and launcher. Twin of
csrc/ops/project_rows.cu.
"""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.global_ import BARRIER, barrier_scratch
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import ALL_PHASES, Launch, Operand
from diglot.triton_ops.lib.sync import grid_barrier

ROWS, MOST_COLUMNS = 32, 1024


@triton.jit
def project_rows_phases(
    input, weight, barrier_state, dots, shares, total, rows, n,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """All programs meet, and each sums what all of them found."""
    column = tl.arange(0, COLUMNS)
    for first in range(tl.program_id(0) * BLOCK, rows, tl.num_programs(0) * BLOCK):
        row = first + tl.arange(0, BLOCK)
        if PHASE != 2:
            mask = (row < rows)[:, None] & (column < n)[None, :]
            tile = tl.load(input + row[:, None] * n + column[None, :], mask=mask, other=0)
            vector = tl.load(weight + column, mask=column < n, other=0)
            tl.store(dots + row, tl.sum(tile * vector[None, :], 1), mask=row < rows)
    if PHASE == ALL_PHASES:
        grid_barrier.sync(barrier_state)
    if PHASE != 1:
        sum = 0.0
        for first in range(0, rows, BLOCK):
            row = first + tl.arange(0, BLOCK)
            sum += tl.sum(tl.load(dots + row, mask=row < rows, other=0))
        for first in range(tl.program_id(0) * BLOCK, rows, tl.num_programs(0) * BLOCK):
            row = first + tl.arange(0, BLOCK)
            dot = tl.load(dots + row, mask=row < rows, other=0)
            tl.store(shares + row, dot / sum, mask=row < rows)
        if tl.program_id(0) == 0:
            tl.store(total, sum)


@launcher
def project_rows_forward(
    input: Operand, weight: Operand, dots: Operand, shares: Operand, total: Operand
) -> Plan:
    """dots = input @ weight, shares = dots / sum(dots), total = sum(dots)."""
    rows, n = input.shape
    launch = Launch(
        project_rows_phases,
        (input.device.programs(-(-rows // ROWS), 1),),
        (input, weight, BARRIER, dots, shares, total),
        (rows, n),
        (ROWS, MOST_COLUMNS),
        4,
        phases=2,
        per_multiprocessor=1,
    )
    return Plan("rows in a tile", (launch,), barrier_scratch())
