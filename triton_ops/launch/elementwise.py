"""Host side of an elementwise kernel: chooses between the flat and the strided variant.

Twin of csrc/include/diglot/launch/elementwise.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diglot.backends.plans import Plan

# Relative, because mypy finds this folder under its name in the tree.
from .layout import Layout, layout_of, strided_arguments
from .plan import ACCESS_BYTES, NOTHING, PDL_ARCHITECTURE, Launch, Operand


def common_head(operands: list[Operand]) -> int:
    """Elements to step over until all arrays are at multiples of 16 bytes; -1 if no number does it,
    or if addresses are unknown.
    """
    addresses = {operand.address for operand in operands}
    address = addresses.pop()
    if addresses or address is None:
        return -1
    head, rest = divmod(-address % ACCESS_BYTES, operands[0].element_size())
    return -1 if rest else head


def access_elements(layout: Layout, out: Operand) -> int:
    """Elements of an access: 16 bytes of them, or one if some array's rows would cut such an
    access.
    """
    elements = ACCESS_BYTES // out.element_size()
    if not layout.has_vectors(0, elements):
        return 1
    for array, stride in enumerate(layout.strides[0]):
        if stride != 0 and not layout.has_vectors(array, elements):
            return 1
    return elements


def block_elements(out: Operand, warps: int, most: int | None, small: int) -> int:
    """Elements of each array in a program of a kernel with 16-byte accesses.

    In small arrays more programs are worth more than more loads in flight per thread: a thread
    makes one access.

    Args:
        out: an array.
        warps: the program's.
        most: the most elements of it that a thread has; None: as many as its accesses have.
        small: multiplies the size up to which arrays are small.
    """
    size, tuned = out.element_size(), out.device.tuned
    is_small = out.numel() < small * tuned("elementwise.triton.small_elements")
    accesses = 1 if is_small else tuned("elementwise.triton.accesses", size)
    elements = accesses * ACCESS_BYTES // size
    return warps * 32 * (elements if most is None else min(elements, most))


def plan_elementwise(
    flat: Any,
    strided: Any,
    operands: tuple[Operand | None, ...],
    constants: tuple[Any, ...] = (),
    *,
    numbers: Callable[..., tuple[int, ...]] | None = None,
    common: tuple[Operand, ...] = (),
    indexed: bool = False,
    most: int | None = None,
    small: int = 1,
    registers: Mapping[int, int] | None = None,
) -> Plan:
    """Plans a launch of `flat`, or launches of `strided`.

    Args:
        flat: kernel of (pointers, n, head, numbers, constants, ALIGNED, BLOCK).
        strided: kernel of (pointers, n, sizes, first offset and strides of the output, then of
            each input, numbers, constants, RANK, WIDE, VECTOR, BROADCAST, ALIGNED, BLOCK). n,
            sizes and strides count accesses of VECTOR elements; bit i of BROADCAST says that
            input i has one element per access.
        operands: the inputs (None: one that is absent), then the output.
        constants: compile-time arguments of the kernels.
        numbers: makes their 64-bit arguments from the launcher's unseen ones.
        common: arrays that every program takes whole; their pointers come first. A small kernel
            may just have written them, so the launch overlaps that kernel's end where the GPU can,
            and waits before it reads anything. The kernels then have the constant WAITS before
            their last ones.
        indexed: whether results depend on the elements' row-major indices. The strided kernel gets
            their strides after those of the inputs. There is then no head, which would shift every
            access: an access must start at a multiple of its elements.
        most: the most elements of each array that a thread has, where each takes many registers;
            None: as many as its accesses have.
        small: multiplies the size up to which arrays are small. Where the arithmetic is long, that
            of two accesses would end late.
        registers: the most registers of a thread of the flat kernel, by its accesses to each array,
            so that more threads are resident. Otherwise it has as many as the compiler likes.
    """
    arrays = [operand for operand in operands if operand is not None]
    out = arrays.pop()
    n, tuned = out.numel(), out.device.tuned
    if n == 0:
        return NOTHING
    one_dtype = all(array.dtype == out.dtype for array in arrays)
    layout = layout_of(out, *arrays, indexed=indexed)
    is_run = all(array.numel() == n and array.is_contiguous() for array in (*arrays, out))
    is_flat = one_dtype and (is_run or layout.is_flat)
    is_common = is_flat and common_head([*arrays, out]) >= 0
    lie = f"flat{', 16-byte accesses' * is_common}" if is_flat else "strided"
    out.device.choose(lie, (n,), out)
    pdl = bool(common) and out.device.architecture >= PDL_ARCHITECTURE
    constants += (pdl,) * bool(common)
    if is_flat:
        is_tiny = n <= tuned("elementwise.triton.tiny_elements")
        warps = tuned("elementwise.triton.flat_warps")
        block = (
            tuned("elementwise.triton.tiny_block")
            if is_tiny
            else block_elements(out, warps, most, small)
        )
        head = -1 if is_tiny else common_head([*arrays, out])
        is_aligned = head == 0 if indexed else head >= 0
        head = head if is_aligned else 0
        accesses = block * out.element_size() // (warps * 32 * ACCESS_BYTES)
        launch = Launch(
            flat,
            (-(-(n - head) // block),),
            (*common, *operands),
            (n, head),
            (*constants, is_aligned, block),
            warps,
            numbers,
            max_registers=(registers or {}).get(accesses),
            uses_pdl=pdl,
        )
        return Plan(f"flat, blocks of {block}{', 16-byte accesses' * is_aligned}", (launch,), None)
    vector = access_elements(layout, out) if one_dtype else 1
    warps = tuned("elementwise.triton.strided_warps")
    broadcast, is_aligned = 0, False
    if vector == 1:
        block = tuned("elementwise.triton.strided_block")
    else:
        layout = layout.in_vectors(vector)
        block = block_elements(out, warps, None if most is None else max(most, vector), small)
        # Inputs with one element per access need no alignment.
        repeated = [stride == 0 for stride in layout.strides[0][1 : 1 + len(arrays)]]
        broadcast = sum(1 << i for i, is_repeated in enumerate(repeated) if is_repeated)
        is_aligned = out.is_aligned and all(
            is_repeated or array.is_aligned
            for array, is_repeated in zip(arrays, repeated, strict=True)
        )
    wide = not layout.is_narrow
    launches = tuple(
        Launch(
            strided,
            (-(-slice.numel // (block // vector)),),
            (*common, *operands),
            (slice.numel, *strided_arguments(slice, start, len(operands) + indexed)),
            (*constants, len(slice.sizes), wide, vector, broadcast, is_aligned, block),
            warps,
            numbers,
            uses_pdl=pdl,
        )
        for slice, start in layout.slices()
    )
    accesses = "16-byte accesses, " * is_aligned
    return Plan(f"strided, {accesses}{64 if wide else 32}-bit offsets", launches, None)
