"""Autocast, for ops whose PyTorch counterpart it runs in float32."""

from __future__ import annotations

import torch


def autocast_to_float32(input: torch.Tensor) -> torch.Tensor:
    """`input` as PyTorch's ops of autocast's float32 list take it."""
    # The dtype first: while it is not one of these nothing else is asked. A meta tensor's device
    # has no autocast to ask about.
    if input.dtype in (torch.float16, torch.bfloat16) and not input.is_meta:
        if torch.is_autocast_enabled(input.device.type):
            return input.float()
    return input
