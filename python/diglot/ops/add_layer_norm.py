"""Addition of a residual, and the layer norm of the sum: the contract of the op."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diglot.ops.layer_norm import OPERATORS
from diglot.reference.layer_norm import EPS


def add_layer_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = EPS,
    *,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds a residual and normalizes the sum, in one launch.

    The sum is input + residual, rounded to their dtype. The output is `diglot.layer_norm(sum,
    normalized_shape, weight, bias, eps)`.

    Args:
        input: as in `diglot.layer_norm`.
        residual: tensor of the shape and dtype of `input`, of any strides.
        normalized_shape: as in `diglot.layer_norm`.
        weight: as in `diglot.layer_norm`.
        bias: as in `diglot.layer_norm`.
        eps: as in `diglot.layer_norm`.
        backend: as in `diglot.gelu`.

    Returns:
        The output and the sum, both contiguous, with the shape and dtype of `input`. Under
        autocast, a float16 or bfloat16 input gives a float32 output, as the two separate ops do.
        Differentiable as `diglot.layer_norm`; one launch differentiates both.

    Raises:
        As `diglot.layer_norm`, and for a `residual` of another shape, dtype or device.
    """
    return OPERATORS((input, residual), normalized_shape, (weight, bias), eps, backend)
