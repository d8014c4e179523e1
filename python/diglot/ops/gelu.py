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

    With `approximate="none"`, x·Φ(x), where Φ is the distribution function of the standard normal
    distribution; with `"tanh"`, x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))). (Hendrycks and Gimpel,
    "Gaussian Error Linear Units", 2016, arXiv:1606.08415.) Computed in float32 (float64 for
    float64) and rounded once; the negative tail keeps its relative accuracy, which the formula
    x/2·(1 + erf(x/√2)) loses by cancellation.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64.
        approximate: "none" or "tanh".
        backend: "cuda", "triton", "torch" or "auto"; by default what `use_backend`, the variable
            DIGLOT_BACKEND or "auto" say.

    Returns:
        A tensor of the shape, dtype and memory format of `input`. NaN gives NaN, as do -inf and the
        first derivative at both infinities, in PyTorch too. Differentiable twice and more; the
        first derivative runs on the same backend, the second and later ones are made of PyTorch's
        operators, finite for every finite number, and 0 at the infinities.

    Raises:
        TypeError: `input` is not a dense floating-point tensor.
        ValueError: an unknown `approximate` or `backend`.
        diglot.BackendUnavailable: the backend asked for cannot run on the tensor's device.
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
