"""Memory that all ranks of a group can address: who owns it, and what went wrong in it."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed

from diglot.backends.capture import is_captured, ordinary_tensors
from diglot.backends.registry import INTERPRET
from diglot.backends.tunables import tunables
from diglot.distributed.layout import (
    ALIGNMENT,
    MOST_RANKS,
    REPORT_WORDS,
    Layout,
    prepare,
    rounded,
)

MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
REPORTED_OPS = (
    "all_reduce(sum)",
    "all_reduce(avg)",
    "all_reduce(max)",
    "all_reduce(min)",
    "barrier",
    "all_gather",
    "reduce_scatter(sum)",
    "reduce_scatter(avg)",
    "reduce_scatter(max)",
    "reduce_scatter(min)",
    "all_reduce_add_rms_norm",
)
PROTOCOLS = ("push", "pull", "in place", "two shots", "two shots in place", "direct shots")
# Bytes that a Workspace has room for by default.
MOST_PUSHED, MOST_STAGED = 512 << 10, 16 << 20


class Way(NamedTuple):
    """How a tensor is exchanged.

    Attributes:
        protocol: its name, one of `PROTOCOLS`.
        source: where the tensor lies in the workspace, in bytes, if peers read it there; else 0.
        target: where the output lies, if peers write to it; else 0.
    """

    protocol: str
    source: int = 0
    target: int = 0


class _Memory(NamedTuple):
    """This rank's memory, what it can reach of the others', and what keeps that mapped."""

    own: torch.Tensor  # int64
    all: list[torch.Tensor]  # of the interpreter, which checks what kernels touch
    addresses: list[int]
    handle: Any


_workspaces: weakref.WeakKeyDictionary[Any, Workspace] = weakref.WeakKeyDictionary()


class Workspace:
    """Memory through which the ranks of a process group exchange data and signals.

    Making one is collective: every rank of the group does, with the same arguments. A group has at
    most one, which its collectives then use. It lives until `close`, or until the group is gone. On
    GPUs the memory and the rendezvous are PyTorch's symmetric memory, without NVLink multicast.

    Collectives on one workspace run one after the other: one on another stream waits for the one
    before. For collectives that run at once, make a group and a workspace for each. A graph that
    was captured must not be replayed beside other collectives of the workspace.

    Args:
        group: of up to 8 ranks; by default the world.
        most_pushed: bytes of the longest tensor that ranks may push to each other. The workspace
            takes eight bytes for each of them, and rank.
        most_staged: bytes of each of the two buffers for tensors that ranks pull. Longer ones take
            several launches.
        symmetric: bytes of room for tensors of `empty`.
        timeout: how many seconds a kernel waits for its peers.
        blocks: of a launch, at most; by default one for each SM. A few leave the other SMs to a
            kernel on another stream.

    Attributes:
        rank, ranks: of the group.
        layout: where things lie.
        push_bytes, staged_bytes: the sizes, at most, that are pushed, and that are staged although
            they lie in the workspace. configs/tunables/ has them.
        saved_bytes: what two shots save a rank from reading, at least.
        two_shots_bytes: the size of others that take two shots if they lie outside the workspace.
        direct_bytes: the size, at least, that direct shots reduce from the workspace into it.

    Raises:
        RuntimeError: the group has a workspace, its ranks' arguments or GPUs differ, their GPUs do
            not reach each other, or symmetric memory uses NVLink multicast.
        ValueError: the group has more than 8 ranks, or a size is out of range.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        most_pushed: int = MOST_PUSHED,
        most_staged: int = MOST_STAGED,
        symmetric: int = 0,
        timeout: float = 30.0,
        blocks: int | None = None,
    ) -> None:
        group = group or torch.distributed.group.WORLD
        if group is None:
            raise RuntimeError("Workspace: torch.distributed is not initialized")
        if group in _workspaces:
            raise RuntimeError("Workspace: the group has one already; close it first")
        self.rank, self.ranks = group.rank(), group.size()
        if self.ranks > MOST_RANKS:
            raise ValueError(f"Workspace: a group has at most {MOST_RANKS} ranks, not {self.ranks}")
        if min(most_pushed, most_staged) < ALIGNMENT or symmetric < 0:
            raise ValueError(f"Workspace: most_pushed and most_staged are at least {ALIGNMENT}")
        if blocks is not None and blocks < 1:
            raise ValueError(f"Workspace: blocks is at least 1, not {blocks}")
        self.timeout, self.blocks = timeout, blocks
        self.layout = Layout(self.ranks, *map(rounded, (most_pushed, most_staged, symmetric)))
        self.device = torch.device("cpu")
        if not INTERPRET:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = str(group.group_name)
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        numbers = tunables(gpu)
        self.push_bytes: int = min(
            self.layout.most_pushed, numbers.read("all_reduce.host.push_bytes", self.ranks)
        )
        self.staged_bytes: int = numbers.read("all_reduce.host.staged_bytes", self.ranks)
        self.saved_bytes: int = numbers.read("all_reduce.host.saved_bytes")
        self.two_shots_bytes: int = numbers.read("all_reduce.host.two_shots_bytes", self.ranks)
        self.direct_bytes: int = numbers.read("all_reduce.host.direct_bytes", self.ranks)
        self._check_ranks(group, gpu)
        with ordinary_tensors():
            self.report = torch.zeros(REPORT_WORDS, dtype=torch.int64)
            if self.device.type == "cuda":
                self.report = self.report.pin_memory()
            make = _share_files if self.device.type == "cpu" else _share_gpus
            self._memory: _Memory | None = make(self.layout.bytes, self.device, group)
            prepare(self._memory.own, self._memory.addresses, self.report)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        torch.distributed.barrier(group)  # every rank's workspace is there
        self._report = self.report.numpy()
        self._used = 0
        self._stream: torch.cuda.Stream | None = None
        _workspaces[group] = self

    def _check_ranks(self, group: Any, gpu: str) -> None:
        """Raises unless all ranks' workspaces and GPUs are alike: they choose the same launches."""
        chosen = (self.push_bytes, self.staged_bytes, self.saved_bytes, self.two_shots_bytes)
        mine = (gpu, *self.layout, *chosen, self.direct_bytes, self.blocks)
        every: list[Any] = [None] * self.ranks
        torch.distributed.all_gather_object(every, mine, group)
        for rank, other in enumerate(every):
            if other != mine:
                raise RuntimeError(
                    f"Workspace: rank {self.rank} has {mine}, and rank {rank} has {other}"
                )

    @property
    def memory(self) -> _Memory:
        """Its memory.

        Raises:
            RuntimeError: the workspace is closed.
        """
        if self._memory is None:
            raise RuntimeError("the group's workspace is closed")
        return self._memory

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor in the workspace. Collectives read it in place, without a copy.

        Peers may also write to it, where it is the `out` of `all_reduce`. All ranks make the same
        tensors in the same order. The room is free again after `close`.

        Raises:
            RuntimeError: there is no room, or the workspace is closed.
        """
        count = int(torch.Size(shape).numel())
        bytes = rounded(count * dtype.itemsize)
        if self._used + bytes > self.layout.symmetric:
            raise RuntimeError(
                f"Workspace: {self.layout.symmetric - self._used} of {self.layout.symmetric} bytes "
                f"are left for symmetric tensors, and {bytes} are needed"
            )
        begin = self.layout.room + self._used
        self._used += bytes
        with ordinary_tensors():
            own = self.memory.own.view(torch.uint8)[begin : begin + count * dtype.itemsize]
            return own.view(dtype).view(shape)

    def way(
        self,
        tensor: torch.Tensor,
        parts: int = 1,
        is_pulled: bool = False,
        sum: torch.Tensor | None = None,
        protocol: str | None = None,
    ) -> Way:
        """How a tensor is exchanged.

        Args:
            tensor: contiguous.
            parts: 1, or as many as ranks, if each rank takes one part.
            is_pulled: whether it must not be pushed.
            sum: the output, if every rank takes the sum of all ranks' tensors. It may be `tensor`.
            protocol: its name, if the caller has chosen one.

        Raises:
            ValueError: the protocol does not serve these tensors.
        """
        bytes = tensor.numel() * tensor.element_size()
        of_part = bytes // parts
        source = self._place(tensor)
        if parts > 1 and of_part % 16 != 0:
            source = None
        target = None if source is None or sum is None else self._place(sum)
        is_kept = sum is not None and sum.data_ptr() == tensor.data_ptr()
        if protocol is None or bytes == 0:
            is_reduced = sum is not None
            protocol = self._choose(bytes, of_part, is_pulled, is_reduced, is_kept, source, target)
        elif (
            (protocol == "push" and of_part > self.layout.most_pushed)
            or (protocol == "in place" and is_kept)
            or (protocol.endswith("in place") and source is None)
            or (protocol == "direct shots" and target is None)
        ):
            raise ValueError(
                f"all_reduce: the protocol {protocol!r} does not serve x and out: 'push' takes "
                f"{self.layout.most_pushed} bytes at most, 'in place' another output than x, "
                "'direct shots' an output of Workspace.empty, and all but 'push', 'pull' and 'two "
                "shots' an x of Workspace.empty"
            )
        is_direct = protocol == "direct shots"
        is_read = is_direct or protocol.endswith("in place")
        return Way(protocol, source or 0 if is_read else 0, target or 0 if is_direct else 0)

    def _place(self, tensor: torch.Tensor) -> int | None:
        """Where a tensor begins in the workspace, in bytes, if vectors of all of it lie there."""
        place = tensor.data_ptr() - self.memory.own.data_ptr()
        end = place + tensor.numel() * tensor.element_size()
        is_inside = self.layout.room <= place and end <= self.layout.bytes and place % 16 == 0
        return place if is_inside else None

    def _choose(
        self, bytes: int, of_part: int, is_pulled: bool, is_reduced: bool, is_kept: bool,
        source: int | None, target: int | None,
    ) -> str:  # fmt: skip
        """The protocol for tensors that `way` describes."""
        if of_part <= self.push_bytes and not is_pulled:
            return "push"
        if target is not None and bytes >= self.direct_bytes:
            return "direct shots"
        if is_reduced and self.takes_two_shots(bytes):
            return "two shots" if source is None else "two shots in place"
        if is_reduced and source is None and bytes >= self.two_shots_bytes:
            return "two shots"
        return "pull" if source is None or is_kept or of_part <= self.staged_bytes else "in place"

    def takes_two_shots(self, bytes: int) -> bool:
        """Whether a long tensor is better reduced in parts, which the ranks then gather.

        A pull reads the tensor of each peer. Two shots read 2 / ranks of that.
        """
        return bytes * (self.ranks - 1) * (self.ranks - 2) // self.ranks >= self.saved_bytes

    def check(self) -> None:
        """Raises RuntimeError if a kernel has waited too long for a peer."""
        if not self._report[0]:
            return
        _, rank, op, epoch, block, peer, has_come, _ = map(int, self._report)
        why = "came with another call: its tensor or operation differs" if has_come else (
            "did not come in time"
        )  # fmt: skip
        raise RuntimeError(
            f"{REPORTED_OPS[op]}: rank {peer} {why}. Rank {rank} waited for it in block {block} of "
            f"launch {epoch}, and filled what it lacks with NaN. The group's workspace cannot be "
            "used any more: close it, and make another"
        )

    def synchronize(self) -> None:
        """Waits for the collectives on this device, and then checks as `check` does."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.check()

    def enter(self) -> None:
        """Orders the current stream behind the last collective, and checks as `check` does."""
        self.check()
        if self.device.type == "cpu" or is_captured(self.device):
            return
        stream = torch.cuda.current_stream(self.device)
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    def close(self) -> None:
        """Frees the memory, once the device has done its work. It waits for no peer."""
        if self._memory is None:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for group, other in list(_workspaces.items()):
            if other is self:
                del _workspaces[group]
        self._memory = None


