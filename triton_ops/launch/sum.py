"""Host side of a kernel that sums an array over dimensions along which another was broadcast.

Twin of csrc/include/diglot/launch/sum.h.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from diglot.backends.plans import Plan, Scratch

from .layout import Layout, compute_layout, split_layout, strided_arguments

# Relative, because mypy finds this folder under its name in the tree.
from .numbers import number_halves
from .plan import ACCESS_BYTES, NOTHING, Device, Launch, Operand, Part

MOST_PROGRAMS = 2**31 - 1


def power_of_two(n: int, most: int) -> int:
    """The least power of two that is at least n, and at most `most`."""
    result = 1
    while result < n and result < most:
        result *= 2
    return result


def count_splits(grad_output: Operand, out: Operand) -> int:
    """How many parts the sum over broadcast dimensions is split into.

    A program is assumed to be one kept element wide if a reduced dimension is the fastest.
    Otherwise it is as wide as a warp's 16-byte accesses.
    """
    kept_count = out.numel()
    reduced_count = grad_output.numel() // max(kept_count, 1)
    if reduced_count <= 1:
        return 1
    out_shape = [1] * (grad_output.dim() - out.dim()) + list(out.shape)
    steps = zip(grad_output.strides, grad_output.shape, out_shape, strict=True)
    _, is_kept = min((stride, of_out == size) for stride, size, of_out in steps if size != 1)
    tuned = out.device.tuned
    kept_bytes = tuned("sum.both.kept_bytes")
    width = min(kept_count, kept_bytes // grad_output.element_size()) if is_kept else 1
    programs = -(-kept_count // width)
    most = reduced_count * width // tuned("sum.both.split_elements")
    return max(1, min(tuned("sum.both.split_blocks") // programs, most))


def plan_sum(
    kernel: Any,
    grad_output: Operand,
    out: Operand,
    numbers: Callable[..., tuple[int, ...]] | None = None,
    before: Part | None = None,
) -> Plan:
    """Plans the launches of a kernel, `add_backward_sum` or one like it. If the first launch splits
    the sum, a second one adds up the splits.

    Args:
        numbers: makes the halves of the factor alpha; None: it is 1.
        before: the part of scratch behind which that of the splits lies.
    """
    if out.numel() == 0:
        return NOTHING
    kept_layout, reduced_layout, device = *split_layout(grad_output, out), out.device
    splits = count_splits(grad_output, out)
    one = functools.partial(_one, grad_output.dtype)
    numbers = numbers or one
    if splits == 1:
        launches = _launches(
            device, kernel, grad_output, out, kept_layout, reduced_layout, 1, 0, numbers
        )
        return Plan("sum", tuple(launches), None)
    compute = torch.float64 if grad_output.dtype == torch.float64 else torch.float32
    partial = Part(compute, splits * kept_layout.numel).after(before)
    # The partial sums lie in the order of the kept elements: one row of them per split.
    steps = [math.prod(kept_layout.sizes[:d]) for d in range(len(kept_layout.sizes))]
    pairs = list(zip(kept_layout.strides, steps, strict=True))
    to_partial = kept_layout.with_strides([(source, step) for (source, _), step in pairs])
    from_partial = kept_layout.with_strides([(step, target) for (_, target), step in pairs])
    rows = compute_layout(((splits,),), ((kept_layout.numel,),))
    width = kept_layout.numel
    launches = [
        *_launches(
            device, kernel, grad_output, partial, to_partial, reduced_layout, splits, width, one
        ),
        *_launches(device, kernel, partial, out, from_partial, rows, 1, 0, numbers),
    ]
    return Plan("sum, split", tuple(launches), Scratch(partial.end, 0, "call"))


def _one(dtype: torch.dtype, *_: Any) -> tuple[int, ...]:
    return number_halves(1, dtype)


def _launches(
    device: Device,
    kernel: Any,
    source: Operand | Part,
    target: Operand | Part,
    kept_layout: Layout,
    reduced_layout: Layout,
    splits: int,
    split_stride: int,
    numbers: Callable[..., tuple[int, ...]],
) -> list[Launch]:
    """One pass over an array."""
    size = source.dtype.itemsize
    vector = ACCESS_BYTES // size
    reduced_is_fastest = bool(reduced_layout.strides) and (
        not kept_layout.strides or reduced_layout.strides[0][0] < kept_layout.strides[0][0]
    )
    kept_vector = reduced_vector = 1
    if isinstance(source, Part) or source.is_aligned:
        if reduced_is_fastest:
            if reduced_layout.has_vectors(0, vector) and kept_layout.has_multiples(0, vector, 0):
                reduced_vector = vector
        elif kept_layout.has_vectors(0, vector) and reduced_layout.has_multiples(0, vector, 0):
            kept_vector = vector
    # With one element per access, a thread has at most 16 loads.
    tile_bytes = device.tuned("sum.triton.tile_bytes")
    elements = tile_bytes // (size if kept_vector * reduced_vector > 1 else max(size, 4))
    # The tile extends along the fastest dimension until a warp reads neighbouring elements, or all.
    if reduced_is_fastest:
        reduced_block = max(power_of_two(reduced_layout.numel // splits, elements), reduced_vector)
        kept_block = power_of_two(kept_layout.numel, elements // reduced_block)
    else:
        kept_block = power_of_two(kept_layout.numel, 32 * vector)
        reduced_block = elements // kept_block
    while -(-kept_layout.numel // kept_block) * splits > MOST_PROGRAMS:
        kept_block *= 2
    wide = not (kept_layout.is_narrow and reduced_layout.is_narrow)
    return [
        Launch(
            kernel,
            (-(-slice.numel // kept_block) * splits,),
            (source, target),
            (
                slice.numel,
                reduced_layout.numel,
                splits,
                split_stride,
                *strided_arguments(slice, start, arrays=2),
                *strided_arguments(reduced_layout, (0,), arrays=1),
            ),
            (
                len(slice.sizes),
                len(reduced_layout.sizes),
                wide,
                kept_block,
                reduced_block,
                kept_vector,
                reduced_vector,
            ),
            device.tuned("sum.triton.warps"),
            numbers,
        )
        for slice, start in kept_layout.slices()
    ]
