"""Where things lie in a workspace: what csrc/include/diglot/sync/signal.cuh calls SignalSpace, and
the buffers behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

MOST_RANKS = 8
ALIGNMENT = 256  # bytes
ADDRESS_WORDS = 64
REPORT_WORD, EPOCH_WORD = 64, 65
SIGNAL_BYTES = 1024 + 8 * 2 * 256 * MOST_RANKS
REPORT_WORDS = 8


def rounded(bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-bytes // ALIGNMENT) * ALIGNMENT


class Layout(NamedTuple):
    """Offsets and sizes in bytes; equal on all ranks.

    Attributes:
        ranks: of the group.
        most_pushed: data that a slot of packets holds.
        most_staged: size of each of the two buffers of a staged pull.
        symmetric: size of the room for tensors.
    """

    ranks: int
    most_pushed: int
    most_staged: int
    symmetric: int

    @property
    def packets(self) -> int:
        """Where slots of packets begin: for each parity and sender, one of twice the data."""
        return rounded(SIGNAL_BYTES)

    @property
    def staging(self) -> int:
        """Where the buffers of a staged pull begin."""
        return self.packets + 2 * self.ranks * 2 * self.most_pushed

    @property
    def room(self) -> int:
        """Where the room for tensors begins."""
        return self.staging + 2 * self.most_staged

    @property
    def bytes(self) -> int:
        return self.room + self.symmetric


def prepare(workspace: torch.Tensor, addresses: Sequence[int], report: torch.Tensor) -> None:
    """Writes the beginning of a workspace, which is zero.

    Args:
        workspace: int64, this rank's.
        addresses: of all ranks' workspaces, as this rank's device sees them.
        report: int64 [8], zeros, in memory that the host and the device see.
    """
    head = torch.zeros(REPORT_WORD + 1, dtype=torch.int64)
    head[: len(addresses)] = torch.tensor(addresses, dtype=torch.int64)
    head[REPORT_WORD] = report.data_ptr()
    workspace[: head.numel()].copy_(head)
