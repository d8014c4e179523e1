"""A product of matrices, and a matrix beside it: the contract of the op."""

from __future__ import annotations

import torch

from diglot.backends.selection import choose
from diglot.ops.added_products import added_product, factors
from diglot.ops.numbers import Number
from diglot.ops.products import autocast


def addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
    backend: str | None = None,
) -> torch.Tensor:
    r"""Computes beta · input + alpha · mat1 · mat2, as `torch.addmm`.

    The factors and `input` come before the only rounding, in the same launch. `diglot.matmul`
    explains the computation.

    Args:
        input: tensor that broadcasts to (M, N), of any strides; float32, float16, bfloat16 or
            float64.
        mat1: tensor (M, K), of the dtype of `input`.
        mat2: tensor (K, N), likewise.
        beta: factor of `input`. With 0 no value of `input` counts, NaN included.
        alpha: factor of the product.
        backend: as in `diglot.matmul`.

    Returns:
        A contiguous tensor (M, N). Differentiable any number of times, on the same backend.

    Raises:
        TypeError: an operand is no dense floating-point tensor, the dtypes differ, or a factor is
            no real number.
        ValueError: shapes do not fit, tensors are on different devices, a factor is out of range,
            or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    kind = _addmm.known(mat1, mat2, input) or _addmm.learn(mat1, mat2, input)
    if mat1.dim() != 2 or mat2.dim() != 2:
        raise ValueError(
            f"addmm: mat1 and mat2 must be matrices, not {tuple(mat1.shape)} and "
            f"{tuple(mat2.shape)}"
        )
    if kind.facts:
        mat1, mat2, input = autocast("addmm", mat1, mat2, input)  # type: ignore[assignment]
    chosen = choose("addmm", kind.device, backend)
    result: torch.Tensor = kind.call(
        mat1, mat2, input, *factors("addmm", beta, alpha, mat1.dtype), chosen
    )
    return result


_addmm = added_product("addmm", "mat1", "mat2")
