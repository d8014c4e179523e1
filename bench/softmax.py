"""softmax: its calls, and those of its peers."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from diglot.bench.harness import Function
from diglot.bench.rows import benchmark_of, has_no_options


def _formula(x: torch.Tensor, dim: int) -> torch.Tensor:
    wide = x.float()
    e = torch.exp(wide - wide.amax(dim, True))
    return (e / e.sum(dim, True)).to(x.dtype)


def _gradient(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    wide, out = grad.float(), y.float()
    return (out * (wide - (wide * out).sum(dim, True))).to(grad.dtype)


benchmark = benchmark_of("softmax", _formula, _gradient)


# Liger and QuACK know the last dimension alone; Liger reads rows of 65536 elements at most at once.
@benchmark.peer("liger", "liger_kernel.ops.softmax", takes=has_no_options)
def _liger(ops: Any) -> dict[str, Function]:
    """Launchers, without their autograd functions."""
    settings = importlib.import_module("liger_kernel.ops.utils").calculate_settings

    def differentiate(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
        block, warps = settings(y.shape[-1])
        return ops._softmax_backward(grad, y, block, warps, y.shape[-1] > block)

    return {"forward": lambda x, dim: ops._softmax_forward(x)[0], "backward": differentiate}


@benchmark.peer("quack", "quack.softmax", takes=has_no_options)
def _quack(ops: Any) -> dict[str, Function]:
    return {
        "forward": lambda x, dim: ops.softmax_fwd(x),
        "backward": lambda grad, y, dim: ops.softmax_bwd(grad, y),
    }


@benchmark.peer("flag_gems", "flag_gems.ops")
def _flag_gems(ops: Any) -> dict[str, Function]:
    return {
        "forward": lambda x, dim: ops.softmax(x, dim),
        "backward": lambda grad, y, dim: ops.softmax_backward(grad, y, dim, y.dtype),
    }
