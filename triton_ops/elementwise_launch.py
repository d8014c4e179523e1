"""Host side of an elementwise kernel: chooses between the flat and the strided variant.

Twin of csrc/include/diglot/elementwise_launch.h.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from diglot.triton_ops.launch import launch
from diglot.triton_ops.layout import Layout, layout_of, strided_arguments

ACCESS_BYTES = 16
STRIDED_BLOCK, STRIDED_WARPS = 1024, 4
# Up to this many elements a launch is bound by latency, and a thread takes two; beyond, a thread of
# a flat kernel makes two 16-byte accesses to each array. Measured on an H200: with more, registers
# cost more than loads in flight gain.
TINY_ELEMENTS = 1 << 17
FLAT_WARPS = 4
FLAT_BYTES = FLAT_WARPS * 32 * 2 * ACCESS_BYTES


def common_head(tensors: tuple[torch.Tensor, ...]) -> int:
    """Elements to step over until all tensors are multiples of 16 bytes; -1 if they never are."""
    size = tensors[0].element_size()
    heads = {(-tensor.data_ptr() % ACCESS_BYTES) / size for tensor in tensors}
    head = heads.pop()
    return int(head) if not heads and head == int(head) else -1


@functools.cache
def _flat_variant(elements: int, is_aligned: bool) -> str:
    return f"flat, blocks of {elements}{', 16-byte accesses' if is_aligned else ''}"


def flat_block(n: int, element_size: int) -> tuple[int, int]:
    """Elements and warps of a program of a flat kernel."""
    # float64 arithmetic takes so many registers that with two accesses a thread some spill.
    accesses_bytes = FLAT_BYTES // 2 if element_size == 8 else FLAT_BYTES
    return (256 if n <= TINY_ELEMENTS else accesses_bytes // element_size), FLAT_WARPS


def elementwise_launch(
    flat: Any,
    strided: Any,
    tensors: tuple[torch.Tensor | None, ...],
    numbers: tuple[int, ...],
    constants: tuple[Any, ...],
) -> str:
    """Launches `flat` or `strided`, and says which.

    Args:
        flat: kernel of (pointers, n, head, numbers, constants, ALIGNED, BLOCK).
        strided: kernel of (pointers, n, sizes, first offset and strides of the output, then of
            each input, numbers, constants, RANK, WIDE, BLOCK).
        tensors: the inputs (None: one that is not given), then the output.
        numbers: 64-bit arguments of the kernels.
        constants: compile-time arguments of the kernels.
    """
    out = tensors[-1]
    dtype, n = out.dtype, out.numel()
    one_dtype, one_run = True, True
    for tensor in tensors:
        if tensor is not None:
            one_dtype = one_dtype and tensor.dtype == dtype
            one_run = one_run and tensor.numel() == n and tensor.is_contiguous()
    layout: Layout | None = None
    if not (one_dtype and one_run):
        layout = layout_of(out, *[t for t in tensors[:-1] if t is not None])
    if n == 0:
        return "nothing to do"
    if one_dtype and (layout is None or layout.is_flat):
        elements, warps = flat_block(n, out.element_size())
        # Addresses of traced tensors are unknown; the compiler that traces them knows alignments.
        head = -1
        if n > TINY_ELEMENTS and type(out) is torch.Tensor:
            head = common_head(tuple(t for t in tensors if t is not None))
        is_aligned = head >= 0
        head = max(head, 0)
        launch(
            flat,
            -(-(n - head) // elements),
            tensors,
            (n, head, *numbers),
            (*constants, is_aligned, elements),
            warps,
        )
        return _flat_variant(elements, is_aligned)
    assert layout is not None
    wide = not layout.is_narrow
    for slice, start in layout.slices():
        launch(
            strided,
            -(-slice.numel // STRIDED_BLOCK),
            tensors,
            (slice.numel, *strided_arguments(slice, start, len(tensors)), *numbers),
            (*constants, len(slice.sizes), wide, STRIDED_BLOCK),
            STRIDED_WARPS,
        )
    return f"strided, {64 if wide else 32}-bit offsets"
