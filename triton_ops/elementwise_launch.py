"""Host side of an elementwise kernel: chooses between the flat and the strided variant.

Twin of csrc/include/diglot/elementwise_launch.h.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import torch

# Relative, because mypy finds this folder under its name in the tree.
from .launch import launch
from .layout import Layout, layout_of, strided_arguments

if TYPE_CHECKING:
    from .launch import Tensors

ACCESS_BYTES = 16
STRIDED_BLOCK, STRIDED_WARPS = 1024, 4
# Up to this many elements a launch is bound by latency, and a thread takes two; beyond, a thread of
# a flat kernel makes two 16-byte accesses to each array. Measured on an H200: with more, registers
# cost more than loads in flight gain.
TINY_ELEMENTS = 1 << 17
FLAT_WARPS = 4


def common_head(tensors: tuple[torch.Tensor, ...]) -> int:
    """Elements to step over until all tensors are multiples of 16 bytes; -1 if they never are."""
    size = tensors[0].element_size()
    heads = {(-tensor.data_ptr() % ACCESS_BYTES) / size for tensor in tensors}
    head = heads.pop()
    return int(head) if not heads and head == int(head) else -1


def access_elements(layout: Layout, out: torch.Tensor) -> int:
    """Elements of an access that no array's rows cut: those of 16 bytes, or one."""
    if type(out) is not torch.Tensor:
        numbers = (*layout.sizes, *itertools.chain(*layout.strides))
        if any(isinstance(number, torch.SymInt) for number in numbers):
            return 1  # what divides a symbol would be one more thing to compile anew for
    elements = ACCESS_BYTES // out.element_size()
    if not layout.has_vectors(0, elements):
        return 1
    for array, stride in enumerate(layout.strides[0]):
        if stride != 0 and not layout.has_vectors(array, elements):
            return 1
    return elements


@functools.cache
def _strided_variant(is_wide: bool, is_aligned: bool) -> str:
    return f"strided, {'16-byte accesses, ' * is_aligned}{64 if is_wide else 32}-bit offsets"


@functools.cache
def _flat_variant(elements: int, is_aligned: bool) -> str:
    return f"flat, blocks of {elements}{', 16-byte accesses' if is_aligned else ''}"


def block_elements(element_size: int, most: int) -> int:
    """Elements of each array in a program of a kernel with 16-byte accesses.

    Args:
        element_size: in bytes.
        most: that a thread has of them at most.
    """
    # float64 arithmetic takes so many registers that with two accesses a thread some spill.
    accesses = 1 if element_size == 8 else 2
    return FLAT_WARPS * 32 * min(accesses * ACCESS_BYTES // element_size, most)


def elementwise_launch(
    flat: Any,
    strided: Any,
    tensors: Tensors,
    numbers: tuple[int, ...],
    constants: tuple[Any, ...],
    *,
    common: tuple[torch.Tensor, ...] = (),
    indexed: bool = False,
    most: int = 2 * ACCESS_BYTES,
) -> str:
    """Launches `flat` or `strided`, and says which.

    Args:
        flat: kernel of (pointers, n, head, numbers, constants, ALIGNED, BLOCK).
        strided: kernel of (pointers, n, sizes, first offset and strides of the output, then of
            each input, numbers, constants, RANK, WIDE, VECTOR, BROADCAST, ALIGNED, BLOCK). n,
            sizes and strides count accesses of VECTOR elements; bit i of BROADCAST says that
            input i has one element per access.
        tensors: the inputs (None: one that is not given), then the output.
        common: tensors of which every program takes the whole; their pointers come first.
        indexed: whether what the kernels do depends on the elements' row-major indices. The strided
            one gets their strides after those of the inputs. There is no head then, which would
            shift every access: one starts at a multiple of its elements.
        most: elements of each array that a thread has at most; fewer than two accesses have where
            each takes many registers.
        numbers: 64-bit arguments of the kernels.
        constants: compile-time arguments of the kernels.
    """
    out = tensors[-1]
    dtype, n = out.dtype, out.numel()
    pointers: Tensors = (*common, *tensors)  # type: ignore[assignment]  # the output is last
    one_dtype, one_run = True, True
    for tensor in tensors:
        if tensor is not None:
            one_dtype = one_dtype and tensor.dtype == dtype
            one_run = one_run and tensor.numel() == n and tensor.is_contiguous()
    layout: Layout | None = None
    if not (one_dtype and one_run):
        layout = layout_of(out, *[t for t in tensors[:-1] if t is not None], indexed=indexed)
    if n == 0:
        return "nothing to do"
    if one_dtype and (layout is None or layout.is_flat):
        elements = 256 if n <= TINY_ELEMENTS else block_elements(out.element_size(), most)
        # Addresses of traced tensors are unknown; the compiler that traces them knows alignments.
        head = -1
        if n > TINY_ELEMENTS and type(out) is torch.Tensor:
            head = common_head(tuple(t for t in tensors if t is not None))
            if indexed and head > 0:
                head = -1
        is_aligned = head >= 0
        head = max(head, 0)
        launch(
            flat,
            -(-(n - head) // elements),
            pointers,
            (n, head, *numbers),
            (*constants, is_aligned, elements),
            FLAT_WARPS,
        )
        return _flat_variant(elements, is_aligned)
    assert layout is not None
    vector = access_elements(layout, out) if one_dtype else 1
    block, broadcast, is_aligned = STRIDED_BLOCK, 0, False
    if vector > 1:
        layout = layout.in_vectors(vector)
        block = block_elements(out.element_size(), max(most, vector))
        # Inputs with one element per access need no alignment.
        given = [t for t in tensors[:-1] if t is not None]
        repeated = [of == 0 for of in layout.strides[0][1 : 1 + len(given)]]
        broadcast = sum(1 << i for i, is_repeated in enumerate(repeated) if is_repeated)
        is_aligned = type(out) is torch.Tensor and all(
            is_repeated or tensor.data_ptr() % ACCESS_BYTES == 0
            for tensor, is_repeated in zip((*given, out), (*repeated, False), strict=True)
        )
    wide = not layout.is_narrow
    for slice, start in layout.slices():
        launch(
            strided,
            -(-slice.numel // (block // vector)),
            pointers,
            (slice.numel, *strided_arguments(slice, start, len(tensors) + indexed), *numbers),
            (*constants, len(slice.sizes), wide, vector, broadcast, is_aligned, block),
            STRIDED_WARPS,
        )
    return _strided_variant(wide, is_aligned)
