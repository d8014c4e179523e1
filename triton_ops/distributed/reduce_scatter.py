"""The reduction of a tensor over all ranks of a group; each rank gets its part: launcher.

Its kernels are those of lib/sync/exchange.py. Twin of csrc/ops/distributed/reduce_scatter.cu.
"""

from __future__ import annotations

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import NOTHING, Operand, Unseen
from diglot.triton_ops.lib.sync.exchange import OPS, Rooms, plan_exchange

FIRST_OP = 6  # for reports: the number of the reduction follows


@launcher
def reduce_scatter(
    workspaces: Unseen,
    workspace: Operand,
    input: Operand,
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
    call: Unseen,
    source: Unseen,
    patience: Unseen,
    out: Operand,
) -> Plan:
    """Reduces `input` over the ranks. `out` gets part `rank` of as many parts as ranks.

    Args: as in `all_reduce`.
    """
    n = out.numel()
    if n == 0:
        return NOTHING
    if op not in OPS:
        raise ValueError("distributed: op must be sum, avg, max or min")
    if input.numel() != n * ranks:
        raise ValueError("reduce_scatter: input has as many parts of out as ranks")
    return plan_exchange(
        workspace, input, out, protocol, rank, ranks,
        Rooms(packets, most_pushed, staging, most_staged), blocks,
        op=OPS[op], number=FIRST_OP + OPS[op], parts=ranks, n=n,
    )  # fmt: skip
