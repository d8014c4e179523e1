"""A product of matrices, and a matrix beside it: the contract of the op."""

from __future__ import annotations

import torch

from diglot.ops.added_products import added_product, check_dtypes, factors
from diglot.ops.numbers import Number
from diglot.ops.products import autocast, choose_product


def addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
    precision: str | None = None,
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
        out_dtype, batch_invariant, precision: as in `diglot.matmul`. With `out_dtype`, `input` has
            that dtype, or the one of `mat1`.
        backend: as in `diglot.matmul`.

    Returns:
        A contiguous tensor (M, N). Differentiable any number of times, on the same backend.

    Raises:
        TypeError: an operand is no dense floating-point tensor, the dtypes differ or allow no such
            `out_dtype`, or a factor is no real number.
        ValueError: shapes do not fit, tensors are on different devices, a factor is out of range,
            or `precision` or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    kind = _addmm.known(mat1, mat2, input) or _addmm.learn(mat1, mat2, input)
    if mat1.dim() != 2 or mat2.dim() != 2:
        raise ValueError(
            f"addmm: mat1 and mat2 must be matrices, not {tuple(mat1.shape)} and "
            f"{tuple(mat2.shape)}"
        )
    if kind.facts and out_dtype is None:
        mat1, mat2, input = autocast("addmm", mat1, mat2, input)  # type: ignore[assignment]
    elif kind.facts:
        autocast("addmm", mat1, mat2, out_dtype=out_dtype)
    if out_dtype is not None or input.dtype != mat1.dtype:
        check_dtypes("addmm", "mat1", mat1, input, out_dtype)
    chosen = choose_product("addmm", mat1.dtype, kind.device, backend, precision, batch_invariant)
    numbers = factors("addmm", beta, alpha, mat1.dtype)
    options = out_dtype, batch_invariant, precision, chosen
    result: torch.Tensor = kind.call(mat1, mat2, input, *numbers, *options)
    return result


_addmm = added_product("addmm", "mat1", "mat2")
