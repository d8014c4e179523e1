"""Products of matrices: the contract of the op."""

from __future__ import annotations

import torch

from diglot.ops.products import autocast, check_out_dtype, choose_product, matmul_operator


def matmul(
    input: torch.Tensor,
    other: torch.Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
    precision: str | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    r"""Multiplies matrices, vectors and batches of matrices, as `torch.matmul`.

    Our kernels compute a sum of products in float32 (float64 for float64) and round it once to the
    result's dtype. Products of float32 are IEEE products, or TF32 where `precision` or PyTorch's
    switches say so, such as `torch.backends.cuda.matmul.fp32_precision`. Operands that TMA cannot
    read are copied to scratch, if that pays. Gradients are products of the same kernels, of
    transposed views. Only the rows of a batch that shares one matrix are copied for them, if they
    lie apart. The gradient of a broadcast operand is a sum of rounded products.

    Args:
        input: tensor (..., M, K) of any strides, or a vector (K); float32, float16, bfloat16 or
            float64.
        other: tensor (..., K, N), or a vector (K); of the dtype of `input`. Dimensions before the
            last two broadcast.
        out_dtype: dtype of the result, as of `torch.mm`: that of `input`, or float32 if `input` has
            16 bits. Sums in float32 are then not rounded. Gradients round the result's gradient to
            the dtype of `input` first. Autocast casts nothing then.
        batch_invariant: whether the bits of a row of the result must depend only on that row of
            `input`, its length and `other`. Plans are then made for many rows, so few rows are
            slower. It needs the backend "cuda" or "triton". `use_plans("invariant")` does so for
            all calls. The gradient of `input` has it too.
        precision: of float32 products, "ieee" or "tf32"; None: as PyTorch's switches say. The
            gradients have it too. Other dtypes ignore it. On a GPU it needs the backend "cuda" or
            "triton". "tf32" is a permission: kernels without it compute "ieee".
        backend: as in `diglot.gelu`. "auto" takes PyTorch: ours is slower at some shapes.

    Returns:
        A contiguous tensor (..., M, N). A vector's dimension, M or N, is left out. With K = 0 it is
        zero. Under autocast, operands are cast as for PyTorch's product. Differentiable any number
        of times, on the same backend.

    Raises:
        TypeError: an operand is no dense floating-point tensor, the dtypes differ, or they allow no
            such `out_dtype`.
        ValueError: an operand has no dimensions, the shapes do not multiply, the batches do not
            broadcast, tensors are on different devices, or `precision` or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    kind = matmul_operator.known(input, other) or matmul_operator.learn(input, other)
    if kind.facts:
        input, other = autocast(  # type: ignore[assignment]
            "matmul", input, other, out_dtype=out_dtype
        )
    if out_dtype is not None:
        check_out_dtype("matmul", input.dtype, out_dtype)
    chosen = choose_product("matmul", input.dtype, kind.device, backend, precision, batch_invariant)
    options = out_dtype, batch_invariant, precision, chosen
    input_rank, other_rank = input.dim(), other.dim()
    if input_rank >= 2 and other_rank >= 2:
        return kind.call(input, other, *options)
    if input_rank == 0 or other_rank == 0:
        name = "input" if input_rank == 0 else "other"
        raise ValueError(f"matmul: {name} must have at least one dimension")
    # Views of vectors as matrices have other kinds.
    matrix = input[None] if input_rank == 1 else input
    second = other[:, None] if other_rank == 1 else other
    product = matmul_operator(matrix, second, *options)
    if other_rank == 1:
        product = product.squeeze(-1)
    return product.squeeze(-2 if other_rank > 1 else -1) if input_rank == 1 else product
