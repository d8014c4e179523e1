"""The dtype of computations, and the layout of arrays that are reduced as a whole."""

from __future__ import annotations

import torch


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which kernels compute for operands of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def dense_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`tensor` with the strides of the dense tensor `like`: itself, or else a copy.

    Arrays of one dense order are runs of memory, so kernels need no strides.
    """
    if (tensor.is_contiguous() and like.is_contiguous()) or tensor.stride() == like.stride():
        return tensor
    return torch.empty_like(like).copy_(tensor)
