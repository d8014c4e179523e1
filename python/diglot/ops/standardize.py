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

# The output, and its statistics: the mean and 1/sqrt(variance + eps), of the type that is computed
# in.
Outputs = tuple[torch.Tensor, torch.Tensor]


def standardize(
    input: torch.Tensor, eps: float = EPS, *, backend: str | None = None
) -> torch.Tensor:
    """Zero mean, unit variance over all elements, as `F.layer_norm(input, input.shape, eps=eps)`.

    (x - mean) / sqrt(variance + eps), where the variance is that of the elements at hand (divided
    by their number, not by one less), computed in float32 (float64 for float64) and rounded once.
    One launch: chunks are reduced to their moments, which are combined without cancellation (Chan,
    Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
    1979), all blocks meet at a barrier, and each maps what it has read. The result does not depend
    on the number of blocks, in no bit. It does on the order in which elements lie in memory, in
    which they are summed.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64. One that is
            not dense (a slice of another, or expanded) is copied first.
        eps: added to the variance.
        backend: as in `diglot.gelu`.

    Returns:
        A tensor of the shape, dtype and memory format of `input`; float32 of a float16 or bfloat16
        input under autocast, as PyTorch's layer_norm. All NaN if any element is NaN or infinite.
        Differentiable twice and more; the first derivative runs on the same backend, the later ones
        are made of PyTorch's operators. Under vmap, a launch for each sample.

    Raises:
        TypeError: `input` is not a dense floating-point tensor, or `eps` not a number.
        ValueError: an unknown `backend`.
        diglot.BackendUnavailable: the backend asked for cannot run on the tensor's device.
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


# The statistics are those of the input: its derivatives hold theirs, and they have none.
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
