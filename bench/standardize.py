"""standardize: its calls, and those of its peers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import diglot
from diglot.bench.global_reduce import benchmark_of
from diglot.bench.marks import STRAWMAN
from diglot.reference.standardize import EPS


def _formula(x: torch.Tensor) -> torch.Tensor:
    variance, mean = torch.var_mean(x.float(), correction=0)
    return ((x - mean) * torch.rsqrt(variance + EPS)).to(x.dtype)


def _gradient(grad: torch.Tensor, x: torch.Tensor, statistics: torch.Tensor) -> torch.Tensor:
    mean, rstd = statistics
    g, y = grad.float(), (x - mean) * rstd
    return (rstd * (g - g.mean() - y * (g * y).mean())).to(grad.dtype)


def _saved(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    variance, mean = torch.var_mean(x.float(), correction=0)
    return x, torch.stack([mean, torch.rsqrt(variance + EPS)])


def _eager_gradient(grad: torch.Tensor, x: torch.Tensor, statistics: torch.Tensor) -> torch.Tensor:
    mask = [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, x.shape, *statistics.view(2, 1), None, None, mask
    )[0]


def _ours(x: torch.Tensor, backend: str) -> torch.Tensor:
    return diglot.standardize(x, EPS, backend=backend)


def _ours_gradient(*tensors: torch.Tensor, backend: str) -> torch.Tensor:
    return torch.ops.diglot.standardize_backward(*tensors, EPS, backend)


benchmark = benchmark_of(
    "standardize",
    ours={"forward": _ours, "backward": _ours_gradient},
    eager={"forward": lambda x: F.layer_norm(x, x.shape, eps=EPS), "backward": _eager_gradient},
    formulas={"forward": _formula, "backward": _gradient},
    saved=_saved,
)
benchmark.how["torch"] = STRAWMAN
