"""Products of groups of matrices: the contract of the op."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diglot.backends.needs import prefer
from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.define.operator import Operator
from diglot.ops.add import add
from diglot.ops.checks import check_tensor
from diglot.ops.products import AUTO_ORDER, check_operands

prefer("grouped_mm", AUTO_ORDER)


def grouped_mm(
    input: Tensor,
    other: Tensor,
    *,
    offs: Tensor | None = None,
    bias: None = None,
    out_dtype: torch.dtype | None = None,
    backend: str | None = None,
) -> Tensor:
    r"""Multiplies groups of matrices, as `torch.nn.functional.grouped_mm`.

    Groups divide a dimension of a matrix, and `offs` says where each of G groups ends:

    | `input` | `other` | result | groups divide |
    |---|---|---|---|
    | (M, K) | (G, K, N) | (M, N) | rows |
    | (G, M, K) | (K, N) | (M, N) | columns |
    | (M, K) | (K, N) | (G, M, N) | K: a product for each group |
    | (G, M, K) | (G, K, N) | (G, M, N) | nothing: `offs` is None |

    Nothing waits for the GPU: kernels read `offs` themselves. A group may be empty. Rows, or
    columns, past the last offset are zeros, and so are their gradients; `torch.nn.functional`'s
    are not set. Our kernels never access memory out of bounds, whatever `offs` holds: an offset
    below an earlier one makes an empty group, and one past the end is the end. They sum as those of
    `diglot.matmul`. The gradients are grouped products of transposed views, on the same backend.

    Args:
        input: tensor (M, K) or (G, M, K) of any strides; float32, float16, bfloat16 or float64.
        other: tensor (K, N) or (G, K, N); of the dtype of `input`. Autocast casts neither.
        offs: ascending int32 tensor (G). Group g ends before offs[g], and the next begins there.
        bias: must be None, as in PyTorch.
        out_dtype: None, or the dtype of `input`, as in PyTorch.
        backend: as in `diglot.matmul`. "torch" calls PyTorch's op for bfloat16 on a GPU, where that
            takes the strides. Otherwise it reads `offs` on the host.

    Returns:
        A contiguous tensor, zero where K = 0. Differentiable any number of times.

    Raises:
        TypeError: an operand is no dense floating-point tensor, dtypes differ, or `offs` is no
            int32 tensor.
        ValueError: shapes do not fit, `offs` is absent or not needed, tensors are on different
            devices, or another argument is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    present = (input, other) if offs is None else (input, other, offs)
    kind = _grouped_mm.known(*present) or _grouped_mm.learn(*present)
    if bias is not None:
        raise ValueError("grouped_mm: bias must be None, as in PyTorch")
    if out_dtype not in (None, input.dtype):
        raise ValueError(f"grouped_mm: out_dtype must be {input.dtype}, not {out_dtype}")
    return kind.call(input, other, offs, choose("grouped_mm", kind.device, backend))


def _check(input: Any, other: Any, offs: Any = None) -> None:
    check_operands("grouped_mm", input=input, other=other)
    if input.dtype != other.dtype:  # autocast, under which others' may differ, casts neither
        raise TypeError(
            f"grouped_mm: input and other must have one dtype, not {input.dtype} and {other.dtype}"
        )
    if offs is None:
        return
    check_tensor("grouped_mm", "offs", offs)
    if offs.dtype != torch.int32:
        raise TypeError(f"grouped_mm: offs must be an int32 tensor, not {offs.dtype}")
    if offs.device != input.device:
        raise ValueError(
            f"grouped_mm: input and offs must be on one device, not on {input.device} and "
            f"{offs.device}"
        )


def _shape(input: Tensor, other: Tensor, offs: Tensor | None) -> tuple[int, ...]:
    """The result's shape.

    Raises:
        ValueError: the operands' shapes do not fit.
    """
    ranks = input.dim(), other.dim()
    shapes = f"input {tuple(input.shape)} and other {tuple(other.shape)}"
    if not set(ranks) <= {2, 3}:
        raise ValueError(f"grouped_mm: operands must have two or three dimensions, not {shapes}")
    if input.shape[-1] != other.shape[-2]:
        raise ValueError(f"grouped_mm: {shapes} do not multiply")
    if (offs is None) != (ranks == (3, 3)):
        needed = "not needed" if ranks == (3, 3) else "needed"
        raise ValueError(f"grouped_mm: offs is {needed} for {shapes}")
    if offs is not None and offs.dim() != 1:
        raise ValueError(f"grouped_mm: offs must have one dimension, not {offs.dim()}")
    groups = [t.shape[0] for t in (input, other) if t.dim() == 3]
    groups += [] if offs is None else [offs.shape[0]]
    if groups[0] != groups[-1]:  # there are one or two
        many = "" if offs is None else f" and offs {tuple(offs.shape)}"
        raise ValueError(f"grouped_mm: {shapes}{many} must have as many groups")
    product = input.shape[-2], other.shape[-1]
    return product if 3 in ranks and 2 in ranks else (groups[0], *product)


def _fake(input: Tensor, other: Tensor, offs: Tensor | None, backend: str) -> Tensor:
    return input.new_empty(_shape(input, other, offs))


def _forward(input: Tensor, other: Tensor, offs: Tensor | None, backend: str) -> Tensor:
    out = _fake(input, other, offs, backend)
    ends = None if offs is None else offs.contiguous()
    run(backend, "grouped_mm", "grouped_mm_forward", input, other, ends, out)
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, ...]:
    input, other, offs, ctx.backend = inputs
    return input, other, offs


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    input, other, offs = ctx.saved_tensors
    needs_input, needs_other = ctx.needs_input_grad[:2]
    of_input = _grouped_mm(grad, other.mT, offs, ctx.backend) if needs_input else None
    of_other = _grouped_mm(input.mT, grad, offs, ctx.backend) if needs_other else None
    return of_input, of_other, None


def _tangent(ctx: Any, of_input: Tensor | None, of_other: Tensor | None, of_offs: None) -> Tensor:
    input, other, offs = ctx.saved_tensors
    parts = []
    if of_input is not None:
        parts.append(_grouped_mm(of_input, other, offs, ctx.backend))
    if of_other is not None:
        parts.append(_grouped_mm(input, of_other, offs, ctx.backend))
    return parts[0] if len(parts) == 1 else add(*parts, backend=ctx.backend)


_grouped_mm = Operator(
    "grouped_mm(Tensor input, Tensor other, Tensor? offs, str backend) -> Tensor",
    forward=_forward,
    fake=_fake,
    save=_save,
    backward=_gradients,
    jvp=_tangent,
    inlined=False,
    whole=True,
    check=_check,
)


def multiply_groups(input: Tensor, other: Tensor, offs: Tensor | None, backend: str) -> Tensor:
    """A grouped product on a backend that is already chosen."""
    result: Tensor = _grouped_mm(input, other, offs, backend)
    return result
