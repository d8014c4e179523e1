"""Collectives over a group's workspace: their contracts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch.compiler import is_compiling

from diglot.backends.runs import run
from diglot.backends.selection import requested
from diglot.define.direct import is_direct
from diglot.distributed.operators import (
    NONE,
    OPS,
    Found,
    find,
    patience_of,
    run_all_gather,
    run_all_reduce,
    run_all_reduce_add_rms_norm,
    run_reduce_scatter,
)
from diglot.distributed.workspace import PROTOCOLS
from diglot.reference.rms_norm import default_eps

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def all_reduce(
    x: torch.Tensor,
    op: str = "sum",
    group: Any = None,
    *,
    backend: str | None = None,
    timeout: float | None = None,
    protocol: str | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Reduces a tensor over all ranks of a group. Every rank gets the same bits.

    The kernels compute in float32, in the order of the ranks, and round once. Each rank calls this
    with a tensor of the same shape and dtype. A short tensor is pushed to the peers, and a long one
    pulled from them; docs/collectives.md has the protocols and their limits.

    Args:
        x: contiguous tensor of any shape; float16, bfloat16 or float32. One of `Workspace.empty`
            is read in place. No rank may change it before its own call has ended on the GPU.
        op: "sum", "avg" (the sum divided by the number of ranks), "max" or "min". A NaN of any rank
            gives NaN. The gradient of "sum" and "avg" is the same reduction of all ranks'
            gradients. "max" and "min" have none.
        group: the process group; by default the world.
        backend: "cuda", "triton", "torch" (`torch.distributed.all_reduce`, so NCCL on GPUs) or
            "auto". "auto" never takes "torch": ask for it.
        timeout: how many seconds the kernel waits for peers; by default the workspace's.
        protocol: "push", "pull", "in place", "two shots", "two shots in place" or "direct shots",
            the same on all ranks; by default chosen by size. The backend "torch" has its own.
        out: tensor for the result, of the shape, dtype and device of `x`, and contiguous. It may be
            `x`. If both are of `Workspace.empty`, at the same places on all ranks, peers can write
            to `out` ("direct shots"). One that begins at no multiple of 16 bytes takes a copy. As
            in PyTorch, there is no gradient then.

    Returns:
        `out`, or a new tensor of the shape and dtype of `x`. If a peer does not come in time, the
        kernel ends all the same, and fills what it lacks with NaN. The next call then raises.

    Raises:
        TypeError: `x` or `out` is no dense tensor of such a dtype.
        ValueError: `x` or `out` is not contiguous or on another device, `out` does not fit `x`, or
            `op`, `backend` or `protocol` is unknown. Or the protocol does not serve `x` and `out`.
        RuntimeError: a kernel has waited too long for a peer, the gradient of "max" or "min", or
            with `out`, is asked for, or `out` overlaps `x`.
        diglot.BackendUnavailable: the backend cannot run, or the group has no workspace.
    """
    _check_reduction("all_reduce", x, op, out)
    if protocol is not None and protocol not in PROTOCOLS:
        raise ValueError(
            f"all_reduce: protocol must be one of {', '.join(PROTOCOLS)}, not {protocol!r}"
        )
    if _is_plain(x, *([] if out is None else [out])):
        found = _found("all_reduce", x, group, backend)
        return run_all_reduce(x, op, found, timeout, protocol, out)
    ending = (*_ending(group, backend, timeout), protocol)
    if out is not None:
        torch.ops.diglot.all_reduce_out(x, op, *ending, out)
        return out
    made: torch.Tensor = torch.ops.diglot.all_reduce(x, op, *ending)
    return made


