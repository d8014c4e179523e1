"""Addition in plain PyTorch: the launchers of the backend "torch", and the oracle."""

from __future__ import annotations

import torch

from diglot.reference.specs import Expected, OpSpec, Option, nbytes


def add_forward(
    input: torch.Tensor,
    other: torch.Tensor | None,
    alpha: float,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = input + alpha · other; without a second tensor, `other` is one."""
    if other is None:
        torch.add(input, alpha, out=out)
    else:
        torch.add(input, other, alpha=alpha, out=out)
    return "aten"


def add_backward(
    grad_output: torch.Tensor, alpha: float, out: torch.Tensor, scratch: torch.Tensor | None
) -> str:
    """out = alpha · grad_output, summed over the dimensions that `out` lacks or has of size one."""
    compute = torch.float64 if grad_output.dtype == torch.float64 else torch.float32
    total = grad_output.to(compute).sum_to_size(out.shape)
    out.copy_(total.mul(alpha))
    return "aten"


def add_oracle(input: torch.Tensor, other: torch.Tensor | float, alpha: float = 1) -> torch.Tensor:
    """input + alpha · other in float64; `alpha` rounded to float32 first where ops compute so."""
    result = torch.result_type(input, other)
    if result.is_floating_point and result != torch.float64:
        alpha = torch.tensor(alpha, dtype=torch.float32).item()
    second = other.double() if isinstance(other, torch.Tensor) else other
    return input.double() + alpha * second


def _expected(input: torch.Tensor, other: torch.Tensor | float, alpha: float = 1) -> Expected:
    dtype = torch.result_type(input, other)

    def value(a: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        # The op rounds its inputs to the result's type first, where theirs differ.
        a = a.to(dtype)
        if b is None:
            assert not isinstance(other, torch.Tensor)
            second, factor = torch.ones_like(a), alpha * other
        else:
            second, factor = b.to(dtype), alpha
        if dtype.is_floating_point:
            return add_oracle(a, second, factor)
        return torch.add(a, second, alpha=factor)

    shown = {"input": input}
    if isinstance(other, torch.Tensor):
        shown["other"] = other
    return Expected(value, tuple(shown.values()), shown, dtype)


def _expected_gradients(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    other: torch.Tensor | float,
    alpha: float = 1,
) -> dict[str, Expected]:
    result = {"input": _expected_gradient(grad_output, input, 1)}
    if isinstance(other, torch.Tensor):
        result["other"] = _expected_gradient(grad_output, other, alpha)
    return result


def _expected_gradient(grad_output: torch.Tensor, of: torch.Tensor, alpha: float) -> Expected:
    if grad_output.dtype != torch.float64:
        alpha = torch.tensor(alpha, dtype=torch.float32).item()
    if grad_output.shape == of.shape:
        shown = {"grad_output": grad_output}
        return Expected(lambda grad: alpha * grad.double(), (grad_output,), shown, of.dtype)
    missing = grad_output.dim() - of.dim()
    dims = [
        d
        for d, size in enumerate(grad_output.shape)
        if d < missing or of.shape[d - missing] != size
    ]
    total = grad_output.sum(dims, dtype=torch.float64).reshape(of.shape)
    # The error of partial sums depends on the magnitudes of the summands, not on the result.
    magnitude = torch.linalg.vector_norm(grad_output, 1, dims, dtype=_wider(grad_output.dtype))
    epsilon = torch.finfo(_wider(grad_output.dtype)).eps
    allowance = 4 * epsilon * abs(alpha) * magnitude.reshape(of.shape).double()
    return Expected(lambda x: alpha * x, (total,), {}, of.dtype, allowance)


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _backward_bytes(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    other: torch.Tensor | float,
    alpha: float = 1,
) -> int:
    total = 0
    for of, factor in ((input, 1), (other, alpha)):
        if not isinstance(of, torch.Tensor):
            continue
        # An operand's gradient that is the output's gradient is passed on, not computed.
        same = of.shape == grad_output.shape and of.dtype == grad_output.dtype
        if not (same and factor == 1):
            total += nbytes(grad_output) + nbytes(of)
    return total


SPEC = OpSpec(
    name="add",
    inputs=("input", "other"),
    options={"alpha": Option(1)},
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=_backward_bytes,
)
