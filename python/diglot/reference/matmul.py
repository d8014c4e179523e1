"""Products of matrices in plain PyTorch: the launcher of the backend "torch", and the oracle."""

from __future__ import annotations

import torch

from diglot.reference.compute_eps import compute_eps
from diglot.reference.specs import Expected, OpSpec, nbytes


def matmul_forward(
    input: torch.Tensor,
    other: torch.Tensor,
    batch_invariant: bool,
    precision: str,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = input @ other, by PyTorch's own op. It promises no order of sums, and reads the switch
    of `precision` itself.
    """
    if other.dim() == 2:
        multiply_into(rows_of(out), rows_of(input), other)
    else:
        multiply_into(out, input, other)
    return "aten"


def multiply_into(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """out = a @ b, whose dtype may be wider. PyTorch has such products on GPUs alone; elsewhere
    the operands are widened, which is exact.
    """
    if a.dtype == out.dtype:
        torch.matmul(a, b, out=out)
    elif a.device.type != "cuda":
        torch.matmul(a.to(out.dtype), b.to(out.dtype), out=out)
    elif out.dim() == 2:
        torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:
        batch = out.shape[:-2]
        a, b = (t.expand(*batch, *t.shape[-2:]).flatten(0, -3) for t in (a, b))
        torch.bmm(a, b, out_dtype=out.dtype, out=out.flatten(0, -3))


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """All rows of a tensor as one matrix."""
    return tensor if tensor.dim() == 2 else tensor.flatten(0, -2)


def matmul_oracle(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """input @ other, in float64."""
    return torch.matmul(input.double(), other.double())


def expected_product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> Expected:
    """The right values of a @ b + bias, and how far rounded sums may be from them.

    A sum of k products errs by at most k roundings of the sum of their magnitudes (Higham,
    "Accuracy and stability of numerical algorithms", 2002, section 3.1).
    """
    a, b = a.detach(), b.detach()
    right = matmul_oracle(a, b)
    magnitude = matmul_oracle(a.abs(), b.abs())
    if bias is not None:
        right, magnitude = right + bias.detach().double(), magnitude + bias.detach().double().abs()
    allowance = (a.shape[-1] + 1) * compute_eps(dtype) * magnitude
    return Expected(lambda right: right, (right,), {}, dtype, allowance.nan_to_num(0.0))


def _expected(input: torch.Tensor, other: torch.Tensor) -> Expected:
    return expected_product(input, other, None, input.dtype)


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, other: torch.Tensor
) -> dict[str, Expected]:
    return {
        "input": expected_product(grad_output, other.mT, None, input.dtype),
        "other": expected_product(input.mT, grad_output, None, other.dtype),
    }


def _shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Of the operands: the second has as many columns as the first has rows."""
    return [shape, (*shape[:-2], shape[-1], shape[-2])]


SPEC = OpSpec(
    name="matmul",
    inputs=("input", "other"),
    floating_only=True,
    shapes=_shapes,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, other: (
        nbytes(grad_output) + 2 * nbytes(input) + 2 * nbytes(other)
    ),
)
