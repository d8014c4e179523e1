"""What ops that reduce whole arrays are given beside them, and how the arrays must lie."""

from __future__ import annotations

import torch

from diglot.ops.barrier_word import barrier_word

# The most states that a launcher keeps, one of each chunk that the arrays are cut into, and the
# numbers of one, as the launchers know it too. Of large arrays there are then between half as many
# chunks and as many: many more than blocks, so that these have about the same work, and few enough
# for every block to read them all.
MAX_CHUNKS, MAX_FIELDS = 4096, 3


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that arithmetic on `dtype` is done in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def word_and_workspace(
    input: torch.Tensor, backend: str
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The word of a launch's barrier, and memory for the states of its blocks.

    PyTorch's own ops need neither.
    """
    if backend == "torch":
        return None, None
    dtype = compute_dtype(input.dtype)
    workspace = torch.empty((MAX_FIELDS, MAX_CHUNKS), dtype=dtype, device=input.device)
    return barrier_word(input.device), workspace


def dense_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`tensor` with the strides of the dense tensor `like`: itself, or else a copy.

    Arrays of one dense order are runs of memory, of which kernels need no strides.
    """
    if (tensor.is_contiguous() and like.is_contiguous()) or tensor.stride() == like.stride():
        return tensor
    return torch.empty_like(like).copy_(tensor)
