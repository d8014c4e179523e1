"""All ranks' tensors, one behind the other: launcher.

Its kernels are those of lib/sync/exchange.py. Twin of csrc/ops/distributed/all_gather.cu.
"""

from __future__ import annotations

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import NOTHING, Operand, Unseen
from diglot.triton_ops.lib.sync.exchange import GATHER, Rooms, plan_exchange

OP = 5  # for reports


@launcher
def all_gather(
    workspaces: Unseen,
    workspace: Operand,
    input: Operand,
    group: str,
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
    """Copies all ranks' inputs to `out`, in the order of the ranks.

    Args: as in `all_reduce`. Elements are integers of 1, 2 or 4 bytes.
    """
    n = input.numel()
    if n == 0:
        return NOTHING
    if out.numel() != n * ranks:
        raise ValueError("all_gather: out has the input of every rank")
    if input.dtype.is_floating_point or input.element_size() > 4:
        raise ValueError("all_gather: elements are integers of 1, 2 or 4 bytes")
    return plan_exchange(
        workspace, input, out, protocol, rank, ranks,
        Rooms(packets, most_pushed, staging, most_staged), blocks,
        op=GATHER.value, number=OP, parts=1, n=n,
    )  # fmt: skip
