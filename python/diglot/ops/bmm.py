"""Products of batches of matrices: the contract of the op."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.define.operator import Operator
from diglot.ops.broadcasting import align_batches
from diglot.ops.products import (
    autocast,
    check_operands,
    gradients,
    multiply,
    precision_of,
    product_shape,
    tangent,
)


def bmm(input: torch.Tensor, mat2: torch.Tensor, *, backend: str | None = None) -> torch.Tensor:
    r"""Multiplies the matrices of two batches in pairs, as `torch.bmm`.

    `diglot.matmul` explains the computation. It also takes batches that broadcast.

    Args:
        input: tensor (B, M, K) of any strides; float32, float16, bfloat16 or float64.
        mat2: tensor (B, K, N), of the dtype of `input`.
        backend: as in `diglot.matmul`.

    Returns:
        A contiguous tensor (B, M, N). Differentiable any number of times, on the same backend.

    Raises:
        TypeError: an operand is no dense floating-point tensor, or the dtypes differ.
        ValueError: an operand is no batch of matrices, shapes do not multiply, tensors are on
            different devices, or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    kind = _bmm.known(input, mat2) or _bmm.learn(input, mat2)
    check_batches("bmm", input=input, mat2=mat2)
    if kind.facts:
        input, mat2 = autocast("bmm", input, mat2)  # type: ignore[assignment]
    result: torch.Tensor = kind.call(input, mat2, choose("bmm", kind.device, backend))
    return result


def check_batches(op: str, **operands: torch.Tensor) -> None:
    """Raises ValueError unless two operands are batches of as many matrices."""
    (first, a), (second, b) = operands.items()
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0]:
        raise ValueError(
            f"{op}: {first} and {second} must be batches of as many matrices, not "
            f"{tuple(a.shape)} and {tuple(b.shape)}"
        )


def _empty(input: Tensor, mat2: Tensor, backend: str) -> Tensor:
    return input.new_empty(product_shape(input, mat2, "bmm", second="mat2"))


def _forward(input: Tensor, mat2: Tensor, backend: str) -> Tensor:
    out = _empty(input, mat2, backend)
    run(backend, "bmm", "bmm_forward", input, mat2, precision_of(input), out)
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, Tensor]:
    input, mat2, ctx.backend = inputs
    ctx.batch_invariant = False
    return input, mat2


def _batch(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    input, mat2, backend = args
    input, mat2 = align_batches((input, mat2), in_dims[:2])
    return multiply(input, mat2, backend), 0


_bmm = Operator(
    "bmm(Tensor input, Tensor mat2, str backend) -> Tensor",
    forward=_forward,
    fake=_empty,
    save=_save,
    backward=gradients,
    jvp=tangent,
    vmap=_batch,
    whole=True,
    check=lambda input, mat2: check_operands("bmm", input=input, mat2=mat2),
)
