"""Addition of a residual, and the RMS norm of the sum: the contract of the op."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diglot.ops.rms_norm import call


def add_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds a residual and normalizes the sum, in one launch.

    The sum is input + residual, rounded to their dtype. The output is `diglot.rms_norm(sum,
    normalized_shape, weight, eps)`.

    Args:
        input: as in `diglot.layer_norm`.
        residual: tensor of the shape and dtype of `input`, of any strides.
        normalized_shape: as in `diglot.layer_norm`.
        weight: as in `diglot.rms_norm`.
        eps: as in `diglot.rms_norm`.
        backend: as in `diglot.gelu`.

    Returns:
        The output and the sum, as `diglot.add_layer_norm`.

    Raises:
        As `diglot.layer_norm`, and for a `residual` of another shape, dtype or device.
    """
    return call((input, residual), normalized_shape, weight, eps, backend)
