"""Arrays as rows, for the forward and backward passes of norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


def contiguous_like(tensor: Tensor) -> Tensor:
    if tensor.is_contiguous():
        return torch.empty_like(tensor)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def as_rows(tensor: Any, rank: int) -> Any:
    """The dimensions from `rank` on as one, of unit stride: a view if possible."""
    if tensor is None:
        return None
    if tensor.dim() > rank + 1:
        tensor = tensor.flatten(rank)
    if tensor.is_contiguous() or tensor.stride(-1) == 1:
        return tensor
    # The stride of a dimension of one element does not matter, and may have any value.
    return tensor.contiguous() if tensor.shape[-1] != 1 else tensor


def sum_like(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """The sum of tensors, of the dtype of `like`; without any, zeros like it."""
    return sum(parts[1:], parts[0]).to(like.dtype) if parts else torch.zeros_like(like)
