"""Products of batches of matrices, and matrices beside them: the contract of the op."""

from __future__ import annotations

import torch

from diglot.ops.added_products import added_product, check_dtypes, factors
from diglot.ops.bmm import check_batches
from diglot.ops.numbers import Number
from diglot.ops.products import autocast, choose_product


def baddbmm(
    input: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
    precision: str | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    r"""Computes beta · input + alpha · batch1 · batch2, as `torch.baddbmm`.

    The factors and `input` come before the only rounding, in the same launch. `diglot.matmul`
    explains the computation.

    Args:
        input: tensor that broadcasts to (B, M, N), of any strides; float32, float16, bfloat16 or
            float64.
        batch1: tensor (B, M, K), of the dtype of `input`.
        batch2: tensor (B, K, N), likewise.
        beta: factor of `input`. With 0 no value of `input` counts, NaN included.
        alpha: factor of the products.
        out_dtype, batch_invariant, precision: as in `diglot.matmul`. With `out_dtype`, `input` has
            that dtype, or the one of `batch1`.
        backend: as in `diglot.matmul`.

    Returns:
        A contiguous tensor (B, M, N). Differentiable any number of times, on the same backend.

    Raises:
        TypeError: an operand is no dense floating-point tensor, the dtypes differ or allow no such
            `out_dtype`, or a factor is no real number.
        ValueError: shapes do not fit, tensors are on different devices, a factor is out of range,
            or `precision` or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    kind = _baddbmm.known(batch1, batch2, input) or _baddbmm.learn(batch1, batch2, input)
    check_batches("baddbmm", batch1=batch1, batch2=batch2)
    if kind.facts and out_dtype is None:
        batch1, batch2, input = autocast("baddbmm", batch1, batch2, input)  # type: ignore[assignment]
    elif kind.facts:
        autocast("baddbmm", batch1, batch2, out_dtype=out_dtype)
    if out_dtype is not None or input.dtype != batch1.dtype:
        check_dtypes("baddbmm", "batch1", batch1, input, out_dtype)
    chosen = choose_product(
        "baddbmm", batch1.dtype, kind.device, backend, precision, batch_invariant
    )
    numbers = factors("baddbmm", beta, alpha, batch1.dtype)
    options = out_dtype, batch_invariant, precision, chosen
    result: torch.Tensor = kind.call(batch1, batch2, input, *numbers, *options)
    return result


_baddbmm = added_product("baddbmm", "batch1", "batch2")
