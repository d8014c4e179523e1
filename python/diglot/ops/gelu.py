"""GELU, the Gaussian error linear unit: the contract of the op."""

from __future__ import annotations

from functools import partial

import torch

from diglot.backends.selection import choose
from diglot.define.batching import elementwise
from diglot.define.pair import DifferentiablePair, pointwise
from diglot.ops.checks import check_floating
from diglot.reference.gelu import gelu_second_derivative

APPROXIMATIONS = ("none", "tanh")


def gelu(
    input: torch.Tensor, approximate: str = "none", *, backend: str | None = None
) -> torch.Tensor:
    r"""Applies the Gaussian error linear unit to every element, as `torch.nn.functional.gelu`.

    `approximate="none"` computes x·Φ(x), where Φ is the standard normal distribution function.
    `"tanh"` computes x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))). (Hendrycks and Gimpel, "Gaussian
    Error Linear Units", 2016, arXiv:1606.08415.) The computation is in float32 (float64 for
    float64) and rounds once. The negative tail keeps its relative accuracy; the formula x/2·(1 +
    erf(x/√2)) loses it by cancellation.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64.
        approximate: "none" or "tanh".
        backend: "cuda", "triton", "torch" or "auto". By default `use_backend` decides, then the
            variable DIGLOT_BACKEND, then "auto".

    Returns:
        A tensor of the shape, dtype and memory format of `input`. NaN and -inf give NaN, and so
        does the first derivative at both infinities, as in PyTorch. Differentiable twice and more.
        The first derivative runs on the same backend; PyTorch's operators compute later ones, which
        are finite for every finite number and 0 at the infinities.

    Raises:
        TypeError: `input` is not a dense floating-point tensor.
        ValueError: `approximate` or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensor's device.
    """
    kind = _gelu.known(input) or _gelu.learn(input)
    if approximate not in APPROXIMATIONS:
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', not {approximate!r}")
    return kind.call(input, approximate, choose("gelu", kind.device, backend))


_gelu = DifferentiablePair(
    "gelu(Tensor input, str approximate, str backend) -> Tensor",
    "gelu_backward(Tensor grad_output, Tensor input, str approximate, str backend) -> Tensor",
    slope=pointwise(gelu_second_derivative),
    vmap=elementwise,
    check=partial(check_floating, "gelu", "input"),
)
