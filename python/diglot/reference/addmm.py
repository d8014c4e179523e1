"""A product of matrices, and a matrix beside it, in plain PyTorch: the launcher of the backend
"torch", and the oracle.
"""

from __future__ import annotations

import torch

from diglot.reference.matmul import expected_product, multiply_into
from diglot.reference.specs import Expected, OpSpec, nbytes


def addmm_forward(
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    input: torch.Tensor | None,
    beta: float,
    alpha: float,
    batch_invariant: bool,
    precision: str,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = beta * input + alpha * mat1 @ mat2, by PyTorch's own ops. They promise no order of
    sums, and read the switch of `precision` themselves.
    """
    # torch.vmap makes batches.
    if input is None or out.dtype != mat1.dtype or mat1.dim() > 2 or mat2.dim() > 2:
        multiply_into(out, mat1, mat2)
        out.mul_(alpha)
        if input is not None:
            out.add_(input, alpha=beta)
    else:
        torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha, out=out)
    return "aten"


def addmm_oracle(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    beta: float = 1.0,
    alpha: float = 1.0,
) -> torch.Tensor:
    """beta * input + alpha * mat1 @ mat2, in float64."""
    product = alpha * torch.matmul(mat1.double(), mat2.double())
    return product if beta == 0 else product + beta * input.double()


def expected_added(input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor) -> Expected:
    """The right values of input + mat1 @ mat2."""
    return expected_product(mat1, mat2, input, mat1.dtype)


def expected_added_gradients(
    grad_output: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor
) -> tuple[Expected, Expected]:
    """Those of the gradients of two operands."""
    return (
        expected_product(grad_output, mat2.mT, None, mat1.dtype),
        expected_product(mat1.mT, grad_output, None, mat2.dtype),
    )


def gradient_itself(grad_output: torch.Tensor, input: torch.Tensor) -> Expected:
    """The right gradient of the added input."""
    return Expected(lambda grad: grad.double(), (grad_output.detach(),), {}, input.dtype)


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor
) -> dict[str, Expected]:
    of_mat1, of_mat2 = expected_added_gradients(grad_output, mat1, mat2)
    return {"input": gradient_itself(grad_output, input), "mat1": of_mat1, "mat2": of_mat2}


def _shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Of the input, a first operand like it, and a square one."""
    m, n = (1, *shape)[-2:]
    return [(m, n), (m, n), (n, n)]


SPEC = OpSpec(
    name="addmm",
    inputs=("input", "mat1", "mat2"),
    floating_only=True,
    shapes=_shapes,
    forward=expected_added,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, mat1, mat2: (
        nbytes(grad_output) + nbytes(input) + 2 * nbytes(mat1) + 2 * nbytes(mat2)
    ),
)
