"""Launchers of `diglot.distributed` in terms of torch.distributed."""

from __future__ import annotations

from typing import Any

import torch


def process_group(name: str) -> Any:
    """The process group of a name."""
    resolve: Any = torch._C._distributed_c10d._resolve_process_group
    return resolve(name)


def reduction(op: str) -> Any:
    """The operation of NCCL and others; for "avg" the sum, since gloo has no average."""
    operations = torch.distributed.ReduceOp
    return {"max": operations.MAX, "min": operations.MIN}.get(op, operations.SUM)
