"""Collectives across GPUs, in both languages, over a `Workspace`."""

from diglot.distributed.collectives import (
    all_gather,
    all_reduce,
    all_reduce_add_rms_norm,
    barrier,
    reduce_scatter,
)
from diglot.distributed.ddp import ddp_hook
from diglot.distributed.workspace import Workspace

__all__ = [
    "Workspace",
    "all_gather",
    "all_reduce",
    "all_reduce_add_rms_norm",
    "barrier",
    "ddp_hook",
    "reduce_scatter",
]
