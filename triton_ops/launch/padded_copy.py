"""Host side of padded copies: when one pays, and where it lies. Twin of
csrc/include/diglot/launch/padded_copy.h.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

# Relative, because mypy finds this folder under its name in the tree.
from .descriptors import Descriptor
from .layout import row_major_strides
from .plan import Operand, Part
from .products import Product, tiles_of

# A line of a copy begins at a multiple of this: TMA then reads whole lines of the cache.
LINE_BYTES = 128
SMALLEST = (16, 16)  # a tile: where one of these fits, larger ones do

# Multiply-adds of an H200's SM, by the kernel that computes addresses, in the time of a launch, 2.5
# microseconds. And those of all its SMs in the time of a byte, at 4 TB/s.
OF_LAUNCH, OF_BYTE = 1 << 20, 16
TILE = (128, 128, 32)  # of that kernel
IEEE_SPEED = 0.25  # that of float32 without tensor cores, as a part of it


@dataclass(frozen=True)
class Matrix:
    """A or B as a descriptor reads it: where it lies, or a copy.

    Attributes:
        source: a matrix, or a batch of matrices, whose rows are lines of the copy.
        part: where in scratch the copy lies; None: there is no copy.
    """

    source: Operand
    part: Part | None = None

    @property
    def unit(self) -> int:
        """Elements of 128 bytes: a line of a copy has a multiple of them."""
        return LINE_BYTES // self.source.element_size()

    @property
    def units(self) -> int:
        """Such multiples in a line of the copy."""
        return -(-self.source.shape[-1] // self.unit)

    @property
    def rows(self) -> Operand | None:
        """The rows of all matrices of a batch, as those of one; None where no step fits them."""
        *counts, rows, columns = self.source.shape
        *steps, row, column = self.source.strides
        for count, step in zip(reversed(counts), reversed(steps), strict=True):
            if rows > 1 and step != rows * row:
                return None
            rows, row = count * rows, step if rows == 1 else row
        return dataclasses.replace(self.source, shape=(rows, columns), strides=(row, column))

    def copied(self, before: Part | None) -> Matrix:
        """The same with a copy, which lies behind another part of scratch."""
        elements = math.prod((*self.source.shape[:-1], self.units, self.unit))
        return Matrix(self.source, Part(self.source.dtype, elements).after(before))

    @property
    def fits(self) -> bool:
        """Whether a descriptor takes the matrix itself."""
        return Descriptor.fits(self.source, in_batch(self.source, SMALLEST))

    def descriptor(self, block: tuple[int, int]) -> Descriptor:
        """The descriptor of the matrix, or of its copy."""
        shape = in_batch(self.source, block)
        if self.part is None:
            return Descriptor(self.source, shape)
        lines = (*self.source.shape[:-1], self.units * self.unit)
        strides = row_major_strides(lines)
        return Descriptor(
            dataclasses.replace(self.source, strides=strides, address=0), shape, part=self.part
        )


def in_batch(matrices: Operand, block: tuple[int, int]) -> tuple[int, ...]:
    """A block of a matrix, as a block of these matrices."""
    return (*(1,) * (matrices.dim() - 2), *block)


def readable(product: Product, a: Operand, b: Operand) -> tuple[Matrix, Matrix] | None:
    """A and B, as matrices, with copies of those that a descriptor does not take; None where there
    are no such copies, or they do not pay.
    """
    matrices = [Matrix(operand) for operand in (a, b)]
    if not all(m.fits or m.rows for m in matrices):
        return None
    matrices = [m if m.fits else m.copied(None) for m in matrices]
    bytes = sum(m.part.end for m in matrices if m.part is not None)
    if bytes and not is_worth(product, bytes):
        return None
    return copied_behind(None, matrices[0], matrices[1])


def copied_behind(before: Part | None, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """A and B, with their copies one behind the other, behind another part of scratch."""
    if a.part is not None:
        a = a.copied(before)
        before = a.part
    return a, b if b.part is None else b.copied(before)


def is_worth(product: Product, bytes: int, speed: float = 1) -> bool:
    """Whether a product is worth copies of these bytes.

    A copy takes the time of its launch, and that of its bytes, which the GPU reads and writes. The
    kernel that computes addresses takes the time of the multiply-adds of the busiest SM.

    Args:
        speed: of that kernel, where its multiply-adds are slower than those of 16 bits.
    """
    multiprocessors = max(product.c.device.multiprocessors, 1)
    tiles = tiles_of(product.planned_sizes, TILE, product.batches.numel)[-1]
    busiest = math.prod((-(-tiles // multiprocessors), *TILE[:2], product.sizes[2]))
    return busiest > speed * (OF_LAUNCH + 2 * bytes * OF_BYTE // multiprocessors)
