"""The common layout of several tensors. Twin of csrc/include/diglot/operand.h."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton.language as tl

if TYPE_CHECKING:
    from .plan import Operand, Scalar

MAX_RANK = 8  # dimensions that a strided kernel takes; of more, a launch takes a slice
NARROW_LIMIT = 2**31


@dataclass(frozen=True)
class Layout:
    """How the elements of several arrays of one shape lie.

    Size-1 dimensions are dropped, dimensions are ordered by the first array's strides (fastest
    first), and neighbours are merged wherever all arrays step through both as through one.

    Attributes:
        numel: number of elements.
        sizes: of each dimension.
        strides: for each dimension, the stride of each array; 0 where it is broadcast.
    """

    numel: int
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def is_flat(self) -> bool:
        """Whether every array is one dense run of elements, in the same order."""
        return len(self.sizes) <= 1 and all(s == 1 for of in self.strides for s in of)

    @property
    def is_narrow(self) -> bool:
        """Whether every linear index and every offset fits 31 bits."""
        if self.numel >= NARROW_LIMIT:
            return False
        extents = [
            sum((size - 1) * of[a] for size, of in zip(self.sizes, self.strides, strict=True))
            for a in range(len(self.strides[0]) if self.strides else 0)
        ]
        return all(extent < NARROW_LIMIT for extent in extents)

    def has_vectors(self, array: int, elements: int) -> bool:
        """Whether an array consists of runs of so many neighbouring elements.

        Each of them starts at a multiple of their number.
        """
        return (
            bool(self.sizes)
            and self.strides[0][array] == 1
            and self.sizes[0] % elements == 0
            and self.has_multiples(array, elements, 1)
        )

    def has_multiples(self, array: int, elements: int, first: int) -> bool:
        """Whether an array's steps along the dimensions from `first` on are such multiples."""
        return all(of[array] % elements == 0 for of in self.strides[first:])

    def in_vectors(self, elements: int) -> Layout:
        """The layout of the vectors of so many elements along the fastest dimension."""
        sizes = (self.sizes[0] // elements, *self.sizes[1:])
        fastest = tuple(stride * elements for stride in self.strides[0])
        return Layout(self.numel // elements, sizes, (fastest, *self.strides[1:]))

    def with_strides(self, strides: Iterable[tuple[int, ...]]) -> Layout:
        """The same dimensions in arrays of other strides."""
        return Layout(self.numel, self.sizes, tuple(strides))

    def slices(self, max_rank: int = MAX_RANK) -> Iterator[tuple[Layout, tuple[int, ...]]]:
        """Slices of at most `max_rank` dimensions, with the offset of each in every array.

        One for most layouts. For others the smallest dimensions are walked here, so that the
        slices are as few as can be; the fastest stays in every slice.
        """
        dimensions = list(zip(self.sizes, self.strides, strict=True))
        walked = []
        while len(dimensions) > max_rank:
            smallest = min(range(1, len(dimensions)), key=lambda d: dimensions[d][0])
            walked.append(dimensions.pop(smallest))
        sizes, strides = tuple(d[0] for d in dimensions), tuple(d[1] for d in dimensions)
        slice = Layout(math.prod(sizes), sizes, strides) if walked else self
        arrays = range(len(strides[0]) if strides else 0)
        for at in itertools.product(*(range(size) for size, _ in walked)):
            walk = [(c, of) for c, (_, of) in zip(at, walked, strict=True)]
            yield slice, tuple(sum(c * of[a] for c, of in walk) for a in arrays)


def layout_of(*operands: Operand, indexed: bool = False) -> Layout:
    """The layout of operands broadcast to the shape of the first.

    With `indexed`, the last array is that of the row-major indices of the first one's elements.
    """
    shapes = tuple(operand.shape for operand in operands)
    strides = tuple(operand.strides for operand in operands)
    if indexed:
        shapes, strides = (*shapes, shapes[0]), (*strides, row_major_strides(shapes[0]))
    return compute_layout(shapes, strides)


def compute_layout(
    shapes: tuple[tuple[int, ...], ...], strides: tuple[tuple[int, ...], ...]
) -> Layout:
    """The layout of arrays of these shapes and strides, broadcast to the first shape."""
    shape = shapes[0]
    dimensions: list[tuple[int, tuple[int, ...]]] = []
    for d, size in enumerate(shape):
        if size == 1:
            continue
        of_arrays = []
        for own_shape, own_strides in zip(shapes, strides, strict=True):
            own = d - (len(shape) - len(own_shape))
            of_arrays.append(0 if own < 0 or own_shape[own] == 1 else own_strides[own])
        dimensions.append((size, tuple(of_arrays)))
    dimensions.reverse()
    dimensions.sort(key=lambda dimension: dimension[1][0])
    merged: list[tuple[int, tuple[int, ...]]] = []
    for size, steps in dimensions:
        if merged:
            inner_size, inner = merged[-1]
            if all(step == i * inner_size for step, i in zip(steps, inner, strict=True)):
                merged[-1] = (inner_size * size, inner)
                continue
        merged.append((size, steps))
    return Layout(math.prod(shape), tuple(m[0] for m in merged), tuple(m[1] for m in merged))


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of the row-major indices of a shape's elements, as an array."""
    strides = []
    stride = 1
    for size in reversed(shape):
        strides.append(stride)
        stride = stride * size
    return tuple(reversed(strides))


def split_layout(operand: Operand, kept: Operand) -> tuple[Layout, Layout]:
    """The dimensions of `operand` that `kept` has, in both arrays, and those it lacks or has as
    one.

    `kept` has no more dimensions than `operand`; they are aligned on the right.
    """
    missing = operand.dim() - kept.dim()
    own_shape = (1,) * missing + kept.shape
    own_strides = (0,) * missing + kept.strides
    shape, strides = operand.shape, operand.strides
    same = [d for d, size in enumerate(shape) if own_shape[d] == size]
    other = [d for d, size in enumerate(shape) if own_shape[d] != size]
    sizes = tuple(shape[d] for d in same)
    of_both = (tuple(strides[d] for d in same), tuple(own_strides[d] for d in same))
    return (
        compute_layout((sizes, sizes), of_both),
        compute_layout((tuple(shape[d] for d in other),), (tuple(strides[d] for d in other),)),
    )


def strided_arguments(layout: Layout, start: tuple[int, ...], arrays: int) -> tuple[Scalar, ...]:
    """A strided kernel's sizes, then each of its arrays' first offset and strides, to MAX_RANK.

    Dimensions that are not there are None. A kernel that can do without one of its arrays still
    takes strides for it: zeros. Neither costs a launch anything.
    """
    if len(layout.sizes) > MAX_RANK:
        raise ValueError(f"more dimensions than a kernel takes ({MAX_RANK})")
    missing = (None,) * (MAX_RANK - len(layout.sizes))
    arguments: list[Scalar] = [*layout.sizes, *missing]
    for a in range(arrays):
        if a < len(start):
            arguments += [start[a], *(of[a] for of in layout.strides), *missing]
        else:
            arguments += (tl.constexpr(0),) * (1 + MAX_RANK)
    return tuple(arguments)
