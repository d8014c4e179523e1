"""Collectives over a group's workspace: the contracts of `all_reduce` and `barrier`."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import torch
import torch.distributed

from diglot.backends.runs import run
from diglot.backends.selection import BackendUnavailable, choose, requested
from diglot.distributed.workspace import Workspace, workspace_of

# Names of ops: of the modules that have their launchers.
ALL_REDUCE, BARRIER = "distributed.all_reduce", "distributed.barrier"
OPS = ("sum", "avg", "max", "min")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
NONE = torch.empty(0, dtype=torch.int64)  # a workspace for the backend that needs none


def all_reduce(
    x: torch.Tensor,
    op: str = "sum",
    group: Any = None,
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> torch.Tensor:
    """Reduces a tensor over all ranks of a group. Every rank gets the same bits.

    The kernels compute in float32, in the order of the ranks, and round once. Each rank calls this
    with a tensor of the same shape and dtype. A short tensor is pushed to the peers, and a long one
    pulled from them; docs/collectives.md has the protocols and their limits.

    Args:
        x: contiguous tensor of any shape; float16, bfloat16 or float32. One of `Workspace.empty`
            is read in place. No rank may change it before its own call has ended on the GPU.
        op: "sum", "avg" (the sum divided by the number of ranks), "max" or "min". A NaN of any rank
            gives NaN.
        group: the process group; by default the world.
        backend: "cuda", "triton", "torch" (`torch.distributed.all_reduce`, so NCCL on GPUs) or
            "auto". "auto" never takes "torch": ask for it.
        timeout: how many seconds the kernel waits for peers; by default the workspace's.

    Returns:
        A new tensor of the shape and dtype of `x`. If a peer does not come in time, the kernel ends
        all the same, and fills what it lacks with NaN. The next call then raises.

    Raises:
        TypeError: `x` is no dense tensor of such a dtype.
        ValueError: `x` is not contiguous or on another device, or `op` or `backend` is unknown.
        RuntimeError: a kernel has waited too long for a peer, or `x` requires a gradient.
        diglot.BackendUnavailable: the backend cannot run, or the group has no workspace.
    """
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.dtype not in DTYPES:
        raise TypeError("all_reduce: x must be a dense tensor of float16, bfloat16 or float32")
    if op not in OPS:
        raise ValueError(f"all_reduce: op must be one of {', '.join(OPS)}, not {op!r}")
    if not x.is_contiguous():
        raise ValueError("all_reduce: x must be contiguous; call x.contiguous() first")
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("all_reduce has no gradient yet: call it with torch.no_grad()")
    group = group or torch.distributed.group.WORLD
    name, space = _choose(ALL_REDUCE, x.device, group, backend)
    out = torch.empty_like(x)
    if name == "torch" or space is None:
        run(
            name, ALL_REDUCE, "all_reduce",
            [], NONE, x, group.group_name, op, "", 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, out,
        )  # fmt: skip
        return out
    space.enter()
    at = space.layout
    protocol, offset = space.protocol(x)
    run(
        name,
        ALL_REDUCE,
        "all_reduce",
        [*space.memory.all, space.report],
        space.memory.own,
        x,
        space.name,
        op,
        protocol,
        space.rank,
        space.ranks,
        at.packets,
        at.most_pushed,
        at.staging,
        at.most_staged,
        0,
        call_number(op, x.dtype, x.numel(), offset),
        offset,
        _patience(space, timeout),
        out,
    )
    return out


def barrier(group: Any = None, *, backend: str | None = None, timeout: float | None = None) -> None:
    """Makes the current stream wait until all ranks of a group have come here.

    What a rank's stream did before its call is visible to all ranks' streams afterwards. The host
    does not wait.

    Args:
        group, backend, timeout: as in `all_reduce`.

    Raises:
        ValueError: `backend` is unknown.
        RuntimeError: a kernel has waited too long for a peer.
        diglot.BackendUnavailable: the backend cannot run, or the group has no workspace.
    """
    group = group or torch.distributed.group.WORLD
    space = workspace_of(group)
    device = torch.device("cpu") if space is None else space.device
    name, space = _choose(BARRIER, device, group, backend)
    if name == "torch" or space is None:
        run(name, BARRIER, "barrier", [], group.group_name, 0, 1, 0, NONE)
        return
    space.enter()
    run(
        name,
        BARRIER,
        "barrier",
        [*space.memory.all, space.report],
        space.name,
        space.rank,
        space.ranks,
        _patience(space, timeout),
        space.memory.own,
    )


def _choose(
    op: str, device: torch.device, group: Any, backend: str | None
) -> tuple[str, Workspace | None]:
    """The backend that runs, and the workspace of the group."""
    if group is None:
        raise RuntimeError(f"{op}: torch.distributed is not initialized")
    name, space = choose(op, device, backend), workspace_of(group)
    if name == "torch":
        if requested(backend) != "torch":
            raise BackendUnavailable(
                f"{op}: neither 'cuda' nor 'triton' runs on {device}, and 'auto' takes no "
                "interpreter; ask for backend='torch' to use torch.distributed"
            )
        return name, None
    if space is None:
        raise BackendUnavailable(
            f"{op}: backend {name!r} needs a workspace, and the group has none. Every rank makes "
            "diglot.distributed.Workspace(group) once, or asks for backend='torch'"
        )
    if device != space.device:
        raise ValueError(f"{op}: the group's workspace is on {space.device}, and x on {device}")
    return name, space


def _patience(space: Workspace, timeout: float | None) -> int:
    return int(1e9 * (space.timeout if timeout is None else timeout))


@functools.lru_cache(maxsize=4096)
def call_number(op: str, dtype: torch.dtype, count: int, offset: int) -> int:
    """16 bits that differ, most likely, where two ranks' calls do not fit each other."""
    return zlib.crc32(repr((op, str(dtype), count, offset)).encode()) & 0xFFFF
