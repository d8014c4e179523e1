"""Products of batches of matrices, and matrices beside them, in plain PyTorch: the launcher of the
backend "torch", and the oracle.
"""

from __future__ import annotations

import torch

from diglot.reference.addmm import (
    addmm_oracle,
    expected_added,
    expected_added_gradients,
    gradient_itself,
)
from diglot.reference.bmm import batch_shape
from diglot.reference.matmul import multiply_into
from diglot.reference.specs import Expected, OpSpec, nbytes


def baddbmm_forward(
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    input: torch.Tensor | None,
    beta: float,
    alpha: float,
    batch_invariant: bool,
    precision: str,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = beta * input + alpha * batch1 @ batch2, by PyTorch's own ops. They promise no order
    of sums, and read the switch of `precision` themselves.
    """
    # torch.vmap makes others.
    are_batches = batch1.dim() == batch2.dim() == 3 and batch1.shape[0] == batch2.shape[0]
    if input is None or out.dtype != batch1.dtype or not are_batches:
        multiply_into(out, batch1, batch2)
        out.mul_(alpha)
        if input is not None:
            out.add_(input, alpha=beta)
    else:
        torch.baddbmm(input, batch1, batch2, beta=beta, alpha=alpha, out=out)
    return "aten"


baddbmm_oracle = addmm_oracle


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor
) -> dict[str, Expected]:
    of_batch1, of_batch2 = expected_added_gradients(grad_output, batch1, batch2)
    of_input = gradient_itself(grad_output, input)
    return {"input": of_input, "batch1": of_batch1, "batch2": of_batch2}


def _shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Of the input, the first operands like it, and square ones."""
    batch, m, n = batch_shape(shape)
    return [(batch, m, n), (batch, m, n), (batch, n, n)]


SPEC = OpSpec(
    name="baddbmm",
    inputs=("input", "batch1", "batch2"),
    floating_only=True,
    shapes=_shapes,
    forward=expected_added,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, batch1, batch2: (
        nbytes(grad_output) + nbytes(input) + 2 * nbytes(batch1) + 2 * nbytes(batch2)
    ),
)
