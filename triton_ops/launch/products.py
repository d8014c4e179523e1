"""A product's operands as matrices and a batch of them. Twin of
csrc/include/diglot/launch/products.h.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

# Relative, because mypy finds this folder under its name in the tree.
from .layout import Layout, compute_layout
from .plan import ACCESS_BYTES, Operand

Dimensions = list[tuple[int, tuple[int, int, int]]]


@dataclass(frozen=True)
class Product:
    """The operands of C = A B + bias.

    A is (..., m, k), B (..., k, n), C (..., m, n) and the bias (n). The dimensions before the last
    two, the batch's, broadcast to those of C.

    Attributes:
        a, b, bias, c: the operands.
        sizes: m, n, k.
        strides: of a row and of a column of A, B and C.
        batches: the batch's layout in C, A and B.
        is_batch_invariant: whether a row's bits must not depend on M.
        is_tf32: of float32, whether tensor cores may ignore 13 bits of operands.
    """

    a: Operand
    b: Operand
    bias: Operand | None
    c: Operand
    sizes: tuple[int, int, int]
    strides: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    batches: Layout
    is_batch_invariant: bool = False
    is_tf32: bool = False

    @property
    def planned_sizes(self) -> tuple[int, int, int]:
        """M, N and K for which a plan is made: of many rows, where it must not depend on M."""
        return (1 << 16, *self.sizes[1:]) if self.is_batch_invariant else self.sizes

    def choose_numbers(self, layout: str) -> None:
        """Takes the numbers that measured best for such products. Measured plans depend on M.

        Args:
            layout: how the operands lie.
        """
        if not self.is_batch_invariant:
            self.c.device.choose(layout, (*self.sizes, self.batches.numel), self.a)

    def with_precision(self, precision: str) -> Product:
        """The same, of a precision of float32 products: "ieee" or "tf32"."""
        is_tf32 = precision == "tf32" and self.c.dtype == torch.float32
        return dataclasses.replace(self, is_tf32=is_tf32)

    @property
    def is_empty(self) -> bool:
        """Whether C has no elements."""
        return 0 in (self.sizes[0], self.sizes[1], self.batches.numel)

    @property
    def bias_stride(self) -> int:
        return 0 if self.bias is None else self.bias.strides[-1]

    def vector(self, operand: Operand, strides: tuple[int, int], array: int) -> tuple[int, int]:
        """The elements of 16-byte accesses, along a row or a column of an operand: (1, 1) where its
        runs of neighbours begin elsewhere, or end within such an access.
        """
        elements = ACCESS_BYTES // operand.element_size()
        m, n, k = self.sizes
        shape = {1: (m, k), 2: (k, n)}[array]
        for inner in (1, 0):
            outer = 1 - inner
            steps = [stride[array] for stride in self.batches.strides]
            steps += [strides[outer]] if shape[outer] > 1 else []
            if strides[inner] != 1 or shape[inner] % elements or not operand.is_aligned:
                continue
            if all(step % elements == 0 for step in steps):
                return (elements, 1) if inner == 0 else (1, elements)
        return 1, 1


def product_of(
    a: Operand, b: Operand, bias: Operand | None, c: Operand, is_batch_invariant: bool = False
) -> Product:
    """The product of these operands.

    Rows of all matrices of a batch that share B are rows of one matrix, where A and C step through
    them as through one.
    """
    rank = c.dim() - 2
    batch: Dimensions = []
    for d in range(rank):
        steps = tuple(_step(operand, d - rank) for operand in (c, a, b))
        batch.append((c.shape[d], (steps[0], steps[1], steps[2])))
    m, n, k = c.shape[-2], c.shape[-1], a.shape[-1]
    a_row, c_row = a.strides[-2], c.strides[-2]
    while batch:
        count, (c_step, a_step, b_step) = batch[-1]
        if count != 1:
            if b_step != 0:
                break
            if m == 1:
                a_row, c_row = a_step, c_step
            elif (a_step, c_step) != (m * a_row, m * c_row):
                break
            m *= count
        batch.pop()
    sizes = tuple(size for size, _ in batch)
    strides = tuple(tuple(steps[array] for _, steps in batch) for array in range(3))
    layout = compute_layout((sizes,) * 3, strides)
    rows = ((a_row, a.strides[-1]), (b.strides[-2], b.strides[-1]), (c_row, c.strides[-1]))
    return Product(a, b, bias, c, (m, n, k), rows, layout, is_batch_invariant)


def _step(operand: Operand, d: int) -> int:
    """The step from a matrix to the next along the batch's dimension `d`, counted from the end; 0
    if it is the same one.
    """
    place = operand.dim() - 2 + d
    return 0 if place < 0 or operand.shape[place] == 1 else operand.strides[place]


def tiles_of(sizes: tuple[int, int, int], block: tuple[int, int, int], batches: int) -> list[int]:
    """Rows and columns of tiles, and how many there are in all."""
    rows, columns = -(-sizes[0] // block[0]), -(-sizes[1] // block[1])
    return [rows, columns, math.prod((rows, columns, batches))]
