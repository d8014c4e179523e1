"""Products of batches of matrices, and matrices beside them: the contract of the op."""

from __future__ import annotations

import torch

from diglot.backends.selection import choose
from diglot.ops.added_products import added_product, factors
from diglot.ops.bmm import check_batches
from diglot.ops.numbers import Number
from diglot.ops.products import autocast


def baddbmm(
    input: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
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
        backend: as in `diglot.matmul`.

    Returns:
        A contiguous tensor (B, M, N). Differentiable any number of times, on the same backend.

    Raises:
        TypeError: an operand is no dense floating-point tensor, the dtypes differ, or a factor is
            no real number.
        ValueError: shapes do not fit, tensors are on different devices, a factor is out of range,
            or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    kind = _baddbmm.known(batch1, batch2, input) or _baddbmm.learn(batch1, batch2, input)
    check_batches("baddbmm", batch1=batch1, batch2=batch2)
    if kind.facts:
        batch1, batch2, input = autocast(  # type: ignore[assignment]
            "baddbmm", batch1, batch2, input
        )
    chosen = choose("baddbmm", kind.device, backend)
    result: torch.Tensor = kind.call(
        batch1, batch2, input, *factors("baddbmm", beta, alpha, batch1.dtype), chosen
    )
    return result


_baddbmm = added_product("baddbmm", "batch1", "batch2")
