"""Two operands of different shapes: whether they broadcast, to which shape, and how torch.vmap
batches them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._prims_common import compute_elementwise_output_strides


def broadcasts(shape: Sequence[int], result: Sequence[int]) -> bool:
    """Whether a tensor of this shape expands to a result's."""
    if tuple(shape) == tuple(result):
        return True
    pairs = zip(reversed(shape), reversed(result), strict=False)
    return len(shape) <= len(result) and all(size in (1, other) for size, other in pairs)


def check_broadcast(op: str, input: torch.Tensor, other: torch.Tensor) -> None:
    """Raises ValueError unless the shapes of the operands broadcast."""
    for a, b in zip(reversed(input.shape), reversed(other.shape), strict=False):
        if a != b and a != 1 and b != 1:
            raise ValueError(
                f"{op}: the shapes of input and other do not broadcast: {tuple(input.shape)} and "
                f"{tuple(other.shape)}"
            )


def empty_broadcast(op: str, input: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
    """An output with the shape, dtype and memory format of PyTorch's elementwise ops.

    Without a second tensor, the other operand is a number that does not promote `input`.

    Raises:
        ValueError: the shapes do not broadcast.
    """
    if other is None:
        return torch.empty_like(input)
    if input.is_contiguous() and other.is_contiguous():
        if input.dtype is other.dtype and input.shape == other.shape:
            return torch.empty_like(input)
    check_broadcast(op, input, other)
    # A case such as a bias: the first operand that is not broadcast along two dimensions decides
    # their order. The general code below finds that too, in ten times the time of a launch.
    if type(input) is torch.Tensor and input.is_contiguous():
        full = input if other.dim() <= input.dim() else other
        if full.is_contiguous() and 0 not in full.shape and 1 not in full.shape:
            dtype = torch.result_type(input, other)
            return torch.empty(full.shape, dtype=dtype, device=input.device)
    shape = torch.broadcast_shapes(input.shape, other.shape)
    strides = compute_elementwise_output_strides(input.expand(shape), other.expand(shape))
    dtype = torch.result_type(input, other)
    return torch.empty_strided(shape, strides, dtype=dtype, device=input.device)


def align_batches(
    operands: tuple[torch.Tensor, torch.Tensor], in_dims: tuple[int | None, int | None]
) -> list[torch.Tensor]:
    """Operands with the batch as their first dimension, or without one, that broadcast as before.

    Args:
        operands: those of a batching rule; at least one is batched.
        in_dims: the batch dimension of each, or None.
    """
    ranks = [t.dim() - (dim is not None) for t, dim in zip(operands, in_dims, strict=True)]
    # Types promote by the operands' own ranks: those of rank 0 count less than others. With the
    # batch as a dimension they would count fully, so they are converted first.
    input, other = (
        tensor.new_empty(()) if rank == 0 else tensor
        for tensor, rank in zip(operands, ranks, strict=True)
    )
    dtype = torch.result_type(input, other)
    aligned = []
    for tensor, dim, rank in zip(operands, in_dims, ranks, strict=True):
        if rank == 0:
            tensor = tensor.to(dtype)
        if dim is not None:  # the batch comes first, own dimensions are aligned on the right
            missing = (1,) * (max(ranks) - rank)
            tensor = tensor.movedim(dim, 0)
            tensor = tensor.reshape(tensor.shape[0], *missing, *tensor.shape[1:])
        aligned.append(tensor)
    return aligned
