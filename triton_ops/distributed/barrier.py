"""A barrier across the ranks of a group: kernel and launcher. Twin of
csrc/ops/distributed/barrier.cu.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import Launch, Operand, Unseen
from diglot.triton_ops.lib.sync import signal

BARRIER_OP, BARRIER_CALL = tl.constexpr(4), tl.constexpr(1)


@triton.jit
def meet_ranks(space, rank, patience, RANKS: tl.constexpr):
    peers = signal.peers(space, rank, RANKS, 32)
    epoch, patience = signal.begin(space, patience)
    signal.meet(space, peers, signal.OPENING, rank, BARRIER_OP, BARRIER_CALL, epoch, patience)


@launcher
def barrier(
    workspaces: Unseen, group: str, rank: int, ranks: int, patience: Unseen, workspace: Operand
) -> Plan:
    """Waits for all ranks of a workspace, at most `patience` nanoseconds."""
    launch = Launch(
        meet_ranks, (1,), (workspace,), (rank,), (ranks,), 1, lambda _, patience: (patience,)
    )
    return Plan("signals", (launch,), None)