def workspace_of(group: Any) -> Workspace | None:
    """The workspace of a group, if it has one."""
    return _workspaces.get(group)


def _share_gpus(bytes: int, device: torch.device, group: Any) -> _Memory:
    """Symmetric memory of a group's GPUs."""
    # Imported at its first use, because it is large.
    import torch.distributed._symmetric_memory as symmetric_memory

    if os.environ.setdefault(MULTICAST, "1") != "1":
        raise RuntimeError(f"Workspace: NVLink multicast must be off: set {MULTICAST}=1")
    own = symmetric_memory.empty(bytes // 8, dtype=torch.int64, device=device)
    handle = symmetric_memory.rendezvous(own, group.group_name)
    if handle.multicast_ptr != 0:
        raise RuntimeError(f"Workspace: NVLink multicast must be off: set {MULTICAST}=1")
    own.zero_()
    return _Memory(own, [], list(handle.buffer_ptrs), handle)


def _share_files(bytes: int, device: torch.device, group: Any) -> _Memory:
    """Memory that processes of this machine share, for interpreted kernels."""
    folder = [tempfile.mkdtemp(prefix="diglot-")] if group.rank() == 0 else [""]
    torch.distributed.broadcast_object_list(folder, group_src=0, group=group)
    paths = [Path(folder[0], str(rank)) for rank in range(group.size())]
    own = _map(paths[group.rank()], bytes)
    torch.distributed.barrier(group)
    every = [own if r == group.rank() else _map(path, bytes) for r, path in enumerate(paths)]
    torch.distributed.barrier(group)
    paths[group.rank()].unlink()
    torch.distributed.barrier(group)
    if group.rank() == 0:
        Path(folder[0]).rmdir()
    return _Memory(own, every, [tensor.data_ptr() for tensor in every], None)


def _map(path: Path, bytes: int) -> torch.Tensor:
    return torch.from_file(str(path), shared=True, size=bytes // 8, dtype=torch.int64)
