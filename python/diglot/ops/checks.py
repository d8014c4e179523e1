"""Checks of arguments that several ops share. Each message names the op and the argument."""

from __future__ import annotations

from typing import Any

import torch


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
