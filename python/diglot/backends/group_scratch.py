"""Scratch of a group of processes: each rank has a buffer, and every rank's GPU can address all.

The memory and the rendezvous are PyTorch's (symmetric memory). Each buffer begins with a header:
the addresses of all ranks' buffers as this rank's GPU sees them, in the order of the ranks. A
kernel that is given its own buffer finds the others there.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, NamedTuple

import torch

from diglot.backends.capture import is_captured, ordinary_tensors
from diglot.backends.driver import stream_number
from diglot.backends.plans import GROUP_HEADER_BYTES, Scratch

MOST_RANKS = GROUP_HEADER_BYTES // 8


class _Buffer(NamedTuple):
    """A rank's buffer, the handle that keeps the others' mapped, and the group that owns it."""

    tensor: torch.Tensor
    handle: Any
    group: weakref.ref[Any]


_buffers: dict[tuple[str, int, int], _Buffer] = {}  # by group, device and the stream's number


def provide_for_group(need: Scratch, device: torch.device) -> torch.Tensor:
    """This rank's buffer for launches of a group on the device's current stream.

    The first call of a group and stream is collective: each rank makes it, and waits for the
    others. So is a call that needs more memory than the calls before it.

    Returns:
        uint8 [bytes or more]: the header, then zeros when it is made.

    Raises:
        RuntimeError: there is no such group; a graph is being captured, and the buffer is not there
            yet; or PyTorch's symmetric memory uses NVLink multicast.
    """
    if device.type != "cuda":
        raise RuntimeError("a group's scratch lies in GPUs' memory, not on the CPU")
    index = torch.cuda.current_device() if device.index is None else device.index
    captured = is_captured(device)
    resolve: Any = torch._C._distributed_c10d._resolve_process_group
    group = resolve(need.group)
    key = (need.group, index, stream_number(index))
    kept = _buffers.get(key)
    if kept is None or kept.group() is not group or kept.tensor.numel() < need.bytes:
        if captured:
            raise RuntimeError(
                f"group {need.group!r} has no {need.bytes} bytes of scratch on this stream yet, "
                "and ranks cannot meet while a graph is captured: run the op once before"
            )
        forget_closed_groups()
        with ordinary_tensors():
            kept = _buffers[key] = _make(need.bytes, torch.device("cuda", index), group)
    return kept.tensor


def _make(bytes: int, device: torch.device, group: Any) -> _Buffer:
    # Imported at its first use, because it is large.
    import torch.distributed._symmetric_memory as symmetric_memory

    if group.size() > MOST_RANKS:
        raise RuntimeError(f"a group's scratch serves {MOST_RANKS} ranks, not {group.size()}")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    tensor = symmetric_memory.empty(bytes, dtype=torch.uint8, device=device)
    handle = symmetric_memory.rendezvous(tensor, group.group_name)
    if handle.multicast_ptr != 0:
        raise RuntimeError(
            "symmetric memory uses NVLink multicast: set TORCH_SYMM_MEM_DISABLE_MULTICAST=1"
        )
    tensor.zero_()
    addresses = torch.tensor(handle.buffer_ptrs, dtype=torch.int64).view(torch.uint8)
    tensor[: addresses.numel()].copy_(addresses)
    torch.cuda.current_stream(device).synchronize()
    handle.barrier()  # no rank's kernel writes to a buffer that is still being zeroed
    return _Buffer(tensor, handle, weakref.ref(group))


def forget_closed_groups() -> None:
    """Frees the buffers of groups that are destroyed."""
    for key, buffer in list(_buffers.items()):
        if buffer.group() is None:
            del _buffers[key]


def group_buffers() -> dict[tuple[str, int, int], torch.Tensor]:
    """This rank's buffers by group, device and stream."""
    forget_closed_groups()
    return {key: buffer.tensor for key, buffer in _buffers.items()}
