"""Sums over rows for the gradients of weight and bias: each group's, and those of all groups.

Twin of csrc/include/diglot/norm/group_sums.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.rows.tile import bytes_of_access
from diglot.triton_ops.lib.types import convert


@triton.jit
def store_sums(
    workspace, FIELD: tl.constexpr, group, groups, first, index, n, mask, sums,
    LATER: tl.constexpr, VECTOR: tl.constexpr, result=None,
):  # fmt: skip
    """Writes a group's sums of a field: the sums of a tile's rows. With LATER, adds the sums that
    are already in the workspace. With `result`, there is one group, and its sums are the result.
    `index` counts from column `first` on, in accesses of VECTOR elements.
    """
    wide = index if len(index.shape) == 2 else index[None, :]
    total = sums if sums.shape[0] == 1 else tl.sum(sums, 0, keep_dims=True)
    if result is not None:
        tl.store(
            columns_from(result, first) + wide, convert(total, result.dtype.element_ty), mask=mask
        )
    else:
        pointers = columns_from(workspace + (FIELD * groups + group) * n, first) + wide
        if VECTOR > 1:
            BYTES: tl.constexpr = bytes_of_access(workspace.dtype.element_ty, VECTOR)
            pointers = tl.multiple_of(pointers, [16, BYTES])
        if LATER:
            total += tl.load(pointers, mask=mask, other=0.0)
        tl.store(pointers, total, mask=mask)


@triton.jit
def columns_from(pointer, first):
    """A pointer to column `first`; a column of pointers if that depends on the row."""
    begin = pointer + first
    return begin[:, None] if len(begin.shape) == 1 else begin


@triton.jit
def sum_groups(
    workspace, result, field, n, groups, room, column, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """result = the sums of a field over groups, in order, for BLOCK columns from `column` on.

    The workspace has room for `room` groups. TILES of ROWS groups hold all. The loop is unrolled,
    so that their loads are in flight at once.
    """
    index = column + tl.arange(0, BLOCK)
    inside = index < n
    part = tl.arange(0, ROWS)
    sums = tl.full((ROWS, BLOCK), 0.0, workspace.dtype.element_ty)
    for tile in tl.static_range(TILES):
        group = tile * ROWS + part
        pointers = workspace + ((field * room + group) * n)[:, None] + index[None, :]
        sums += tl.load(pointers, mask=(group < groups)[:, None] & inside[None, :], other=0.0)
    total = convert(tl.sum(sums, 0), result.dtype.element_ty)
    tl.store(result + index, total, mask=inside)
