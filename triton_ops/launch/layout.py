"""The common layout of several tensors. Twin of csrc/include/diglot/launch/operand.h."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton.language as tl

if TYPE_CHECKING:
    from .plan import Operand, Scalar

MAX_RANK = 8  # dimensions of a strided kernel; larger arrays take a launch for each slice
NARROW_LIMIT = 2**31


@dataclass(frozen=True)
class Layout:
    """How the elements of several arrays of one shape lie.

    Size-1 dimensions are dropped. The others are ordered by the first array's strides, the fastest
    first. Neighbours are merged wherever all arrays step through both as through one.

    Attributes:
        numel: number of elements.
        sizes: the size of each dimension.
        strides: for each dimension, the stride of each array; 0 where it is broadcast.
    """

    numel: int
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def is_flat(self) -> bool:
        """Whether every array is one dense run of elements, in the same order."""
        return len(self.sizes) <= 1 and all(s == 1 for stride in self.strides for s in stride)

    @property
    def is_narrow(self) -> bool:
        """Whether every linear index and every offset fits 31 bits."""
        if self.numel >= NARROW_LIMIT:
            return False
        extents = [
            sum((size - 1) * s[a] for size, s in zip(self.sizes, self.strides, strict=True))
            for a in range(len(self.strides[0]) if self.strides else 0)
        ]
        return all(extent < NARROW_LIMIT for extent in extents)

    def has_vectors(self, array: int, elements: int) -> bool:
        """Whether an array consists of runs of `elements` neighbours, each starting at a multiple
        of `elements`.
        """
        return (
            bool(self.sizes)
            and self.strides[0][array] == 1
            and self.sizes[0] % elements == 0
            and self.has_multiples(array, elements, 1)
        )

    def has_multiples(self, array: int, elements: int, first: int) -> bool:
        """Whether an array's strides from dimension `first` on are multiples of `elements`."""
        return all(stride[array] % elements == 0 for stride in self.strides[first:])

    def in_vectors(self, elements: int) -> Layout:
        """The layout of vectors of `elements` elements along the fastest dimension."""
        sizes = (self.sizes[0] // elements, *self.sizes[1:])
        fastest = tuple(stride * elements for stride in self.strides[0])
        return Layout(self.numel // elements, sizes, (fastest, *self.strides[1:]))

    def with_strides(self, strides: Iterable[tuple[int, ...]]) -> Layout:
        """The same dimensions in arrays of other strides."""
        return Layout(self.numel, self.sizes, tuple(strides))

    def slices(self, max_rank: int = MAX_RANK) -> Iterator[tuple[Layout, tuple[int, ...]]]:
        """Slices of at most `max_rank` dimensions, with the offset of each in every array.

        Most layouts are one slice. For others this walks the smallest dimensions, which takes the
        fewest slices. The fastest dimension stays in every slice.
        """
        dimensions = list(zip(self.sizes, self.strides, strict=True))
        walked = []
        while len(dimensions) > max_rank:
            smallest = min(range(1, len(dimensions)), key=lambda d: dimensions[d][0])
            walked.append(dimensions.pop(smallest))
        sizes, strides = tuple(d[0] for d in dimensions), tuple(d[1] for d in dimensions)
        slice = Layout(math.prod(sizes), sizes, strides) if walked else self
        arrays = range(len(strides[0]) if strides else 0)
        for index in itertools.product(*(range(size) for size, _ in walked)):
            walk = [(i, stride) for i, (_, stride) in zip(index, walked, strict=True)]
            yield slice, tuple(sum(i * stride[a] for i, stride in walk) for a in arrays)


def layout_of(*operands: Operand, indexed: bool = False) -> Layout:
    """The layout of operands broadcast to the shape of the first.

    With `indexed`, the last array has the row-major indices of the first one's elements.
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
        steps = []
        for array_shape, array_strides in zip(shapes, strides, strict=True):
            i = d - (len(shape) - len(array_shape))
            steps.append(0 if i < 0 or array_shape[i] == 1 else array_strides[i])
        dimensions.append((size, tuple(steps)))
    dimensions.reverse()
    dimensions.sort(key=lambda dimension: dimension[1][0])
    merged: list[tuple[int, tuple[int, ...]]] = []
    for size, outer in dimensions:
        if merged:
            inner_size, inner = merged[-1]
            if all(step == i * inner_size for step, i in zip(outer, inner, strict=True)):
                merged[-1] = (inner_size * size, inner)
                continue
        merged.append((size, outer))
    return Layout(math.prod(shape), tuple(m[0] for m in merged), tuple(m[1] for m in merged))


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array that holds the row-major index of each element of a shape."""
    strides = []
    stride = 1
    for size in reversed(shape):
        strides.append(stride)
        stride = stride * size
    return tuple(reversed(strides))


def split_layout(operand: Operand, target: Operand) -> tuple[Layout, Layout]:
    """The dimensions of `operand` that `target` also has, in both arrays, and the other dimensions.

    `target` lacks the others, or has them with size 1. `target` has no more dimensions than
    `operand`; they are aligned on the right.
    """
    missing = operand.dim() - target.dim()
    target_shape = (1,) * missing + target.shape
    target_strides = (0,) * missing + target.strides
    shape, strides = operand.shape, operand.strides
    same = [d for d, size in enumerate(shape) if target_shape[d] == size]
    other = [d for d, size in enumerate(shape) if target_shape[d] != size]
    sizes = tuple(shape[d] for d in same)
    both = (tuple(strides[d] for d in same), tuple(target_strides[d] for d in same))
    return (
        compute_layout((sizes, sizes), both),
        compute_layout((tuple(shape[d] for d in other),), (tuple(strides[d] for d in other),)),
    )


def strided_arguments(layout: Layout, start: tuple[int, ...], arrays: int) -> tuple[Scalar, ...]:
    """A strided kernel's sizes, then each of its arrays' first offset and strides, to MAX_RANK.

    Missing dimensions are None. For an absent array a kernel gets strides of zero. Neither costs a
    launch anything.
    """
    if len(layout.sizes) > MAX_RANK:
        raise ValueError(f"more dimensions than a kernel takes ({MAX_RANK})")
    missing = (None,) * (MAX_RANK - len(layout.sizes))
    arguments: list[Scalar] = [*layout.sizes, *missing]
    for a in range(arrays):
        if a < len(start):
            arguments += [start[a], *(stride[a] for stride in layout.strides), *missing]
        else:
            arguments += (tl.constexpr(0),) * (1 + MAX_RANK)
    return tuple(arguments)
