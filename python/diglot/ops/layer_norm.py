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

    (x - mean) / sqrt(variance + eps) · weight + bias, where mean and variance are those of a row,
    that is of all elements that differ in the last dimensions alone, and the variance is divided by
    their number (Ba, Kiros and Hinton, "Layer normalization", 2016, arXiv:1607.06450). Computed in
    float32 (float64 for float64) and rounded once. A row is read once.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64. It is copied
            first where its last dimensions are not one run of memory.
        normalized_shape: what the shape of `input` ends with, a row's shape; a number for one
            dimension.
        weight: of the shape `normalized_shape`, of the dtype of `input`, or of float32 with a
            float16 or bfloat16 `input`; 1 by default.
        bias: likewise, of the dtype of `weight`; 0 by default.
        eps: added to the variance.
        backend: as in `diglot.gelu`.

    Returns:
        A contiguous tensor of the shape and dtype of `input`; float32 of a float16 or bfloat16
        input under autocast, as PyTorch's layer_norm. A row is NaN if it has NaN or an infinity.
        Differentiable twice and more, by `input`, `weight` and `bias`; the first derivative runs on
        the same backend, and the sums over rows in it are deterministic: their order depends on
        shapes, the GPU and its measured plans. Later derivatives and forward-mode ones are made of
        PyTorch's operators. Under vmap, one launch, or one for each sample where the weight, the
        bias or the gradient of one is of each sample.

    Raises:
        TypeError: `input`, `weight` or `bias` is not a dense floating-point tensor of an allowed
            dtype, `normalized_shape` not of integers, or `eps` not a number.
        ValueError: `normalized_shape` is empty or does not match, `weight` or `bias` has another
            shape or device, or an unknown `backend`.
        diglot.BackendUnavailable: the backend asked for cannot run on the tensor's device.
    """
    return OPERATORS((input,), normalized_shape, (weight, bias), eps, backend)


OPERATORS = NormOperators("layer_norm", centered=True)
