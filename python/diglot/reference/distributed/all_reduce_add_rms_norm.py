"""An all-reduce by torch.distributed, a residual, and the RMS norm: the backend "torch"."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed

from diglot.reference.distributed import process_group
from diglot.reference.rms_norm import rms_norm_forward


def all_reduce_add_rms_norm(
    workspaces: Sequence[torch.Tensor],
    workspace: torch.Tensor,
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    group: str,
    protocol: str,
    rank: int,
    ranks: int,
    packets: int,
    most_pushed: int,
    staging: int,
    most_staged: int,
    blocks: int,
    call: int,
    source: int,
    patience: int,
    eps: float,
    statistics: torch.Tensor | None,
    sum: torch.Tensor,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """sum = the reduced `input` + residual; out = its RMS norm. It needs no workspace."""
    reduced = input.clone()
    torch.distributed.all_reduce(reduced, group=process_group(group))
    torch.add(reduced, residual, out=sum)
    rms_norm_forward(sum, weight, eps, None, out, None)
    if statistics is not None:
        squares = sum.float().square().mean(-1)
        statistics.copy_(torch.rsqrt(squares + eps).reshape(statistics.shape))
    return "torch.distributed"
