"""Products of groups of matrices in plain PyTorch: the launcher of the backend "torch", and the
oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diglot.reference.compute_eps import compute_eps
from diglot.reference.specs import CallSpec, Expected

ALIGNMENT = 16  # bytes: of PyTorch's op


def grouped_mm_forward(
    input: Tensor, other: Tensor, offs: Tensor | None, out: Tensor, scratch: Tensor | None
) -> str:
    """out = input @ other, group by group."""
    if offs is None:
        torch.matmul(input, other, out=out)
        return "aten"
    if input.dim() == 3:  # groups of columns are rows of transposes
        input, other, out = other.mT, input.mT, out.mT
    # PyTorch's op asks for aligned groups along a contiguous dimension. It stops the GPU at others.
    divided = [(input, -1), (other, -2)] if other.dim() == 2 else [(input, -2)]
    is_apart = all(matrix.stride(dim) != 1 for matrix, dim in divided)
    if input.is_cuda and is_apart and _takes(input) and _takes(other):
        # It stops the GPU at offsets that are not sorted, or run past the end.
        size = input.shape[1] if other.dim() == 2 else len(input)
        offs = offs.clamp(0, size).cummax(0).values.to(torch.int32)
        out.copy_(torch._grouped_mm(input, other, offs=offs))
        if other.dim() == 3:  # what PyTorch leaves as it was
            rows = torch.arange(len(out), device=out.device)[:, None]
            out.masked_fill_(rows >= offs[-1], 0.0)
        return "aten"
    grouped_product(input, other, offs.tolist(), out)
    return "aten, offsets on the host"


def _takes(matrix: Tensor) -> bool:
    """Whether PyTorch's op takes an operand."""
    *_, row, column = matrix.stride()
    steps = ALIGNMENT // matrix.element_size()
    rows, columns = matrix.shape[-2:]
    is_dense = (column == 1 and row >= columns) or (row == 1 and column >= rows)
    return (
        matrix.dtype == torch.bfloat16
        and matrix.numel() > 0
        and is_dense
        and max(row, column) % steps == 0
        and matrix.data_ptr() % ALIGNMENT == 0
    )


def grouped_product(input: Tensor, other: Tensor, offsets: list[int], out: Tensor) -> None:
    """out = input @ other, of groups of rows, or of K where `other` is one matrix."""
    divides_k = other.dim() == 2
    size = input.shape[1] if divides_k else input.shape[0]
    begin = 0
    for group, offset in enumerate(offsets):
        end = min(max(offset, begin), size)
        if divides_k:
            torch.matmul(input[:, begin:end], other[begin:end], out=out[group])
        else:
            out[begin:end] = input[begin:end] @ other[group]
        begin = end
    if not divides_k:
        out[begin:] = 0


def grouped_mm_oracle(input: Tensor, other: Tensor, offs: Tensor | None) -> Tensor:
    """input @ other, group by group, in float64."""
    input, other = input.detach().double(), other.detach().double()
    if offs is None:
        return input @ other
    if input.dim() == 3:
        return grouped_mm_oracle(other.mT, input.mT, offs).mT
    product = input.shape[0], other.shape[-1]
    out = input.new_empty((len(offs), *product) if other.dim() == 2 else product)
    grouped_product(input, other, offs.tolist(), out)
    return out


def expected_grouped(input: Tensor, other: Tensor, offs: Tensor | None) -> Expected:
    """The right values, and how far rounded sums may be from them, as for other products."""
    right = grouped_mm_oracle(input, other, offs)
    magnitude = grouped_mm_oracle(input.abs(), other.abs(), offs)
    allowance = (input.shape[-1] + 1) * compute_eps(input.dtype) * magnitude
    return Expected(lambda right: right, (right,), {}, input.dtype, allowance.nan_to_num(0.0))


def _call(function: Callable[..., Any], input: Tensor, other: Tensor, **options: Any) -> Tensor:
    """Two groups of rows, of as many rows each."""
    offs = torch.tensor([len(input) // 2, len(input)], dtype=torch.int32, device=input.device)
    result: Tensor = function(input, other, offs=offs, **options)
    return result


def _shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Of the rows, and a square matrix for each group."""
    return [shape, (2, shape[-1], shape[-1])]


SPEC = CallSpec(
    name="grouped_mm",
    inputs=("input", "other"),
    floating_only=True,
    call=_call,
    shapes=_shapes,
)
