"""A grouped product's operands, with groups of rows or of K. Twin of
csrc/include/diglot/launch/grouped_products.h.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from diglot.triton_ops.lib.products.ragged import RUN as RUN_OF_KERNELS

# Relative, because mypy finds this folder under its name in the tree.
from .plan import ACCESS_BYTES, Operand

# Of ragged descriptors (lib/products/ragged.py): rows of a run at most, sizes that no coordinate
# exceeds, and a step. RUN steps are 2^64 elements: none, as addresses wrap around.
RUN: int = RUN_OF_KERNELS.value
MOST, AROUND = (1 << 31) - (1 << 16), (1 << 64) // RUN


def ragged(matrix: Operand) -> Operand:
    """A matrix, as a descriptor sees it whose tiles end with any run of its rows."""
    (_, columns), (row, column) = matrix.shape, matrix.strides
    shape, strides = (MOST, MOST, RUN, columns), (AROUND - row, row, row, column)
    return dataclasses.replace(matrix, shape=shape, strides=strides)


def with_step(matrix: Operand) -> Operand:
    """A matrix; that of a single row has a step of a multiple of 16 bytes, which is of no account
    but to a descriptor.
    """
    if matrix.shape[0] > 1:
        return matrix
    elements = ACCESS_BYTES // matrix.element_size()
    step = -(-matrix.shape[1] // elements) * elements
    return dataclasses.replace(matrix, strides=(step, matrix.strides[1]))


def transposed(operand: Operand) -> Operand:
    """A matrix's transpose, or those of a batch of matrices."""
    (*batch, rows, columns), (*steps, row, column) = operand.shape, operand.strides
    return dataclasses.replace(
        operand, shape=(*batch, columns, rows), strides=(*steps, column, row)
    )


@dataclass(frozen=True)
class GroupedProduct:
    """The operands of C = A B for each group.

    Groups divide the rows of A and C, and each has a matrix of B. Or they divide K, and each has a
    matrix of C. Groups of columns are rows of transposes.
    """

    a: Operand
    b: Operand
    offsets: Operand
    c: Operand

    @property
    def divides_k(self) -> bool:
        return self.b.dim() == 2

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, N and K of all groups."""
        return self.a.shape[0], self.b.shape[-1], self.a.shape[1]

    @property
    def groups(self) -> int:
        return self.offsets.numel()

    @property
    def divided(self) -> int:
        """The size that groups divide."""
        return self.sizes[2 if self.divides_k else 0]

    @property
    def mean(self) -> int:
        """The size of a group, on average, rounded up."""
        return -(-self.divided // max(self.groups, 1))

    @staticmethod
    def step(operand: Operand) -> int:
        """From a group's matrix of B or C to the next; 0 where all groups share one."""
        return operand.strides[0] if operand.dim() == 3 else 0

    def tiles(self, block: tuple[int, int, int]) -> tuple[int, int, int]:
        """Rows of tiles of each group, where groups divide K; columns; and how many tiles there are
        in all, whatever the offsets.
        """
        m, n, _ = self.sizes
        rows, columns = -(-m // block[0]), -(-n // block[1])
        # A row of tiles has a row of C.
        most = self.groups * rows if self.divides_k else min(m, m // block[0] + self.groups + 1)
        return rows, columns, most * columns

    def vector(self, operand: Operand, is_b: bool) -> tuple[int, int]:
        """The elements of 16-byte accesses, down a column or along a row of A or B. It is (1, 1)
        where runs of neighbours begin elsewhere, or end within such an access. A group may begin
        at any place, so the dimension that groups divide has no such accesses.
        """
        elements = ACCESS_BYTES // operand.element_size()
        *steps, row, column = operand.strides
        divided = (0 if is_b else 1) if self.divides_k else (None if is_b else 0)
        for inner, stride, outer in ((1, column, row), (0, row, column)):
            shape = operand.shape[-2:]
            others = steps + ([outer] if shape[1 - inner] > 1 else [])
            if inner == divided or stride != 1 or shape[inner] % elements:
                continue
            if operand.is_aligned and all(step % elements == 0 for step in others):
                return (elements, 1) if inner == 0 else (1, elements)
        return 1, 1


def grouped_product_of(
    input: Operand, other: Operand, offsets: Operand, out: Operand
) -> GroupedProduct:
    """The product of these operands."""
    if input.dim() == 3:
        input, other, out = transposed(other), transposed(input), transposed(out)
    return GroupedProduct(input, other, offsets, out)
