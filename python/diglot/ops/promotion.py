"""The dtype that operands promote to, in eager mode and while compiling."""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_compiling


def result_type(input: torch.Tensor, other: Any) -> torch.dtype:
    """`torch.result_type` of a tensor and a tensor or number."""
    if not is_compiling():
        return torch.result_type(input, other)
    # Dynamo does not trace torch.result_type, because it returns no tensor. This is its rule in
    # plain Python. Tensors rank above 0-d tensors, and these above numbers. An operand of a lower
    # rank counts only if its category is higher.
    if not isinstance(other, torch.Tensor):
        return _promote(input.dtype, _number_dtype(other))
    if (input.dim() == 0) == (other.dim() == 0):
        return torch.promote_types(input.dtype, other.dtype)
    if input.dim() == 0:
        return _promote(other.dtype, input.dtype)
    return _promote(input.dtype, other.dtype)


def _promote(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    if higher == torch.bool or (lower.is_floating_point and not higher.is_floating_point):
        return lower
    return higher


def _number_dtype(number: Any) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    is_integer = isinstance(number, (int, torch.SymInt))
    return torch.int64 if is_integer else torch.get_default_dtype()
