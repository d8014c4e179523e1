"""Layer norm: the contract of the op."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diglot.ops.norm_operators import NormOperators
from diglot.reference.layer_norm import EPS


def layer_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = EPS,
    *,
    backend: str | None = None,
) -> torch.Tensor:
    r"""Normalizes the last dimensions, as `torch.nn.functional.layer_norm`.

    (x - mean) / sqrt(variance + eps) · weight + bias. Mean and variance are those of a row: all
    elements that differ only in the last dimensions. The variance is divided by their number (Ba,
    Kiros and Hinton, "Layer normalization", 2016, arXiv:1607.06450). The computation is in float32
    (float64 for float64) and rounds once. A row that fits on the chip is read once (docs/rows.md).

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64. If the
            elements of a row have gaps in memory, it is copied first.
        normalized_shape: a row's shape, with which the shape of `input` ends; for one dimension, a
            number.
        weight: of the shape `normalized_shape`, and of the dtype of `input`. For a float16 or
            bfloat16 `input` it may be float32. By default 1.
        bias: of the same shape, and of the dtype of `weight`; by default 0.
        eps: added to the variance.
        backend: as in `diglot.gelu`.

    Returns:
        A contiguous tensor of the shape and dtype of `input`. Under autocast, a float16 or bfloat16
        input gives float32, as PyTorch's layer_norm. A row is NaN if it has NaN or an infinity.
        Differentiable twice and more, with respect to `input`, `weight` and `bias`. The first
        derivative runs on the same backend. Its sums over rows are deterministic: their order
        depends on shapes, the GPU and its measured plans. PyTorch's operators compute later
        derivatives and forward-mode ones. Under vmap there is one launch, or one per sample where a
        parameter or its gradient is per sample.

    Raises:
        TypeError: `input`, `weight` or `bias` is not a dense floating-point tensor of an allowed
            dtype, `normalized_shape` has other things than integers, or `eps` is not a number.
        ValueError: `normalized_shape` is empty or does not match, `weight` or `bias` has another
            shape or device, or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensor's device.
    """
    return OPERATORS((input,), normalized_shape, (weight, bias), eps, backend)


OPERATORS = NormOperators("layer_norm", centered=True)
