"""GELU in plain PyTorch: the launchers of the backend "torch", the oracle, later derivatives."""

from __future__ import annotations

import math

import torch

from diglot.reference.compensated import TwoPart, exp_negative, two_product, two_sum
from diglot.reference.specs import Expected, OpSpec, Option, nbytes

KAPPA = 0.044715

# Numbers in two parts, the second being float64's rounding error: z = 2 sqrt(2/pi) (x + KAPPA x^3)
# is LINEAR x + CUBIC x^3. The roots are the zeros of the derivatives of both forms.
LINEAR = (1.5957691216057308, -9.96930880911092e-17)
CUBIC = (0.07135481627260025, -6.175149918155315e-19)
ERF_ROOT = (-0.75179152469356447, 1.4956759177009883e-17)
TANH_ROOT = (-0.75246142207101629, 3.6355605092076871e-17)
BOUND = 100.0  # beyond it the tail is zero; arguments bounded by it do not overflow

# Kernels and the oracle are each within 7 of the exact values, and within 11 of each other.
FLOAT64_ULP = 24.0


def gelu_forward(
    input: torch.Tensor, approximate: str, out: torch.Tensor, scratch: torch.Tensor | None
) -> str:
    """out = gelu(input), by PyTorch's own op."""
    torch.ops.aten.gelu.out(input, approximate=approximate, out=out)
    return "aten"


def gelu_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    approximate: str,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = grad_output · gelu'(input), by PyTorch's own op."""
    torch.ops.aten.gelu_backward.grad_input(
        grad_output, input, approximate=approximate, grad_input=out
    )
    return "aten"


def gelu_oracle(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu(input), to a few ulp of float64 everywhere: no part is subtracted from a larger one."""
    x = input.double()
    half, factor = _tail(x, approximate)
    return torch.where(x < 0, x * factor * half * half, x * (1 - factor * half * half))


def gelu_derivative_oracle(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu'(input), to a few ulp of float64 everywhere, next to the derivative's root too."""
    x = input.double()
    half, factor = _tail(x, approximate)
    upper = 1 - factor * half * half
    bounded = x.clamp(-BOUND, BOUND)
    if approximate == "none":
        density = bounded * half * math.sqrt(0.5 / math.pi)
        lower = (factor * half + density) * half
        lower = torch.where((x - ERF_ROOT[0]).abs() < 0.5, _next_to_root(bounded), lower)
        upper = upper + density * half
    else:
        # 1 + exp(z) + x z', minus its value at the root, which is zero.
        distance, root = (bounded - TANH_ROOT[0]) - TANH_ROOT[1], TANH_ROOT[0]
        squares = bounded * bounded + bounded * root + root * root
        at_root = math.exp(LINEAR[0] * root + CUBIC[0] * root**3)
        power = torch.expm1(distance * (LINEAR[0] + CUBIC[0] * squares))
        numerator = at_root * power + distance * (LINEAR[0] + 3 * CUBIC[0] * squares)
        lower = (half * factor * factor * numerator) * half
        slope = bounded * (LINEAR[0] + 3 * CUBIC[0] * bounded * bounded)
        upper = upper * (1 + slope * factor * half * half)
    return torch.where(x < 0, lower, upper) + 0 * x  # at infinities it is NaN, as kernels' is


def _tail(x: torch.Tensor, approximate: str) -> tuple[torch.Tensor, torch.Tensor]:
    """h and f with h·f·h = Phi(-|x|) or sigmoid(-|z|), which may be too small for float64."""
    x = x.abs().clamp(max=BOUND)
    square = two_product(x, x)
    if approximate == "none":
        half = exp_negative(TwoPart(square.head / 4, square.tail / 4))
        return half, 0.5 * torch.special.erfcx(x * math.sqrt(0.5))
    product = two_product(square.head, CUBIC[0])
    slope = two_sum(product.head, LINEAR[0])
    tail = slope.tail + product.tail + LINEAR[1] + CUBIC[1] * square.head + CUBIC[0] * square.tail
    z = two_product(x, slope.head)
    half = exp_negative(TwoPart(z.head / 2, (z.tail + x * tail) / 2))
    return half, 1 / (1 + half * half)


def _next_to_root(x: torch.Tensor) -> torch.Tensor:
    """The erf form's derivative around its root, as the integral of gelu'' from there."""
    distance, root = (x - ERF_ROOT[0]) - ERF_ROOT[1], ERF_ROOT[0]
    # Of exp(-root s - s^2/2), of its product with 2 - (root + s)^2, and of that one's integral.
    powers = [0.0, 0.0, 1.0]
    for n in range(1, 32):
        powers.append((-root * powers[-1] - powers[-2]) / n)
    total = torch.zeros_like(distance)
    for n in range(31, -1, -1):
        before, last, this = powers[n : n + 3]
        coefficient = (2 - root * root) * this - 2 * root * last - before
        total = total * distance + coefficient / (n + 1)
    return distance * total * (math.exp(-0.5 * root * root) / math.sqrt(2 * math.pi))


def gelu_second_derivative(input: torch.Tensor, approximate: str) -> torch.Tensor:
    """gelu''(input), in float32 or wider and differentiable to any order.

    Finite everywhere; 0, its limit, at infinities, where PyTorch's is NaN. NaN stays NaN.
    """
    x = input if input.dtype == torch.float64 else input.float()
    # Beyond 40 the exponential is zero even in float64, and its factor must not overflow.
    x = torch.where(x.abs() > 40, 40, x)
    if approximate == "none":
        return _normal_density(x) * (2 - x * x)
    # With t = tanh(u): d/dx [(1 + t)/2 + x/2·(1 - t²)·u'], where 1 - t² = 4·σ(2u)·σ(-2u) does not
    # cancel.
    argument = 2 * _tanh_argument(x)
    upper, lower = torch.sigmoid(argument), torch.sigmoid(-argument)
    slope = _tanh_argument_slope(x)
    curvature = math.sqrt(2 / math.pi) * 6 * KAPPA * x
    return 4 * upper * lower * (slope + x * (curvature / 2 - (upper - lower) * slope * slope))


def _normal_density(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _tanh_argument(x: torch.Tensor) -> torch.Tensor:
    return math.sqrt(2 / math.pi) * (x + KAPPA * x * x * x)


def _tanh_argument_slope(x: torch.Tensor) -> torch.Tensor:
    return math.sqrt(2 / math.pi) * (1 + 3 * KAPPA * x * x)


def _expected(input: torch.Tensor, approximate: str = "none") -> Expected:
    def value(x: torch.Tensor) -> torch.Tensor:
        return gelu_oracle(x, approximate)

    shown = {"input": input}
    return Expected(value, (input,), shown, input.dtype, float64_ulp=FLOAT64_ULP)


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, approximate: str = "none"
) -> dict[str, Expected]:
    def value(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return grad.double() * gelu_derivative_oracle(x, approximate)

    shown = {"input": input, "grad_output": grad_output}
    tensors = (grad_output, input)
    return {"input": Expected(value, tensors, shown, input.dtype, float64_ulp=FLOAT64_ULP)}


SPEC = OpSpec(
    name="gelu",
    inputs=("input",),
    options={"approximate": Option("none", ("none", "tanh"))},
    floating_only=True,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, **_: nbytes(grad_output) + 2 * nbytes(input),
)
