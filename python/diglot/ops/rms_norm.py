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

    x / sqrt(mean(x^2) + eps) · weight, where the mean is that of a row, that is of all elements
    that differ in the last dimensions alone (Zhang and Sennrich, "Root mean square layer
    normalization", 2019, arXiv:1910.07467). Computed in float32 (float64 for float64) and rounded
    once. A row is read once.

    Args:
        input: as in `diglot.layer_norm`.
        normalized_shape: as in `diglot.layer_norm`.
        weight: of the shape `normalized_shape`, of the dtype of `input`, or of float32 with a
            float16 or bfloat16 `input`; 1 by default.
        eps: added to the mean square. By default the machine epsilon of the type that is computed
            in: of float32, or of float64 for float64.
        backend: as in `diglot.gelu`.

    Returns:
        As of `diglot.layer_norm`, but that a row with an infinity is 0 elsewhere.

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
    """The output of the op, or those of the fused one, with the default of eps."""
    if eps is None and isinstance(arrays[0], torch.Tensor):
        eps = default_eps(arrays[0].dtype)
    return OPERATORS(arrays, normalized_shape, (weight,), eps, backend)


OPERATORS = NormOperators("rms_norm", centered=False)
