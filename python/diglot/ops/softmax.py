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
    Partial sums are brought to a common maximum (Milakov and Gimelshein, "Online normalizer
    calculation for softmax", 2018, arXiv:1805.02867). A row is read once where it can be held, and
    no dimension is transposed or copied.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64, and with
            `dtype` any real dtype.
        dim: the dimension that sums to one.
        dtype: of the result, to which the input is converted first: from float16 and bfloat16 to
            float32 in the kernel, else by a copy.
        backend: as in `diglot.gelu`.

    Returns:
        A tensor of the shape and memory format of `input`, of its dtype or `dtype`; float32 of a
        float16 or bfloat16 input under autocast, as PyTorch's softmax. A row is NaN if it has NaN
        or +inf, or nothing greater than -inf. Differentiable twice and more; the first derivative
        runs on the same backend, the later ones are made of PyTorch's operators.

    Raises:
        TypeError: `input` is not a dense floating-point tensor, `dim` no integer, or `dtype` none
            of the four.
        IndexError: the tensor has no dimension `dim`.
        ValueError: an unknown `backend`.
        diglot.BackendUnavailable: the backend asked for cannot run on the tensor's device.
    """
    return _operators(input, dim, dtype, backend)


_operators = SoftmaxOperators("softmax", softmax_gradient_slope)
