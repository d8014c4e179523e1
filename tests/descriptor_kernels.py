"""Launchers whose kernels use tensor descriptors, for tests: made by the host, and by programs."""

from __future__ import annotations

import triton
import triton.language as tl

from diglot.triton_ops.launch.descriptors import Descriptor
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import Launch, Operand, Plan, Unseen

TILE = (32, 64)


@triton.jit
def transpose_by_descriptors(input, out, factor, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    tile = input.load([row, column]) * factor
    out.store([column, row], tl.trans(tile).to(out.dtype))


@triton.jit
def transpose_by_pointers(
    input, out, rows, columns, row_stride, column_stride, out_row_stride, out_column_stride,
    factor, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]).to(tl.int64)
    is_inside = (row < rows) & (column < columns)
    tile = tl.load(input + row * row_stride + column * column_stride, is_inside) * factor
    place = out + column * out_row_stride + row * out_column_stride
    tl.store(place, tile.to(out.dtype.element_ty), is_inside)


def _factor(factor: int) -> tuple[int, ...]:
    return (factor,)


@launcher
def transpose(input: Operand, factor: Unseen, out: Operand) -> Plan:
    """out [c, r] = factor * input [r, c]"""
    grid = triton.cdiv(input.shape[0], TILE[0]), triton.cdiv(input.shape[1], TILE[1])
    flipped = TILE[::-1]
    if Descriptor.fits(input, TILE) and Descriptor.fits(out, flipped):
        pointers = Descriptor(input, TILE), Descriptor(out, flipped)
        launch = Launch(transpose_by_descriptors, grid, pointers, (), TILE, 4, _factor)
        return Plan("by descriptors", (launch,), None)
    scalars = (*input.shape, *input.strides, *out.strides)
    launch = Launch(transpose_by_pointers, grid, (input, out), scalars, TILE, 4, _factor)
    return Plan("by pointers", (launch,), None)


@triton.jit
def copy_padded(input, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + place, input.load([0, 0]))


@launcher
def pad(input: Operand, padding: str, out: Operand) -> Plan:
    """The first tile of the input, padded. The output has the tile's shape."""
    block = out.shape[0], out.shape[1]
    pointers = Descriptor(input, block, padding), out
    return Plan(padding, (Launch(copy_padded, (1,), pointers, (), block, 4),), None)


@triton.jit
def sum_rows_by_descriptor(
    input, out, rows, columns, row_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    # Not by a method: PyTorch's compiler passes numbers as constants.
    shape = [tl.cast(rows, tl.int32), tl.cast(columns, tl.int32)]
    described = tl.make_tensor_descriptor(input, shape, [row_stride, 1], [ROWS, COLUMNS])
    row = tl.program_id(0) * ROWS
    total = tl.zeros([ROWS], tl.float32)
    for column in range(0, shape[1], COLUMNS):
        total += tl.sum(described.load([row, column]).to(tl.float32), 1)
    place = row + tl.arange(0, ROWS)
    tl.store(out + place, total, place < rows)


@launcher
def sum_rows(input: Operand, descriptors: int, out: Operand) -> Plan:
    """Sums of rows in float32; the launch has room for that number of descriptors."""
    rows, columns = input.shape
    grid = (triton.cdiv(rows, TILE[0]),)
    scalars = (rows, columns, input.strides[0])
    launch = Launch(
        sum_rows_by_descriptor, grid, (input, out), scalars, TILE, 4, descriptors=descriptors
    )
    return Plan("by descriptors", (launch,), None)
