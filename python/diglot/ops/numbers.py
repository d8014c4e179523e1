"""Numbers as arguments: which values count as numbers, and which a result's dtype allows."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch

Number = bool | int | float

# Least and greatest factor for each dtype of result: PyTorch's ops on a CPU convert them without an
# overflow error. A negative number wraps in uint8, and any number is true or false.
FACTOR_RANGES: dict[torch.dtype, tuple[float, float]] = {
    **{
        dtype: (-torch.finfo(dtype).max, torch.finfo(dtype).max)
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    },
    **{
        dtype: (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)
    },
    torch.uint8: (-255, 255),
    torch.bool: (-(2**63), 2**64 - 1),
}


def check_number(op: str, name: str, value: Any, kinds: str = "a real number") -> Any:
    """`value` as a Python number (or a symbol for one).

    Raises:
        TypeError: it is no number, NumPy scalar or 0-d tensor without gradient.
        ValueError: it is an integer of more than 64 bits.
    """
    if type(value) not in (bool, int, float):
        value = _held_number(value)
    if not isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"{op}: {name} must be {kinds}, not {type(value).__name__}")
    if isinstance(value, (int, torch.SymInt)) and not -(2**63) <= value < 2**64:
        raise ValueError(f"{op}: {name} must be an integer of at most 64 bits, not {value}")
    return value


def _held_number(value: Any) -> Any:
    """The Python number in a NumPy scalar or in a 0-d tensor without gradient."""
    if isinstance(value, torch.Tensor):
        is_number = value.dim() == 0 and not value.requires_grad
    else:
        numpy = sys.modules.get("numpy")
        is_number = numpy is not None and isinstance(value, numpy.generic)
    return value.item() if is_number else value


def check_factor(op: str, name: str, value: Any, result: torch.dtype) -> Any:
    """`value` as a Python number, checked to be one that PyTorch's ops take for this dtype of
    result.

    It is floating for floating results, an integer for integer ones, a bool for bool.
    """
    value = check_number(op, name, value)
    if isinstance(value, bool):
        if result != torch.bool:
            raise TypeError(
                f"{op}: {name} must be a number where the result is {result}, not a bool"
            )
        return value
    if not result.is_floating_point and isinstance(value, (float, torch.SymFloat)):
        raise TypeError(
            f"{op}: {name} must be an integer where the result is {result}, not a float"
        )
    least, greatest = FACTOR_RANGES[result]
    if (value < least or value > greatest) and not math.isinf(value):
        raise ValueError(
            f"{op}: {name} must be from {least} to {greatest} where the result is {result}, "
            f"not {value}"
        )
    if result.is_floating_point:
        return float(value)
    return bool(value) if result == torch.bool else value


def fixed(number: Any) -> Any:
    """A number for a launch: a symbol of a graph that is being compiled becomes its value."""
    if type(number) is float or type(number) is int:
        return number
    if isinstance(number, torch.SymInt):
        return int(number)
    return float(number) if isinstance(number, torch.SymFloat) else number
