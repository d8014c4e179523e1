"""The operators of collectives, `diglot::<name>`: what compilers and autograd see of them.

An operator finds its group by name, and chooses its backend as it runs; "" is the default of both.
So a compiled graph holds neither a group nor a workspace.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.autograd.graph import increment_version

from diglot.backends.runs import run
from diglot.backends.selection import BackendUnavailable, choose, requested
from diglot.distributed.workspace import Way, Workspace, workspace_of
from diglot.ops.add_rms_norm import add_rms_norm
from diglot.ops.rms_norm import OPERATORS as RMS_NORM
from diglot.reference.distributed import process_group

OPS = ("sum", "avg", "max", "min")
NORM = "all_reduce_add_rms_norm"
NONE = torch.empty(0, dtype=torch.int64)  # a workspace for the backend that needs none
# Integers that travel for elements of a size. Longer elements travel in parts.
INTEGERS = {1: torch.int8, 2: torch.int16}
MOST_ROW_BYTES = 32 << 10  # of all_reduce_add_rms_norm, in one launch
Found = tuple[str, Workspace | None, Any]  # the backend that runs, a workspace for it, the group


def group_of(name: str) -> Any:
    """The group of a name; the world for ""."""
    if not name:
        return torch.distributed.group.WORLD
    return process_group(name)


def find(what: str, device: torch.device | None, group: Any, backend: str | None) -> Found:
    """The backend that runs `what`, the workspace and the group. No device: the workspace's."""
    op = f"distributed.{what}"
    if group is None:
        raise RuntimeError(f"{op}: torch.distributed is not initialized")
    space = workspace_of(group)
    if device is None:
        device = torch.device("cpu") if space is None else space.device
    name = choose(op, device, backend)
    if name == "torch":
        if requested(backend) != "torch":
            raise BackendUnavailable(
                f"{op}: neither 'cuda' nor 'triton' runs on {device}, and 'auto' takes no "
                "interpreter; ask for backend='torch' to use torch.distributed"
            )
        return name, None, group
    if space is None:
        raise BackendUnavailable(
            f"{op}: backend {name!r} needs a workspace, and the group has none. Every rank makes "
            "diglot.distributed.Workspace(group) once, or asks for backend='torch'"
        )
    if device != space.device:
        raise ValueError(f"{op}: the group's workspace is on {space.device}, and x on {device}")
    return name, space, group


def patience_of(space: Workspace, timeout: float | None) -> int:
    """Nanoseconds that a kernel waits."""
    return int(1e9 * (space.timeout if timeout is None or timeout < 0 else timeout))


@functools.lru_cache(maxsize=4096)
def call_number(what: str, dtype: torch.dtype, count: int, row: int, way: Way) -> int:
    """16 bits that differ, most likely, where two ranks' calls do not fit each other."""
    return zlib.crc32(repr((what, str(dtype), count, row, *way)).encode()) & 0xFFFF


def exchange(
    what: str,
    found: Found,
    inputs: tuple[Tensor | None, ...],
    words: tuple[str, ...],
    last: tuple[Any, ...],
    timeout: float | None,
    parts: int = 1,
    row: int = 0,
    sum: Tensor | None = None,
    protocol: str | None = None,
) -> None:
    """Runs a launcher.

    Args:
        what: its name.
        inputs: its tensors; the first one is exchanged.
        words: its options between the group's name and the protocol.
        last: its arguments behind the time-out, outputs last.
        parts: 1, or as many as ranks, if each rank takes one part.
        row: elements of a row, if rows are pulled whole; else 0.
        sum, protocol: as in `Workspace.way`.
    """
    name, space, group = found
    op, input = f"distributed.{what}", inputs[0]
    assert input is not None
    if space is None:
        fixed = (group.group_name, *words, "", 0, group.size(), 0, 0, 0, 0, 0, 0, 0, 0)
        run(name, op, what, [], NONE, *inputs, *fixed, *last)
        return
    space.enter()
    at = space.layout
    way = space.way(input, parts, row > 0, sum, protocol)
    call = call_number("".join((what, *words)), input.dtype, input.numel(), row, way)
    run(
        name,
        op,
        what,
        [*space.memory.all, space.report],
        space.memory.own,
        *inputs,
        space.name,
        *words,
        way.protocol,
        space.rank,
        space.ranks,
        at.packets,
        at.most_pushed,
        at.staging,
        at.most_staged,
        space.blocks or 0,
        call,
        way.source,
        patience_of(space, timeout),
        *last,
    )


