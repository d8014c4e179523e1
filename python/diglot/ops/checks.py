"""Checks of arguments that several ops share. Each message names the op and the argument."""

from __future__ import annotations

import operator
from typing import Any

import torch

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_tensor(op: str, name: str, value: Any) -> None:
    """Raises TypeError unless `value` is a dense tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a torch.Tensor, not {type(value).__name__}")
    if value.layout is not torch.strided:
        raise TypeError(
            f"{op}: {name} must be a dense tensor (layout torch.strided), not {value.layout}"
        )
    if value.is_nested:
        raise TypeError(f"{op}: {name} must be a dense tensor, not a nested one")


def check_dtype(op: str, name: str, tensor: torch.Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    """Raises TypeError unless the tensor's dtype is one of `allowed`."""
    if tensor.dtype not in allowed:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        found = str(tensor.dtype).removeprefix("torch.")
        raise TypeError(f"{op}: {name} must have one of the dtypes {names}, not {found}")


def check_floating(op: str, name: str, value: Any) -> None:
    """Raises TypeError unless `value` is a dense tensor of one of `FLOATING`."""
    check_tensor(op, name, value)
    check_dtype(op, name, value, FLOATING)


def check_dim(op: str, dim: Any, tensor: torch.Tensor) -> int:
    """The index of a dimension, counted from 0. A 0-d tensor has the dimensions 0 and -1.

    Raises:
        TypeError: `dim` is not an integer.
        IndexError: the tensor has no such dimension.
    """
    rank = tensor.dim() or 1
    if type(dim) is not int:
        if isinstance(dim, bool) or not hasattr(dim, "__index__"):
            raise TypeError(f"{op}: dim must be an integer, not {type(dim).__name__}")
        dim = operator.index(dim)
    if not -rank <= dim < rank:
        raise IndexError(
            f"{op}: dim must be from {-rank} to {rank - 1} for a tensor of {tensor.dim()} "
            f"dimensions, not {dim}"
        )
    return dim + rank if dim < 0 else dim
