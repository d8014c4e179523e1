"""Layouts of operands: of one tensor, and of two that broadcast, made of square matrices.

Their sides are powers of two from 32 on; of pairs, 64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t(),
    "channels last": lambda x: x.reshape(4, 8, 8, -1).to(memory_format=torch.channels_last),
    "columns": lambda x: x[:, ::2],
    "inner slice": lambda x: x[:, 3:-5],
    "expanded": lambda x: x[:, :1].expand(-1, 9),
    "offset": lambda x: x.reshape(-1)[1:],
    "flipped dims": lambda x: x.reshape(4, 8, 8, -1).permute(2, 0, 3, 1),
}

PAIRS: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "both transposed": lambda x, y: (x.t(), y.t()),
    "one transposed": lambda x, y: (x.t(), y),
    "columns": lambda x, y: (x[:, ::2], y[:, ::2]),
    "channels last": lambda x, y: (
        x.reshape(4, 4, 16, 16).to(memory_format=torch.channels_last),
        y.reshape(4, 4, 16, 16).to(memory_format=torch.channels_last),
    ),
    "channels last and bias": lambda x, y: (
        x.reshape(4, 4, 16, 16).to(memory_format=torch.channels_last),
        y[0, :4].reshape(4, 1, 1),
    ),
    "expanded": lambda x, y: (x[:1].expand(64, 64), y),
    "offset": lambda x, y: (x.reshape(-1)[1:], y.reshape(-1)[1:]),
    "offset differently": lambda x, y: (x.reshape(-1)[1:-1], y.reshape(-1)[2:]),
    "overlapping": lambda x, y: (x.reshape(-1).as_strided((60, 60), (1, 1)), y[:60, :60]),
}


def in_order(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """`x`, in memory that has its dimensions in that order."""
    return x.permute(order).contiguous().permute([order.index(d) for d in range(len(order))])