def run_all_reduce(
    x: Tensor,
    op: str,
    found: Found,
    timeout: float | None,
    protocol: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    if out is None:
        out = torch.empty_like(x)
    elif 0 < abs(out.data_ptr() - x.data_ptr()) < x.numel() * x.element_size():
        raise RuntimeError("all_reduce: out overlaps x; it may be x, or must lie elsewhere")
    # Kernels store 16 bytes at once.
    made = out if out.data_ptr() % 16 == 0 else torch.empty_like(out)
    exchange("all_reduce", found, (x,), (op,), (made,), timeout, sum=made, protocol=protocol)
    if made is not out:
        return out.copy_(made)
    if not out.is_inference():
        increment_version(out)
    return out


def gathered_shape(x: Tensor, ranks: int) -> tuple[int, ...]:
    """The shape of all ranks' tensors along dimension 0."""
    shape = tuple(x.shape) or (1,)
    return (shape[0] * ranks, *shape[1:])


def as_integers(x: Tensor) -> Tensor:
    """The bits of a contiguous tensor."""
    flat = x.reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(INTEGERS.get(flat.element_size(), torch.int32))


def run_all_gather(x: Tensor, found: Found, timeout: float | None) -> Tensor:
    name, _, group = found
    out = x.new_empty(gathered_shape(x, group.size()))
    # NCCL knows the dtypes of tensors, and not integers of 16 bits.
    flat = torch.flatten if name == "torch" else as_integers
    input, output = flat(x), flat(out)
    exchange("all_gather", found, (input,), (), (output,), timeout)
    return out


def scattered_shape(x: Tensor, ranks: int) -> tuple[int, ...]:
    """The shape of a rank's part along dimension 0."""
    if x.dim() == 0 or x.shape[0] % ranks:
        raise ValueError(
            f"reduce_scatter: the first dimension of x must be divisible by the {ranks} ranks, and "
            f"x has the shape {tuple(x.shape)}"
        )
    return (x.shape[0] // ranks, *x.shape[1:])


def run_reduce_scatter(x: Tensor, op: str, found: Found, timeout: float | None) -> Tensor:
    _, _, group = found
    out = x.new_empty(scattered_shape(x, group.size()))
    exchange("reduce_scatter", found, (x,), (op,), (out,), timeout, group.size())
    return out


def aligned(x: Tensor) -> Tensor:
    """A contiguous tensor that begins at a multiple of 16 bytes: a copy where needed."""
    return x if x.data_ptr() % 16 == 0 else x.clone()


def run_all_reduce_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    found: Found,
    timeout: float | None,
    statistics: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The norm and the new residual."""
    name, space, _ = found
    bytes, longest = x.shape[-1] * x.element_size(), MOST_ROW_BYTES
    is_split = False  # into two launches, on all ranks or none
    if space is not None:
        longest = min(longest, space.layout.most_staged)
        is_split = bytes % 16 != 0 or space.takes_two_shots(x.numel() * x.element_size())
    if is_split or bytes > longest:
        reduced = run_all_reduce(x, "sum", found, timeout)
        normed, total = add_rms_norm(reduced, residual, x.shape[-1:], weight, eps, backend=name)
        if statistics is not None:
            squares = total.float().square().mean(-1)
            statistics.copy_(torch.rsqrt(squares + eps).reshape(statistics.shape))
        return normed, total
    total, out = torch.empty_like(x), torch.empty_like(x)
    inputs = (aligned(x), aligned(residual), None if weight is None else aligned(weight))
    last = (eps, statistics, total, out)
    exchange(NORM, found, inputs, (), last, timeout, row=x.shape[-1])
    return out, total


# --- operators ------------------------------------------------------------------------------------

_ENDING = "str group, str backend, float timeout"


def _define(schema: str, body: Any, fake: Any, set_up: Any = None, gradients: Any = None) -> None:
    name = f"diglot::{schema.partition('(')[0]}"
    torch.library.define(name, schema[schema.index("(") :], tags=[torch.Tag.pt2_compliant_tag])
    torch.library.impl(name, ("cpu", "cuda"), body)
    torch.library.register_fake(name, fake)
    if gradients is not None:
        torch.library.register_autograd(name, gradients, setup_context=set_up)


def _found(what: str, x: Tensor, group: str, backend: str) -> Found:
    return find(what, x.device, group_of(group), backend or None)


def _all_reduce(
    x: Tensor, op: str, group: str, backend: str, timeout: float, protocol: str | None = None
) -> Tensor:
    found = _found("all_reduce", x, group, backend)
    return run_all_reduce(x.contiguous(), op, found, timeout, protocol)


def _all_reduce_out(
    x: Tensor, op: str, group: str, backend: str, timeout: float, protocol: str | None, out: Tensor
) -> None:
    found = _found("all_reduce", x, group, backend)
    run_all_reduce(x.contiguous(), op, found, timeout, protocol, out)


def _set_up_reduction(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, ctx.op, *ctx.ending = inputs


def _refuse_gradient(what: str, op: str) -> None:
    if op in ("max", "min"):
        raise RuntimeError(f"{what}: op {op!r} has no gradient, sum and avg have one")


def _set_up_all_reduce(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _set_up_reduction(ctx, inputs[:-1], output)  # the gradient's protocol is not the caller's


def _gradient_of_all_reduce(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    _refuse_gradient("all_reduce", ctx.op)
    grad = torch.ops.diglot.all_reduce(grad.contiguous(), ctx.op, *ctx.ending)
    return grad, None, None, None, None, None


def _all_gather(x: Tensor, group: str, backend: str, timeout: float) -> Tensor:
    return run_all_gather(x.contiguous(), _found("all_gather", x, group, backend), timeout)


def _fake_all_gather(x: Tensor, group: str, backend: str, timeout: float) -> Tensor:
    return x.new_empty(gathered_shape(x, group_of(group).size()))


def _set_up_gather(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, *ctx.ending = inputs
    ctx.shape = x.shape


def _gradient_of_all_gather(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grad = torch.ops.diglot.reduce_scatter(grad.contiguous(), "sum", *ctx.ending)
    return grad.reshape(ctx.shape), None, None, None


def _reduce_scatter(x: Tensor, op: str, group: str, backend: str, timeout: float) -> Tensor:
    found = _found("reduce_scatter", x, group, backend)
    return run_reduce_scatter(x.contiguous(), op, found, timeout)


def _fake_reduce_scatter(x: Tensor, op: str, group: str, backend: str, timeout: float) -> Tensor:
    return x.new_empty(scattered_shape(x, group_of(group).size()))


def _gradient_of_reduce_scatter(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    _refuse_gradient("reduce_scatter", ctx.op)
    if ctx.op == "avg":
        grad = grad / group_of(ctx.ending[0]).size()
    grad = torch.ops.diglot.all_gather(grad.contiguous(), *ctx.ending)
    return grad, None, None, None, None


def _statistics_of(x: Tensor) -> Tensor:
    return x.new_empty((1, *x.shape[:-1]), dtype=torch.float32)


def _fused(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float,
    group: str, backend: str, timeout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    statistics = _statistics_of(x)
    found = _found(NORM, x, group, backend)
    kept = None if weight is None else weight.contiguous()
    out, total = run_all_reduce_add_rms_norm(
        x.contiguous(), residual.contiguous(), kept, eps, found, timeout, statistics
    )
    return out, total, statistics


def _fake_fused(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape), _statistics_of(x)


def _set_up_fused(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, weight, ctx.eps, *ctx.ending = inputs
    _, total, statistics = output
    ctx.mark_non_differentiable(statistics)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(total, statistics, weight)


def _gradient_of_fused(ctx: Any, grad: Any, grad_sum: Any, _: Any) -> tuple[Any, ...]:
    total, statistics, weight = ctx.saved_tensors
    of_weight = None
    if grad is not None:
        asks = weight is not None and ctx.needs_input_grad[2]
        chosen = choose("rms_norm", total.device, ctx.ending[1] or None)
        made = RMS_NORM.backward(
            grad, grad_sum, total, statistics, weight, weight.dtype if asks else None, ctx.eps,
            chosen,
        )  # fmt: skip
        grad_sum, of_weight = made[0], made[1] if asks else None
    if grad_sum is None:
        return (None,) * 7
    of_input = None
    if ctx.needs_input_grad[0]:
        of_input = torch.ops.diglot.all_reduce(grad_sum.contiguous(), "sum", *ctx.ending)
    return of_input, grad_sum, of_weight, None, None, None, None


_define(
    f"all_reduce(Tensor x, str op, {_ENDING}, str? protocol=None) -> Tensor",
    _all_reduce,
    lambda x, *_: x.new_empty(x.shape),
    _set_up_all_reduce,
    _gradient_of_all_reduce,
)
_define(  # it returns nothing: what compilers functionalize may not return its argument
    f"all_reduce_out(Tensor x, str op, {_ENDING}, str? protocol, Tensor(a!) out) -> ()",
    _all_reduce_out,
    lambda *_: None,
)
_define(
    f"all_gather(Tensor x, {_ENDING}) -> Tensor",
    _all_gather,
    _fake_all_gather,
    _set_up_gather,
    _gradient_of_all_gather,
)
_define(
    f"reduce_scatter(Tensor x, str op, {_ENDING}) -> Tensor",
    _reduce_scatter,
    _fake_reduce_scatter,
    _set_up_reduction,
    _gradient_of_reduce_scatter,
)
_define(
    "all_reduce_add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, "
    f"{_ENDING}) -> (Tensor normed, Tensor residual_out, Tensor statistics)",
    _fused,
    _fake_fused,
    _set_up_fused,
    _gradient_of_fused,
)
