"""Products of matrices: the contract of the op."""

from __future__ import annotations

import torch

from diglot.backends.batch_invariance import choose_invariant
from diglot.ops.products import autocast, matmul_operator


def matmul(
    input: torch.Tensor,
    other: torch.Tensor,
    *,
    batch_invariant: bool = False,
    backend: str | None = None,
) -> torch.Tensor:
    r"""Multiplies matrices, vectors and batches of matrices, as `torch.matmul`.

    Our kernels compute a sum of products in float32 (float64 for float64) and round it once to the
    result's dtype. Products of float32 are IEEE products, or TF32 where PyTorch's switches say so,
    such as `torch.backends.cuda.matmul.fp32_precision`. Operands that TMA cannot read are copied to
    scratch, if that pays. Gradients are products of the same kernels, of transposed views. Only the
    rows of a batch that shares one matrix are copied for them, if they lie apart. The gradient of a
    broadcast operand is a sum of rounded products.

    Args:
        input: tensor (..., M, K) of any strides, or a vector (K); float32, float16, bfloat16 or
            float64.
        other: tensor (..., K, N), or a vector (K); of the dtype of `input`. Dimensions before the
            last two broadcast.
        batch_invariant: whether the bits of a row of the result must depend only on that row of
            `input`, its length and `other`. Plans are then made for many rows, so few rows are
            slower. It needs the backend "cuda" or "triton". `use_plans("invariant")` does so for
            all calls. The gradient of `input` has it too.
        backend: as in `diglot.gelu`. "auto" takes PyTorch: ours is slower at some shapes.

    Returns:
        A contiguous tensor (..., M, N). A vector's dimension, M or N, is left out. With K = 0 it is
        zero. Under autocast, operands are cast as for PyTorch's product. Differentiable any number
        of times, on the same backend.

    Raises:
        TypeError: an operand is no dense floating-point tensor, or the dtypes differ.
        ValueError: an operand has no dimensions, the shapes do not multiply, the batches do not
            broadcast, tensors are on different devices, or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    kind = matmul_operator.known(input, other) or matmul_operator.learn(input, other)
    if kind.facts:
        input, other = autocast("matmul", input, other)  # type: ignore[assignment]
    chosen = choose_invariant("matmul", kind.device, backend, batch_invariant)
    input_rank, other_rank = input.dim(), other.dim()
    if input_rank >= 2 and other_rank >= 2:
        return kind.call(input, other, batch_invariant, chosen)
    if input_rank == 0 or other_rank == 0:
        name = "input" if input_rank == 0 else "other"
        raise ValueError(f"matmul: {name} must have at least one dimension")
    # Views of vectors as matrices have other kinds.
    matrix = input[None] if input_rank == 1 else input
    second = other[:, None] if other_rank == 1 else other
    product = matmul_operator(matrix, second, batch_invariant, chosen)
    if other_rank == 1:
        product = product.squeeze(-1)
    return product.squeeze(-2 if other_rank > 1 else -1) if input_rank == 1 else product
