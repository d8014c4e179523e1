"""A barrier across the ranks of a group by torch.distributed: the backend "torch"."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed

from diglot.reference.distributed import process_group


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
    torch.distributed.barrier(process_group(group))
    return "torch.distributed"
