"""Products of batches of matrices in plain PyTorch: the launcher of the backend "torch", and the
oracle.
"""

from __future__ import annotations

import torch

from diglot.reference.addmm import expected_added_gradients
from diglot.reference.matmul import expected_product, multiply_into
from diglot.reference.specs import Expected, OpSpec, nbytes


def bmm_forward(
    input: torch.Tensor,
    mat2: torch.Tensor,
    batch_invariant: bool,
    precision: str,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = input @ mat2, by PyTorch's own op. It promises no order of sums, and reads the switch
    of `precision` itself.
    """
    multiply_into(out, input, mat2)
    return "aten"


def bmm_oracle(input: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """input @ mat2, in float64."""
    return torch.bmm(input.double(), mat2.double())


def _expected(input: torch.Tensor, mat2: torch.Tensor) -> Expected:
    return expected_product(input, mat2, None, input.dtype)


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, mat2: torch.Tensor
) -> dict[str, Expected]:
    of_input, of_mat2 = expected_added_gradients(grad_output, input, mat2)
    return {"input": of_input, "mat2": of_mat2}


def batch_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """A shape as that of a batch of matrices."""
    batch, m, n = (1, 1, 1, *shape)[-3:]
    return batch, m, n


def _shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Of the operands: the second has as many columns as the first has rows."""
    batch, m, k = batch_shape(shape)
    return [(batch, m, k), (batch, k, m)]


SPEC = OpSpec(
    name="bmm",
    inputs=("input", "mat2"),
    floating_only=True,
    shapes=_shapes,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, mat2: (
        nbytes(grad_output) + 2 * nbytes(input) + 2 * nbytes(mat2)
    ),
)
