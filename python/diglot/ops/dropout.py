"""Dropout: the contract of the op."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.autograd.graph import increment_version

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.define.pair import DifferentiablePair
from diglot.ops.checks import check_floating
from diglot.ops.numbers import check_number, fixed
from diglot.ops.random_seed import check_source, seed_tensor
from diglot.reference.dropout import threshold_and_scale

# For Philox in PyTorch's operators, Inductor (PyTorch 2.13) takes time exponential in its rounds.
INLINED = False
OVERLAPS = 1  # PyTorch's answer for a tensor whose elements share memory, such as an expanded one


def dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    generator: torch.Generator | None = None,
    seed: int | torch.Tensor | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    r"""Zeroes elements with probability p and scales the rest, as `torch.nn.functional.dropout`.

    In training, each element is multiplied by 0 with probability p, else by 1 / (1 - p)
    (Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014).
    Outside training, or with p = 0, the result is `input` itself. The factor is rounded to float32
    (float64 for float64). The product is computed in that type and rounded once.

    The mask depends only on the seed and an element's row-major index. So it is the same, bit for
    bit, on every backend, for every dtype and for all strides. Element i is kept if word i % 4 of
    Philox-4x32-10 with counter i / 4, as a share of 2^32, is at least p (philox.cuh has the
    layout). The backward pass stores only the seed, and computes the mask again.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64.
        p: from 0 to 1. The share of dropped elements is p rounded up to a multiple of 2^-32.
        training: whether to drop anything.
        inplace: whether to write the result over `input`, and return that.
        generator: draws the seed, on `input`'s device. By default it is PyTorch's own, which
            `torch.manual_seed` seeds. A kernel draws the seed, so nothing waits, and each replay of
            a CUDA graph has another mask.
        seed: the seed, instead of a drawn one: an integer of at most 64 bits, or an int64 tensor of
            one element on `input`'s device. Each replay of a CUDA graph reads such a tensor again.
        backend: as in `diglot.gelu`.

    Returns:
        A tensor of the shape, dtype and memory format of `input`, or `input`. Dropped NaN and
        infinities become NaN, as in PyTorch. Differentiable any number of times, on the same
        backend. Under vmap there is a launch per sample, and `randomness` decides whether their
        masks differ.

    Raises:
        TypeError: `input` is not a dense floating-point tensor; `p` is not a number; `generator` or
            `seed` has another type.
        ValueError: `p` is outside [0, 1] or NaN. `generator` or `seed` is on another device, or
            both are given. The seed has more than 64 bits or several elements. `backend` is
            unknown.
        RuntimeError: `inplace` is set for a tensor that PyTorch does not let change: a leaf that
            requires grad, or an expanded tensor.
        diglot.BackendUnavailable: the requested backend cannot run on the tensor's device.
    """
    kind = _dropout.known(input) or _dropout.learn(input)
    if type(p) is not float:
        p = float(fixed(check_number("dropout", "p", p)))
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p must be from 0 to 1, not {p}")
    if generator is not None or seed is not None:
        check_source("dropout", kind.device, generator, seed)
    chosen = choose("dropout", kind.device, backend)
    if not training or p == 0:
        return input
    drawn = seed_tensor(kind.device, generator, seed)
    if drawn is seed:
        kind = _dropout.known(input, drawn) or _dropout.learn(input, drawn)
    if inplace:
        return _in_place(kind.is_direct, input, drawn, p, chosen)
    return kind.call(input, drawn, 0, p, chosen)


def _check(input: torch.Tensor, seed: torch.Tensor | None = None) -> None:
    check_floating("dropout", "input", input)


class _InPlace(torch.autograd.Function):
    """Dropout over its input, which is neither a leaf nor a view, recorded for differentiation."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, seed: torch.Tensor, p: float, backend: str
    ) -> torch.Tensor:
        ctx.options = (0, p, backend)
        ctx.save_for_backward(seed)
        _launch("dropout_forward", input, seed, 0, p, backend, input)
        ctx.mark_dirty(input)
        return input

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _dropout.backward(grad_output, *ctx.saved_tensors, *ctx.options), None, None, None


def _in_place(
    direct: bool, input: torch.Tensor, seed: torch.Tensor, p: float, backend: str
) -> torch.Tensor:
    if direct and input.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            "dropout: input is an inference tensor, which only inference mode may change in place"
        )
    if direct and torch._debug_has_internal_overlap(input) != OVERLAPS:
        if not input.requires_grad or not torch.is_grad_enabled():
            # A launcher would take an output of another class, such as Parameter, for a traced
            # tensor.
            out = input if type(input) is torch.Tensor else input.detach()
            _launch("dropout_forward", input, seed, 0, p, backend, out)
            if not input.is_inference():
                increment_version(input)
            return input
        if not input.is_leaf and not input._is_view():
            return _InPlace.apply(input, seed, p, backend)
    # PyTorch's own copy knows which tensors may not change, and how to record a change.
    return input.copy_(_dropout(input, seed, 0, p, backend))


def _launch(
    name: str,
    input: torch.Tensor,
    seed: torch.Tensor,
    offset: int,
    p: float,
    backend: str,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    if out is None:
        out = torch.empty_like(input)
    if type(p) is not float or type(offset) is not int:
        p, offset = fixed(p), fixed(offset)
    threshold, scale = threshold_and_scale(p)
    run(backend, "dropout", name, input, seed, offset, threshold, scale, out)
    return out


# The same mask for another tensor: a linear function is its own derivative.
_dropout = DifferentiablePair(
    "dropout(Tensor input, Tensor seed, int offset, float p, str backend) -> Tensor",
    "dropout_backward(Tensor grad_output, Tensor seed, int offset, float p, str backend) -> Tensor",
    forward=partial(_launch, "dropout_forward"),
    backward=partial(_launch, "dropout_backward"),
    like="grad_output",
    check=_check,
    inlined=INLINED,
)
