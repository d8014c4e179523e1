"""The sum, or the maximum or minimum, of a tensor over all ranks of a group: launcher.

Its kernels are those of lib/sync/exchange.py. Twin of csrc/ops/distributed/all_reduce.cu.
"""

from __future__ import annotations

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import NOTHING, Operand, Unseen
from diglot.triton_ops.lib.sync.exchange import OPS, TWO_SHOTS, Rooms, plan_exchange, plan_two_shots


@launcher
def all_reduce(
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
    """Reduces `input` over the ranks of a workspace into `out`, which begins at a multiple of 16
    bytes. It may be `input`, unless `protocol` is "in place".

    Args:
        workspaces: what kernels reach through addresses.
        workspace: int64, this rank's workspace.
        op: "sum", "avg", "max" or "min".
        group: the name of the group; kernels do not need it.
        protocol: "push", "pull" (staged), "in place" (all ranks' inputs lie at byte `source` of
            their workspaces), "two shots" (staged), "two shots in place" or "direct shots". For the
            last one all ranks' outputs, too, lie at the same place.
        packets, most_pushed: where push's slots begin, and the bytes of data that one holds.
        staging, most_staged: where the two buffers of a staged pull begin, and their bytes. Longer
            inputs take several launches. Two shots keep what they reduce there.
        blocks: programs of a launch at most; 0: one per SM.
        call: a number of 16 bits, equal for calls that fit each other.
        patience: of a wait, in nanoseconds.
    """
    if input.numel() == 0:
        return NOTHING
    if not out.is_aligned:
        raise ValueError("distributed: out begins at a multiple of 16 bytes")
    if op not in OPS:
        raise ValueError("distributed: op must be sum, avg, max or min")
    rooms, number = Rooms(packets, most_pushed, staging, most_staged), OPS[op]
    if protocol in TWO_SHOTS:
        return plan_two_shots(
            workspace, input, out, protocol, rank, ranks, rooms, blocks, op=number
        )  # fmt: skip
    return plan_exchange(
        workspace, input, out, protocol, rank, ranks, rooms, blocks,
        op=number, number=number, parts=1, n=input.numel(),
    )  # fmt: skip
