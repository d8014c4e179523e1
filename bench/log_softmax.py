"""log_softmax: its calls, and those of its peers."""

from __future__ import annotations

from typing import Any

import torch

from diglot.bench.harness import Function
from diglot.bench.rows import benchmark_of


def _formula(x: torch.Tensor, dim: int) -> torch.Tensor:
    wide = x.float()
    shifted = wide - wide.amax(dim, True)
    return (shifted - shifted.exp().sum(dim, True).log()).to(x.dtype)


def _gradient(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    wide = grad.float()
    return (wide - y.float().exp() * wide.sum(dim, True)).to(grad.dtype)


benchmark = benchmark_of("log_softmax", _formula, _gradient)


@benchmark.peer("flag_gems", "flag_gems.ops")
def _flag_gems(ops: Any) -> dict[str, Function]:
    return {
        "forward": lambda x, dim: ops.log_softmax(x, dim),
        "backward": lambda grad, y, dim: ops.log_softmax_backward(grad, y, dim, y.dtype),
    }
