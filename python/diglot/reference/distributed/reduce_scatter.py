"""A reduction over ranks by torch.distributed, where each gets its part: the backend "torch"."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed

from diglot.reference.distributed import process_group, reduction


def reduce_scatter(
    workspaces: Sequence[torch.Tensor],
    workspace: torch.Tensor,
    input: torch.Tensor,
    group: str,
    op: str,
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
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """Reduces `input`, and writes this rank's part to `out`. It needs no workspace."""
    found = process_group(group)
    torch.distributed.reduce_scatter_tensor(out, input, reduction(op), found)
    if op == "avg":
        out.div_(found.size())
    return "torch.distributed"
