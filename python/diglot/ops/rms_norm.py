"""RMS norm: the contract of the op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from diglot.ops.norm_operators import NormOperators
from diglot.reference.rms_norm import default_eps


def rms_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    backend: str | None = None,
) -> torch.Tensor:
    r"""Divides by the root mean square over the last dimensions, as `torch.nn.functional.rms_norm`.

    x / sqrt(mean(x^2) + eps) · weight. The mean is that of a row: all elements that differ only in
    the last dimensions (Zhang and Sennrich, "Root mean square layer normalization", 2019,
    arXiv:1910.07467). The computation is in float32 (float64 for float64) and rounds once. A row
    that fits on the chip is read once (docs/rows.md).

    Args:
        input: as in `diglot.layer_norm`.
        normalized_shape: as in `diglot.layer_norm`.
        weight: of the shape `normalized_shape`, and of the dtype of `input`. For a float16 or
            bfloat16 `input` it may be float32. By default 1.
        eps: added to the mean square. By default the machine epsilon of the computation's type:
            float32, or float64 for float64.
        backend: as in `diglot.gelu`.

    Returns:
        As `diglot.layer_norm`. A row with an infinity has NaN there, and 0 elsewhere.

    Raises:
        As `diglot.layer_norm`.
    """
    return call((input,), normalized_shape, weight, eps, backend)


def call(
    arrays: tuple[torch.Tensor, ...],
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None,
    eps: float | None,
    backend: str | None,
) -> Any:
    """Calls the op, or the fused one, with the default of eps."""
    if eps is None and isinstance(arrays[0], torch.Tensor):
        eps = default_eps(arrays[0].dtype)
    return OPERATORS(arrays, normalized_shape, (weight,), eps, backend)


OPERATORS = NormOperators("rms_norm", centered=False)
