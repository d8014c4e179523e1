"""A reduction over ranks by torch.distributed, where each gets its part: the backend "torch"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed


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
    resolve: Any = torch._C._distributed_c10d._resolve_process_group
    found = resolve(group)
    operations = torch.distributed.ReduceOp
    reduction = {"max": operations.MAX, "min": operations.MIN}.get(op, operations.SUM)
    # Without an operation of their own for it, backends such as gloo divide here.
    torch.distributed.reduce_scatter_tensor(out, input, reduction, found)
    if op == "avg":
        out.div_(found.size())
    return "torch.distributed"