def all_gather(
    x: torch.Tensor,
    group: Any = None,
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> torch.Tensor:
    """Puts the tensors of all ranks one behind the other, in the order of the ranks.

    The result is that of `torch.distributed.all_gather_into_tensor`. Each rank calls this with a
    tensor of the same shape and dtype.

    Args:
        x: contiguous tensor of any shape and dtype; otherwise as in `all_reduce`.
        group, backend, timeout: as in `all_reduce`.

    Returns:
        A new tensor. Its first dimension is that of `x` times the number of ranks. The gradient is
        `reduce_scatter` of all ranks' gradients. If a peer does not come in time, all bits of what
        lacks are set, which is a NaN in a floating dtype. CUDA C++ may set other ranks' bits, too.

    Raises:
        As `all_reduce`.
    """
    _check("all_gather", x)
    if _is_plain(x):
        return run_all_gather(x, _found("all_gather", x, group, backend), timeout)
    if x.requires_grad and torch.is_grad_enabled() and x.dtype not in DTYPES:
        raise TypeError("all_gather: gradients have float16, bfloat16 or float32, as sums do")
    made: torch.Tensor = torch.ops.diglot.all_gather(x, *_ending(group, backend, timeout))
    return made


def reduce_scatter(
    x: torch.Tensor,
    op: str = "sum",
    group: Any = None,
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> torch.Tensor:
    """Reduces a tensor over all ranks of a group, and gives each rank its part of the result.

    The result is that of `torch.distributed.reduce_scatter_tensor`, and has the bits of a part of
    `all_reduce`. Parts lie one behind the other along the first dimension.

    Args:
        x: as in `all_reduce`. Its first dimension is divisible by the number of ranks.
        op: as in `all_reduce`. The gradient of "sum" is `all_gather` of all ranks' gradients.
        group, backend, timeout: as in `all_reduce`.

    Returns:
        A new tensor. Its first dimension is that of `x` divided by the number of ranks. A peer that
        does not come in time has the effects that `all_reduce` describes.

    Raises:
        As `all_reduce`. Also ValueError: the first dimension of `x` is not divisible.
    """
    _check_reduction("reduce_scatter", x, op)
    if _is_plain(x):
        return run_reduce_scatter(x, op, _found("reduce_scatter", x, group, backend), timeout)
    made: torch.Tensor = torch.ops.diglot.reduce_scatter(x, op, *_ending(group, backend, timeout))
    return made


def all_reduce_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    group: Any = None,
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums a tensor over all ranks, adds a residual, and normalizes rows, in one launch.

    The new residual has the bits of `all_reduce(x) + residual`. The norm is that of
    `diglot.add_rms_norm(all_reduce(x), residual, x.shape[-1], weight, eps)`. Rows of more than 32
    KiB, or whose bytes are no multiple of 16, take those two launches.

    Args:
        x: as in `all_reduce`, of at least one dimension. Rows are its last one.
        residual: contiguous tensor of the shape, dtype and device of `x`, the same on all ranks.
        weight: contiguous vector of a row's size, of the dtype of `x`; by default 1.
        eps: as in `diglot.rms_norm`.
        group, backend, timeout: as in `all_reduce`.

    Returns:
        The norm and the new residual, of the shape and dtype of `x`. The gradient of `x` is the sum
        of all ranks' gradients of the new residual. A peer that does not come in time has the
        effects that `all_reduce` describes.

    Raises:
        As `all_reduce`. Also ValueError: `residual` or `weight` does not fit `x`.
    """
    what = "all_reduce_add_rms_norm"
    _check_reduction(what, x, "sum")
    if x.dim() == 0:
        raise ValueError(f"{what}: x must have at least one dimension")
    wanted = [("residual", residual, x.shape)]
    if weight is not None:
        wanted.append(("weight", weight, x.shape[-1:]))
    for name, tensor, shape in wanted:
        _check(what, tensor, name)
        if tensor.shape != shape or tensor.dtype != x.dtype or tensor.device != x.device:
            raise ValueError(
                f"{what}: {name} must have the shape {tuple(shape)}, and the dtype and device of x"
            )
    eps = default_eps(x.dtype) if eps is None else float(eps)
    if _is_plain(x, residual, *([] if weight is None else [weight])):
        found = _found(what, x, group, backend)
        return run_all_reduce_add_rms_norm(x, residual, weight, eps, found, timeout)
    normed, total, _ = torch.ops.diglot.all_reduce_add_rms_norm(
        x, residual, weight, eps, *_ending(group, backend, timeout)
    )
    return normed, total


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
    name, space, _ = find("barrier", None, group, backend)
    if space is None:
        run(name, "distributed.barrier", "barrier", [], group.group_name, 0, 1, 0, NONE)
        return
    space.enter()
    run(
        name,
        "distributed.barrier",
        "barrier",
        [*space.memory.all, space.report],
        space.name,
        space.rank,
        space.ranks,
        patience_of(space, timeout),
        space.memory.own,
    )


def _check(what: str, x: Any, name: str = "x") -> None:
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        raise TypeError(f"{what}: {name} must be a dense tensor")
    if not x.is_contiguous():
        raise ValueError(f"{what}: {name} must be contiguous; call {name}.contiguous() first")


def _check_reduction(what: str, x: Any, op: str, out: Any = None) -> None:
    is_tensor = isinstance(x, torch.Tensor) and x.layout == torch.strided
    if not is_tensor or x.dtype not in DTYPES:
        raise TypeError(f"{what}: x must be a dense tensor of float16, bfloat16 or float32")
    if op not in OPS:
        raise ValueError(f"{what}: op must be one of {', '.join(OPS)}, not {op!r}")
    _check(what, x)
    if out is not None:
        _check(what, out, "out")
        if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
            raise ValueError(f"{what}: out must have the shape, dtype and device of x")
        if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
            raise RuntimeError(
                f"{what}(): functions with out=... arguments don't support automatic "
                "differentiation, but one of the arguments requires grad."
            )
    if op in ("max", "min") and x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{what}: op {op!r} has no gradient; call it with torch.no_grad()")


def _is_plain(*tensors: torch.Tensor) -> bool:
    """Whether nobody but the kernels needs to see the call."""
    if is_compiling():
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return is_direct(*tensors)


def _found(what: str, x: torch.Tensor, group: Any, backend: str | None) -> Found:
    return find(what, x.device, group or torch.distributed.group.WORLD, backend)


def _ending(group: Any, backend: str | None, timeout: float | None) -> tuple[str, str, float]:
    """The group's name, the backend and the time-out, as operators take them."""
    name = "" if group is None else str(group.group_name)
    # Scopes belong to a thread, and a backward pass may have its own. A compiled graph asks again.
    backend = (backend or "") if is_compiling() else requested(backend)
    return name, backend, -1.0 if timeout is None else float(timeout)
