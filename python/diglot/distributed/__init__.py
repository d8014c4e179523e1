"""Collectives across GPUs, in both languages: `all_reduce` and `barrier` over a `Workspace`."""

from diglot.distributed.collectives import all_reduce, barrier
from diglot.distributed.workspace import Workspace

__all__ = ["Workspace", "all_reduce", "barrier"]
