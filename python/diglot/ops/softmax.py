"""Softmax: the contract of the op."""

from __future__ import annotations

import torch

from diglot.ops.softmax_operators import SoftmaxOperators
from diglot.reference.softmax import softmax_gradient_slope


def softmax(
    input: torch.Tensor,
    dim: int = -1,
    dtype: torch.dtype | None = None,
    *,
    backend: str | None = None,
) -> torch.Tensor:
    """Applies softmax along a dimension, as `torch.nn.functional.softmax`.

    exp(x - max) / sum(exp(x - max)), computed in float32 (float64 for float64) and rounded once.
    Partial sums use a common maximum (Milakov and Gimelshein, "Online normalizer calculation for
    softmax", 2018, arXiv:1805.02867). A row that fits on the chip is read once. No dimension is
    transposed or copied.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64, or any real
            dtype with `dtype`.
        dim: the dimension that sums to one.
        dtype: of the result. The input is converted to it first: from float16 and bfloat16 to
            float32 within the kernel, otherwise by a copy.
        backend: as in `diglot.gelu`.

    Returns:
        A tensor of the shape and memory format of `input`, of its dtype or `dtype`. Under autocast,
        a float16 or bfloat16 input gives float32, as PyTorch's softmax. A row is NaN if it has NaN
        or +inf, or only -inf. Differentiable twice and more. The first derivative runs on the same
        backend; PyTorch's operators compute later ones.

    Raises:
        TypeError: `input` is not a dense floating-point tensor, `dim` not an integer, or `dtype`
            not one of the four.
        IndexError: the tensor has no dimension `dim`.
        ValueError: `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensor's device.
    """
    return _operators(input, dim, dtype, backend)


_operators = SoftmaxOperators("softmax", softmax_gradient_slope)
