"""Two linear layers with an activation between them, in plain PyTorch: the launcher of the backend
"torch", and the oracle. `linear_forward` launches the layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diglot.reference.activations import activate, activation_gradient
from diglot.reference.compute_eps import compute_eps
from diglot.reference.gelu import gelu_derivative_oracle, gelu_oracle
from diglot.reference.matmul import rows_of
from diglot.reference.specs import Expected, OpSpec, nbytes

SLOPE, CURVATURE = 1.13, 1.2  # the greatest magnitudes of GELU's two derivatives


def mlp_backward(
    grad_output: Tensor,
    weight: Tensor,
    before: Tensor,
    activation: str,
    precision: str,
    out: Tensor,
    scratch: Tensor | None,
) -> str:
    """out = (grad_output @ weight) * activation'(before), by PyTorch's own ops. They read the
    switch of `precision` themselves.
    """
    torch.mm(rows_of(grad_output), weight, out=rows_of(out))
    out.copy_(activation_gradient(out, before, activation))
    return "aten"


def mlp_oracle(
    input: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    weight2: Tensor,
    bias2: Tensor | None,
    activation: str = "gelu",
) -> Tensor:
    """The two layers, in float64."""
    hidden = input.double() @ weight1.double().mT
    hidden = activate(hidden if bias1 is None else hidden + bias1.double(), activation)
    out = hidden @ weight2.double().mT
    return out if bias2 is None else out + bias2.double()


class _Rounded:
    """Right values, and how far rounded ones may be from them.

    A product of k terms errs by at most k roundings of its magnitude. Its operands' errors add to
    that.
    """

    def __init__(self, right: Tensor, error: Tensor | float, dtype: torch.dtype) -> None:
        self.right, self.dtype = right, dtype
        self.error = torch.zeros_like(right) + error

    def rounded(self) -> _Rounded:
        """Rounded to its dtype."""
        error = self.error + torch.finfo(self.dtype).eps * self.right.abs()
        return _Rounded(self.right, error, self.dtype)

    def times(self, other: _Rounded) -> _Rounded:
        """The product of matrices, not rounded to its dtype."""
        a, b = self.right.abs(), other.right.abs()
        terms = (a.shape[-1] + 1) * compute_eps(self.dtype)
        error = self.error @ b + a @ other.error + self.error @ other.error + terms * (a @ b)
        return _Rounded(self.right @ other.right, error, self.dtype)

    def plus(self, bias: Tensor) -> _Rounded:
        error = self.error + compute_eps(self.dtype) * bias.abs()
        return _Rounded(self.right + bias, error, self.dtype)

    def transposed(self) -> _Rounded:
        return _Rounded(rows_of(self.right).mT, rows_of(self.error).mT, self.dtype)

    def expected(self) -> Expected:
        allowance = self.error.nan_to_num(0.0)
        return Expected(lambda right: right, (self.right,), {}, self.dtype, allowance)


def _exact(tensor: Tensor) -> _Rounded:
    return _Rounded(tensor.detach().double(), 0.0, tensor.dtype)


def _hidden(input: Tensor, weight1: Tensor, bias1: Tensor) -> tuple[_Rounded, _Rounded]:
    """The values before the activation, and those behind it."""
    before = _exact(input).times(_exact(weight1.mT)).plus(bias1.detach().double())
    behind = _Rounded(gelu_oracle(before.right), SLOPE * before.error, input.dtype)
    return before, behind.rounded()


def _expected(
    input: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor
) -> Expected:
    hidden = _hidden(input, weight1, bias1)[1]
    return hidden.times(_exact(weight2.mT)).plus(bias2.detach().double()).expected()


def _expected_gradients(
    grad_output: Tensor,
    input: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
) -> dict[str, Expected]:
    before, hidden = _hidden(input, weight1, bias1)
    grad = _exact(grad_output)
    slope = gelu_derivative_oracle(before.right)
    product = grad.times(_exact(weight2))
    error = CURVATURE * before.rounded().error * (product.right.abs() + product.error)
    through = _Rounded(product.right * slope, error + SLOPE * product.error, input.dtype).rounded()
    rows = rows_of(grad.right).shape[0]
    ones = _Rounded(grad.right.new_ones(1, rows), 0.0, input.dtype)

    def sum_of(gradient: _Rounded) -> Expected:
        total = ones.times(gradient.transposed().transposed())
        return _Rounded(total.right[0], total.error[0], input.dtype).expected()

    return {
        "input": through.times(_exact(weight1)).expected(),
        "weight1": through.transposed().times(_exact(rows_of(input))).expected(),
        "bias1": sum_of(through),
        "weight2": grad.transposed().times(hidden.transposed().transposed()).expected(),
        "bias2": sum_of(grad),
    }


def _shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Of the input, square weights and their biases."""
    side = shape[-1]
    return [shape, (side, side), (side,), (side, side), (side,)]


SPEC = OpSpec(
    name="mlp",
    inputs=("input", "weight1", "bias1", "weight2", "bias2"),
    floating_only=True,
    shapes=_shapes,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, *inputs: (
        nbytes(grad_output) + 2 * sum(nbytes(tensor) for tensor in inputs)
    ),
)
