"""log_softmax: what is called, and what it is compared with."""

from __future__ import annotations

import torch

import diglot
from bench.rows import benchmark_of


def _gradient(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    wide = grad.float()
    return (wide - y.float().exp() * wide.sum(dim, True)).to(grad.dtype)


benchmark = benchmark_of(
    "log_softmax",
    ours={
        "forward": lambda backend, x, dim: diglot.log_softmax(x, dim, backend=backend),
        "backward": lambda backend, grad, y, dim: torch.ops.diglot.log_softmax_backward(
            grad, y, dim, y.dtype, backend
        ),
    },
    eager={
        "forward": torch.log_softmax,
        "backward": lambda grad, y, dim: torch.ops.aten._log_softmax_backward_data(
            grad, y, dim, y.dtype
        ),
    },
    formulas={"forward": torch.log_softmax, "backward": _gradient},
    saved=torch.log_softmax,
    peers={},
)
