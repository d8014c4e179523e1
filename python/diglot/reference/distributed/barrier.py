"""A barrier across the ranks of a group by torch.distributed: the backend "torch"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed


def barrier(
    workspaces: Sequence[torch.Tensor],
    group: str,
    rank: int,
    ranks: int,
    patience: int,
    workspace: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """Waits for all ranks. The host waits too, where the group's backend does."""
    resolve: Any = torch._C._distributed_c10d._resolve_process_group
    torch.distributed.barrier(resolve(group))
    return "torch.distributed"
