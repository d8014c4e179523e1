"""A product's operands as matrices and a batch of them. Twin of
csrc/include/diglot/launch/products.h.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Relative, because mypy finds this folder under its name in the tree.
from .layout import Layout, compute_layout
from .numbers import number_halves
from .plan import ACCESS_BYTES, Operand

# A matrix's side that 32-bit numbers hold, though they step past it by a tile's side.
MOST_SIDE = (1 << 31) - 1 - 1024
Steps = tuple[int, int, int, int]  # of C, A, B and the input


ACTIVATIONS = ("none", "relu", "silu", "gelu", "gelu_tanh")


@dataclass(frozen=True)
class Around:
    """What follows a product's sums, as lib/products/epilogue.py says.

    Attributes:
        bias: (n).
        input, before: of C's sizes; `before` has C's strides.
        activation: one of ACTIVATIONS.
        is_slope: whether it is the activation's derivative.
        is_scaled: whether the launcher has the numbers beta and alpha. Otherwise they are 1.
    """

    bias: Operand | None = None
    input: Operand | None = None
    before: Operand | None = None
    activation: str = "none"
    is_slope: bool = False
    is_scaled: bool = False

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {ACTIVATIONS}, not {self.activation!r}")


@dataclass(frozen=True)
class Product:
    """The operands of C = A B, and what follows it.

    A is (..., m, k), B (..., k, n) and C (..., m, n). The dimensions before the last two, the
    batch's, broadcast to those of C.

    Attributes:
        a, b, c: the operands.
        around: what follows.
        sizes: m, n, k.
        strides: of a row and of a column of A, B, C and the input.
        batches: the batch's layout in C, A, B and the input.
        is_batch_invariant: whether a row's bits must not depend on M.
        is_tf32: of float32, whether tensor cores may ignore 13 bits of operands.
        row_sums: (m), gets the sums of A's rows; None: nobody wants them.
    """

    a: Operand
    b: Operand
    c: Operand
    around: Around
    sizes: tuple[int, int, int]
    strides: tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]
    batches: Layout
    is_batch_invariant: bool = False
    is_tf32: bool = False
    row_sums: Operand | None = None

    @property
    def is_wide(self) -> bool:
        """Whether C is float32 while A and B have 16 bits."""
        return self.c.dtype == torch.float32 and self.a.element_size() == 2

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
            layout += ", wide" * self.is_wide + ", row sums" * (self.row_sums is not None)
            self.c.device.choose(layout, (*self.sizes, self.batches.numel), self.a)

    def with_precision(self, precision: str) -> Product:
        """The same, of a precision of float32 products: "ieee" or "tf32"."""
        is_tf32 = precision == "tf32" and self.a.dtype == torch.float32
        return dataclasses.replace(self, is_tf32=is_tf32)

    @property
    def is_empty(self) -> bool:
        """Whether C has no elements."""
        return 0 in (self.sizes[0], self.sizes[1], self.batches.numel)

    @property
    def bias_stride(self) -> int:
        return 0 if self.around.bias is None else self.around.bias.strides[-1]

    @property
    def numbers(self) -> Callable[..., tuple[int, ...]] | None:
        """Makes the halves of beta and of alpha, where a launcher has them."""
        if not self.around.is_scaled:
            return None
        halves = functools.partial(number_halves, dtype=self.c.dtype)
        return lambda beta, alpha: (*halves(beta), *halves(alpha))

    @property
    def no_numbers(self) -> tuple[None, ...]:
        """What takes their place where it has none."""
        return () if self.around.is_scaled else (None,) * 4

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
    a: Operand,
    b: Operand,
    c: Operand,
    around: Around = Around(),
    is_batch_invariant: bool = False,
) -> Product:
    """The product of these operands.

    Rows of all matrices of a batch that share B are rows of one matrix, where the others step
    through them as through one.

    Raises:
        ValueError: `before` and C have different strides.
    """
    if around.before is not None and around.before.strides != c.strides:
        raise ValueError("before must have the strides of out")
    input = around.input
    none = (0,) * c.dim()  # an input that is absent takes no steps
    beside = dataclasses.replace(c, strides=none) if input is None else input
    rank = c.dim() - 2
    batch: list[tuple[int, Steps]] = []
    for d in range(rank):
        steps = tuple(_step(operand, d - rank) for operand in (c, a, b, beside))
        batch.append((c.shape[d], (steps[0], steps[1], steps[2], steps[3])))
    m, n, k = c.shape[-2], c.shape[-1], a.shape[-1]
    rows = c.strides[-2], a.strides[-2], beside.strides[-2]
    while batch:
        count, (c_step, a_step, b_step, input_step) = batch[-1]
        if count != 1:
            steps_of_rows = c_step, a_step, input_step
            if b_step != 0:
                break
            if m == 1:
                rows = steps_of_rows
            elif steps_of_rows != tuple(m * row for row in rows):
                break
            m *= count
        batch.pop()
    sizes = tuple(size for size, _ in batch)
    strides = tuple(tuple(steps[array] for _, steps in batch) for array in range(4))
    layout = compute_layout((sizes,) * 4, strides)
    steps_of_matrices = (
        (rows[1], a.strides[-1]),
        (b.strides[-2], b.strides[-1]),
        (rows[0], c.strides[-1]),
        (rows[2], beside.strides[-1]),
    )
    return Product(a, b, c, around, (m, n, k), steps_of_matrices, layout, is_batch_invariant)


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
