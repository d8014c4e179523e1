"""Standardization over all elements: the contract of the op."""

from __future__ import annotations

from functools import partial

import torch

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.define.pair import DifferentiablePair
from diglot.ops.autocast import autocast_to_float32
from diglot.ops.checks import check_floating
from diglot.ops.global_memory import compute_dtype, dense_like
from diglot.ops.numbers import check_number, fixed
from diglot.reference.standardize import EPS, standardize_gradient_slope

NAME = "standardize"

# The output, and its statistics: the mean and 1/sqrt(variance + eps), in the type of the
# computation.
Outputs = tuple[torch.Tensor, torch.Tensor]


def standardize(
    input: torch.Tensor, eps: float = EPS, *, backend: str | None = None
) -> torch.Tensor:
    """Standardizes over all elements, as `F.layer_norm(input, input.shape, eps=eps)`.

    The result has zero mean and unit variance. It is (x - mean) / sqrt(variance + eps), computed in
    float32 (float64 for float64) and rounded once. The variance is divided by the number of
    elements, not by one less. One launch does it. Each block reduces its chunks to moments, and
    combines them without cancellation (Chan, Golub and LeVeque, "Updating formulae and a pairwise
    algorithm for computing sample variances", 1979). All blocks then meet at a grid barrier, and
    each maps its elements. The bits do not depend on the number of blocks. They do depend on the
    order of elements in memory, which is the order of the sums.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64. A tensor that
            is not dense (a slice of another, or expanded) is copied first.
        eps: added to the variance.
        backend: as in `diglot.gelu`.

    Returns:
        A tensor of the shape, dtype and memory format of `input`. Under autocast, a float16 or
        bfloat16 input gives float32, as PyTorch's layer_norm. All elements are NaN if any is NaN or
        infinite. Differentiable twice and more. The first derivative runs on the same backend;
        PyTorch's operators compute later ones. Under vmap there is a launch per sample.

    Raises:
        TypeError: `input` is not a dense floating-point tensor, or `eps` not a number.
        ValueError: `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensor's device.
    """
    kind = _standardize.known(input) or _standardize.learn(input)
    if type(eps) is not float:
        eps = float(fixed(check_number(NAME, "eps", eps)))
    chosen = choose(NAME, kind.device, backend)
    outputs = kind.call(autocast_to_float32(input), eps, chosen)
    return outputs if kind.is_recorded else outputs[0]


def _like(input: torch.Tensor, eps: float, backend: str) -> Outputs:
    statistics = input.new_empty(2, dtype=compute_dtype(input.dtype))
    return torch.empty_like(input), statistics


def _forward(input: torch.Tensor, eps: float, backend: str) -> Outputs:
    out, statistics = _like(input, eps, backend)
    if input.numel() == 0:
        statistics.fill_(torch.nan)
    run(backend, NAME, f"{NAME}_forward", dense_like(input, out), eps, 0, statistics, out)
    return out, statistics


def _backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    statistics: torch.Tensor,
    eps: float,
    backend: str,
) -> torch.Tensor:
    out = torch.empty_like(input)
    arrays = dense_like(grad_output, out), dense_like(input, out)
    run(backend, NAME, f"{NAME}_backward", *arrays, statistics.contiguous(), 0, out)
    return out


# The input's derivatives include those of the statistics, which have none of their own.
_standardize = DifferentiablePair(
    "standardize(Tensor input, float eps, str backend) -> (Tensor, Tensor statistics)",
    "standardize_backward(Tensor grad_output, Tensor input, Tensor statistics, float eps, "
    "str backend) -> Tensor",
    forward=_forward,
    fake=_like,
    backward=_backward,
    slope=lambda grad, x, _, direction, eps, transposed: standardize_gradient_slope(
        grad, x, direction, eps
    ),
    opaque=True,
    check=partial(check_floating, NAME, "input"),
)
