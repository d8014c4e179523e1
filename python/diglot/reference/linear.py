"""Linear layers in plain PyTorch: the launcher of the backend "torch", and the oracle."""

from __future__ import annotations

import torch

from diglot.reference.activations import activate, activation_gradient
from diglot.reference.matmul import expected_product, rows_of
from diglot.reference.specs import Expected, OpSpec, nbytes


def linear_forward(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    batch_invariant: bool,
    precision: str,
    before: torch.Tensor | None,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = activation(input @ weight.T + bias + residual), by PyTorch's own ops."""
    rows, result = rows_of(input), rows_of(out)
    if bias is None:
        torch.mm(rows, weight.mT, out=result)
    else:
        torch.addmm(bias, rows, weight.mT, out=result)
    if residual is not None:
        out.add_(residual)
    if before is not None:
        before.copy_(out)
    if activation != "none":
        out.copy_(activate(out, activation))
    return "aten"


def linear_backward(
    grad_output: torch.Tensor,
    before: torch.Tensor,
    activation: str,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = grad_output * activation'(before), by PyTorch's own op."""
    out.copy_(activation_gradient(grad_output, before, activation))
    return "aten"


def linear_parameters_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    batch_invariant: bool,
    precision: str,
    grad_weight: torch.Tensor,
    grad_bias: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """grad_weight = grad_output @ input, grad_bias = the sums of grad_output's rows."""
    torch.mm(grad_output, input, out=grad_weight)
    compute = torch.float64 if grad_output.dtype == torch.float64 else torch.float32
    grad_bias.copy_(grad_output.mT.to(compute).sum(0))
    return "aten"


def linear_oracle(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """input @ weight.T + bias, in float64."""
    product = torch.matmul(input.double(), weight.double().mT)
    return product if bias is None else product + bias.double()


def _expected(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Expected:
    return expected_product(input, weight.mT, bias, input.dtype)


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> dict[str, Expected]:
    rows = rows_of(grad_output)
    ones = torch.ones(1, rows.shape[0], dtype=torch.float64, device=rows.device)
    of_bias = expected_product(ones, rows, None, bias.dtype)
    return {
        "input": expected_product(grad_output, weight, None, input.dtype),
        "weight": expected_product(rows.mT, rows_of(input), None, weight.dtype),
        "bias": Expected(
            of_bias.function,
            tuple(t[0] for t in of_bias.tensors),
            {},
            bias.dtype,
            of_bias.allowance[0] if of_bias.allowance is not None else None,
        ),
    }


def _shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Of the input, a square weight and the bias."""
    return [shape, (shape[-1], shape[-1]), (shape[-1],)]


SPEC = OpSpec(
    name="linear",
    inputs=("input", "weight", "bias"),
    floating_only=True,
    shapes=_shapes,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, weight, bias: (
        nbytes(grad_output) + 2 * nbytes(input) + 2 * nbytes(weight) + nbytes(bias)
    ),
)
