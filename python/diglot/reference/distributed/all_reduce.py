"""A reduction over the ranks of a group by torch.distributed: the launcher of the backend "torch".
On GPUs that is NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed

from diglot.reference.distributed import process_group, reduction


def all_reduce(
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
    """Reduces `input` into `out`. It needs no workspace, only the group's name."""
    found = process_group(group)
    out.copy_(input)
    torch.distributed.all_reduce(out, reduction(op), found)
    if op == "avg":
        out.div_(found.size())
    return "torch.distributed"


def all_reduce_oracle(inputs: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    """What every rank gets: float32 sums in the order of the ranks, rounded once.

    Args:
        inputs: the tensor of each rank.
    """
    result = inputs[0].float()
    for other in inputs[1:]:
        wide = other.float()
        if op in ("sum", "avg"):
            result = result + wide
        else:
            is_kept = (result > wide if op == "max" else result < wide) | result.isnan()
            result = torch.where(is_kept, result, wide)
    if op == "avg":
        result = result / len(inputs)
    return result.to(inputs[0].dtype)
