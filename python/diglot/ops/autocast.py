"""Autocast, for ops whose PyTorch counterparts it runs in float32."""

from __future__ import annotations

import torch


def is_autocast_to_float32(input: torch.Tensor) -> bool:
    """Whether PyTorch's ops of autocast's float32 list would take `input` in float32."""
    # The dtype comes first, because for others no further check is needed. A meta tensor's device
    # has no autocast.
    return (
        input.dtype in (torch.float16, torch.bfloat16)
        and not input.is_meta
        and torch.is_autocast_enabled(input.device.type)
    )


def autocast_to_float32(input: torch.Tensor) -> torch.Tensor:
    """`input` in the dtype in which PyTorch's ops of autocast's float32 list take it."""
    return input.float() if is_autocast_to_float32(input) else input
