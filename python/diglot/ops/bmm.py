"""Products of batches of matrices: the contract of the op."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diglot.backends.batch_invariance import hold_rows
from diglot.backends.runs import run
from diglot.define.operator import Operator
from diglot.ops.products import (
    autocast,
    batch_product,
    check_operands,
    check_out_dtype,
    choose_product,
    gradients,
    precision_of,
    product_shape,
    save_operands,
    tangent,
)


def bmm(
    input: torch.Tensor,
    mat2: torch.Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
    precision: str | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    r"""Multiplies the matrices of two batches in pairs, as `torch.bmm`.

    `diglot.matmul` explains the computation. It also takes batches that broadcast.

    Args:
        input: tensor (B, M, K) of any strides; float32, float16, bfloat16 or float64.
        mat2: tensor (B, K, N), of the dtype of `input`.
        out_dtype, batch_invariant, precision: as in `diglot.matmul`.
        backend: as in `diglot.matmul`.

    Returns:
        A contiguous tensor (B, M, N). Differentiable any number of times, on the same backend.

    Raises:
        TypeError: an operand is no dense floating-point tensor, the dtypes differ, or they allow no
            such `out_dtype`.
        ValueError: an operand is no batch of matrices, shapes do not multiply, tensors are on
            different devices, or `precision` or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    kind = _bmm.known(input, mat2) or _bmm.learn(input, mat2)
    check_batches("bmm", input=input, mat2=mat2)
    if kind.facts:
        input, mat2 = autocast(  # type: ignore[assignment]
            "bmm", input, mat2, out_dtype=out_dtype
        )
    if out_dtype is not None:
        check_out_dtype("bmm", input.dtype, out_dtype)
    chosen = choose_product("bmm", input.dtype, kind.device, backend, precision, batch_invariant)
    result: torch.Tensor = kind.call(input, mat2, out_dtype, batch_invariant, precision, chosen)
    return result


def check_batches(op: str, **operands: torch.Tensor) -> None:
    """Raises ValueError unless two operands are batches of as many matrices."""
    (first, a), (second, b) = operands.items()
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0]:
        raise ValueError(
            f"{op}: {first} and {second} must be batches of as many matrices, not "
            f"{tuple(a.shape)} and {tuple(b.shape)}"
        )


def _empty(input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None, *_: Any) -> Tensor:
    return input.new_empty(product_shape(input, mat2, "bmm", second="mat2"), dtype=out_dtype)


def _forward(
    input: Tensor,
    mat2: Tensor,
    out_dtype: torch.dtype | None,
    batch_invariant: bool,
    precision: str | None,
    backend: str,
) -> Tensor:
    out = _empty(input, mat2, out_dtype)
    input, is_held = hold_rows(input, batch_invariant, backend)
    run(backend, "bmm", "bmm_forward", input, mat2, is_held, precision_of(input, precision), out)
    return out


_bmm = Operator(
    "bmm(Tensor input, Tensor mat2, ScalarType? out_dtype, bool batch_invariant, str? precision, "
    "str backend) -> Tensor",
    forward=_forward,
    fake=_empty,
    save=save_operands,
    backward=gradients,
    jvp=tangent,
    vmap=batch_product,
    whole=True,
    check=lambda input, mat2: check_operands("bmm", input=input, mat2=mat2),
)
