"""Softmax over all elements: the contract of the op."""

from __future__ import annotations

from functools import partial

import torch

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.define.pair import DifferentiablePair
from diglot.ops.autocast import autocast_to_float32
from diglot.ops.checks import check_floating
from diglot.ops.global_memory import dense_like
from diglot.reference.global_softmax import softmax_gradient_slope

NAME = "global_softmax"


def global_softmax(input: torch.Tensor, *, backend: str | None = None) -> torch.Tensor:
    """Applies softmax over all elements, as `torch.softmax(input.flatten(), 0).view_as(input)`.

    exp(x - max) / sum(exp(x - max)), computed in float32 (float64 for float64) and rounded once.
    One launch does it: each block reduces its chunks to a maximum and a sum (Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv:1805.02867). All blocks
    then meet at a grid barrier, and each maps its elements. The bits do not depend on the number of
    blocks. They do depend on the order of elements in memory, which is the order of the sums.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64. A tensor that
            is not dense (a slice of another, or expanded) is copied first.
        backend: as in `diglot.gelu`.

    Returns:
        A tensor of the shape, dtype and memory format of `input`. Under autocast, a float16 or
        bfloat16 input gives float32, as PyTorch's softmax. All elements are NaN if any is NaN or
        +inf, or if all are -inf. Differentiable twice and more. The first derivative runs on the
        same backend; PyTorch's operators compute later ones. Under vmap there is a launch per
        sample.

    Raises:
        TypeError: `input` is not a dense floating-point tensor.
        ValueError: `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensor's device.
    """
    kind = _softmax.known(input) or _softmax.learn(input)
    return kind.call(autocast_to_float32(input), choose(NAME, kind.device, backend))


def _forward(input: torch.Tensor, backend: str) -> torch.Tensor:
    out = torch.empty_like(input)
    run(backend, NAME, f"{NAME}_forward", dense_like(input, out), 0, out)
    return out


def _backward(grad_output: torch.Tensor, output: torch.Tensor, backend: str) -> torch.Tensor:
    out = torch.empty_like(output)
    arrays = dense_like(grad_output, out), dense_like(output, out)
    run(backend, NAME, f"{NAME}_backward", *arrays, 0, out)
    return out


_softmax = DifferentiablePair(
    "global_softmax(Tensor input, str backend) -> (Tensor output)",
    "global_softmax_backward(Tensor grad_output, Tensor output, str backend) -> Tensor",
    forward=_forward,
    backward=_backward,
    slope=softmax_gradient_slope,
    opaque=True,
    check=partial(check_floating, NAME, "input"),
)
