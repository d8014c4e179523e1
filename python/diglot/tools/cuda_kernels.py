"""Which CUDA kernel a launcher would start, told from its arguments and without a GPU.

Twin of csrc/include/diglot/elementwise_launch.h and of the launchers in csrc/ops: a GPU test
compares what is told here with the variant that ran.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from diglot.triton_ops.elementwise_launch import access_elements, common_head
from diglot.triton_ops.layout import Layout, compute_layout, layout_of, split_layout

ACCESS_BYTES = 16
TINY_ELEMENTS = 1 << 17  # kTinyElements
SMALL_VECTORS = 8 * 132 * 128  # kSmallVectors
# By the elements of a 16-byte access: a LargeShape's accesses per thread.
LARGE_ACCESSES = {2: 4, 4: 4, 8: 2, 16: 1}

TYPES = {
    torch.bool: "bool",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.float32: "float",
    torch.float64: "double",
}
APPROXIMATIONS = {"none": "(Approximate)0", "tanh": "(Approximate)1"}


def _index(layout: Layout) -> str:
    return "unsigned int" if layout.is_narrow else "long"


def _elementwise(tensors: tuple[torch.Tensor, ...], kind: str, arguments: str) -> list[str]:
    """The kernel of elementwise_launch; the last tensor is the output."""
    *inputs, out = tensors
    n, size = out.numel(), out.element_size()
    if n == 0:
        return []
    layout = layout_of(out, *inputs)
    one_dtype = all(t.dtype == out.dtype for t in inputs)
    is_flat = one_dtype and layout.is_flat
    head = common_head((out, *inputs)) if is_flat else -1
    elements = ACCESS_BYTES // size
    if is_flat and n <= TINY_ELEMENTS:
        accesses, elements = 1, 1
    elif head >= 0:
        accesses = 1 if (n - head) // elements < SMALL_VECTORS else LARGE_ACCESSES[elements]
    elif not one_dtype:
        return [f"{kind}_mixed<{arguments}, {_index(layout)}>"]
    else:
        shape = "FlatShape<4, 1>"
        arrays = zip((out, *inputs), layout.strides[0], strict=True)
        aligned = all(t.data_ptr() % ACCESS_BYTES == 0 for t, step in arrays if step != 0)
        if aligned and access_elements(layout, out) == elements:
            layout = layout.in_vectors(elements)
            shape = f"FlatShape<{min(LARGE_ACCESSES[elements], 2)}, {elements}>"
        return [f"{kind}_strided<{arguments}, {shape}, {_index(layout)}>"]
    return [f"{kind}_flat<{arguments}, FlatShape<{accesses}, {elements}> >"]


def _gelu_forward(input: torch.Tensor, approximate: str, out: torch.Tensor) -> list[str]:
    arguments = f"{TYPES[out.dtype]}, {APPROXIMATIONS[approximate]}"
    return _elementwise((input, out), "gelu_forward", arguments)


def _gelu_backward(
    grad_output: torch.Tensor, input: torch.Tensor, approximate: str, out: torch.Tensor
) -> list[str]:
    arguments = f"{TYPES[out.dtype]}, {APPROXIMATIONS[approximate]}"
    return _elementwise((grad_output, input, out), "gelu_backward", arguments)


def _add_forward(
    input: torch.Tensor, other: torch.Tensor | None, alpha: float, out: torch.Tensor
) -> list[str]:
    kind = TYPES[out.dtype]
    if other is None:
        return _elementwise((input, out), "add_number", kind)
    return _elementwise((input, other, out), "add_forward", kind)


def _add_backward(
    grad_output: torch.Tensor, alpha: float, workspace: torch.Tensor | None, out: torch.Tensor
) -> list[str]:
    if out.numel() == 0:
        return []
    kind = TYPES[grad_output.dtype]
    if grad_output.numel() == out.numel():
        return _elementwise((grad_output, out), "add_backward", kind)
    kept, reduced = split_layout(grad_output, out)
    if workspace is None:
        return [_sum(grad_output, kept, reduced)]
    rows = compute_layout(((workspace.shape[0],),), ((kept.numel,),))
    steps = [1]
    for size in kept.sizes:
        steps.append(steps[-1] * size)
    pairs = list(zip(kept.strides, steps[:-1], strict=True))
    to_workspace = kept.with_strides([(of[0], step) for of, step in pairs])
    from_workspace = kept.with_strides([(step, of[1]) for of, step in pairs])
    return [
        _sum(grad_output, to_workspace, reduced),
        _sum(workspace, from_workspace, rows),
    ]


def _sum(source: torch.Tensor, kept: Layout, reduced: Layout) -> str:
    reduced_is_fastest = bool(reduced.strides) and (
        not kept.strides or reduced.strides[0][0] < kept.strides[0][0]
    )
    vector = ACCESS_BYTES // source.element_size()
    of_kept = of_reduced = 1
    if source.data_ptr() % ACCESS_BYTES == 0:
        if reduced_is_fastest:
            if reduced.has_vectors(0, vector) and kept.has_multiples(0, vector, 0):
                reduced, of_reduced = reduced.in_vectors(vector), vector
        elif kept.has_vectors(0, vector) and reduced.has_multiples(0, vector, 0):
            kept, of_kept = kept.in_vectors(vector), vector
    index = "unsigned int" if kept.is_narrow and reduced.is_narrow else "long"
    return f"add_backward_sum<{TYPES[source.dtype]}, {index}, {of_kept}, {of_reduced}>"


# By launcher: from its arguments, the names of the kernels that it starts, in order.
KERNELS: dict[str, Callable[..., list[str]]] = {
    "add_backward": _add_backward,
    "add_forward": _add_forward,
    "gelu_backward": _gelu_backward,
    "gelu_forward": _gelu_forward,
}


def kernel_names(launcher: str, *arguments: Any) -> list[str]:
    """Names of the kernels that a launcher starts, as `diglot.tools.resources` names them.

    Raises:
        KeyError: nothing is known of the launcher.
    """
    return KERNELS[launcher](*arguments)
