"""Checks of the norms' arguments. Each message names the op and the argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

HALVES = (torch.float16, torch.bfloat16)


def check_shape(op: str, shape: Any, input: torch.Tensor) -> tuple[int, ...]:
    """The shape of a row.

    Raises:
        TypeError: `shape` is neither an integer nor a sequence of them.
        ValueError: it is empty, or the shape of `input` does not end with it.
    """
    if type(shape) is int:
        shape = (shape,)
    elif type(shape) is not torch.Size:
        if type(shape) is not tuple:  # a check for a sequence takes as long as allocating a tensor
            is_sequence = isinstance(shape, Sequence) and not isinstance(shape, str)
            shape = tuple(shape) if is_sequence else (shape,)
        for size in shape:
            if type(size) is int:
                continue
            if isinstance(size, (bool, torch.Tensor)) or not hasattr(size, "__index__"):
                raise TypeError(
                    f"{op}: normalized_shape must be an integer or a sequence of integers, not "
                    f"of {type(size).__name__}"
                )
    dims = len(shape)
    if dims == 0:
        raise ValueError(f"{op}: normalized_shape must have at least one dimension")
    if input.shape[-dims:] != shape:
        raise ValueError(
            f"{op}: normalized_shape must match the last dimensions of input: "
            f"{tuple(input.shape)} does not end with {tuple(shape)}"
        )
    return shape


def check_residual(op: str, input: torch.Tensor, residual: torch.Tensor) -> None:
    if residual.dtype != input.dtype:
        raise TypeError(
            f"{op}: residual must have the dtype of input, {input.dtype}, not {residual.dtype}"
        )
    for what in ("shape", "device"):
        value, other = getattr(input, what), getattr(residual, what)
        if value != other:
            raise ValueError(f"{op}: residual must have the {what} of input, {value}, not {other}")


def check_parameters(
    op: str, input: torch.Tensor, shape: tuple[int, ...], parameters: Sequence[Any]
) -> None:
    """Checks weight and bias.

    Raises:
        TypeError: a dtype is neither input's nor, for a 16-bit input, float32; or the two differ.
        ValueError: a shape is not a row's, or a device is not input's.
    """
    first = None
    for name, tensor in zip(("weight", "bias"), parameters, strict=False):
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise ValueError(
                f"{op}: {name} must have the shape normalized_shape, {tuple(shape)}, not "
                f"{tuple(tensor.shape)}"
            )
        if tensor.device != input.device:
            raise ValueError(
                f"{op}: {name} must be on the device of input, {input.device}, not {tensor.device}"
            )
        if tensor.dtype != input.dtype and (
            tensor.dtype != torch.float32 or input.dtype not in HALVES
        ):
            also = " or float32" if input.dtype in HALVES else ""
            raise TypeError(
                f"{op}: {name} must have the dtype of input, {input.dtype}{also}, not "
                f"{tensor.dtype}"
            )
        if first is not None and tensor.dtype != first.dtype:
            raise TypeError(
                f"{op}: weight and bias must have one dtype, not {first.dtype} and {tensor.dtype}"
            )
        first = tensor
