"""global_softmax: its calls, and those of its peers."""

from __future__ import annotations

import torch

import diglot
from diglot.bench.global_reduce import benchmark_of


def _formula(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x.float() - x.max())
    return (e / e.sum()).to(x.dtype)


def _gradient(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    wide = grad.float()
    return (y * (wide - (wide * y).sum())).to(grad.dtype)


def _eager_gradient(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._softmax_backward_data(grad, y, 0, y.dtype)


benchmark = benchmark_of(
    "global_softmax",
    ours={"forward": diglot.global_softmax, "backward": torch.ops.diglot.global_softmax_backward},
    eager={"forward": lambda x: torch.softmax(x, 0), "backward": _eager_gradient},
    formulas={"forward": _formula, "backward": _gradient},
    saved=lambda x: (torch.softmax(x, 0),),
)
