"""Dropout in plain PyTorch: the launchers of the backend "torch", and the oracle."""

from __future__ import annotations

import functools
import math

import torch

from diglot.backends.runs import wrap_to_64_bits
from diglot.reference.philox import philox_4x32, random_bits, split
from diglot.reference.specs import Expected, OpSpec, Option, nbytes

WORDS = 2**32  # that random bits can be


@functools.lru_cache(maxsize=64)
def threshold_and_scale(p: float) -> tuple[int, float]:
    """The least bits with which an element is kept, and the factor of a kept element.

    Bits u stand for the number u / 2^32, and elements are kept where that is at least p. The
    product p * 2^32 is exact, so in integers this is u >= ceil(p * 2^32). With p = 1 no element is
    kept: all are multiplied by zero, and the threshold does not matter.
    """
    threshold = math.ceil(p * WORDS)
    return (threshold, 1 / (1 - p)) if threshold < WORDS else (0, 0.0)


def dropout_forward(
    input: torch.Tensor,
    seed: torch.Tensor,
    offset: int,
    threshold: int,
    scale: float,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = input · scale where an element's random bits reach `threshold`, input · 0 elsewhere.

    One function serves both directions: seed and offset give both the same mask.
    """
    compute = torch.float64 if out.dtype == torch.float64 else torch.float32
    kept = random_bits(seed, offset, out.numel()).view(out.shape) >= threshold
    out.copy_(input.to(compute) * (kept.to(compute) * scale))
    return "Philox in int64"


def dropout_backward(
    grad_output: torch.Tensor,
    seed: torch.Tensor,
    offset: int,
    threshold: int,
    scale: float,
    out: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """out = grad_output · scale, by the same mask."""
    return dropout_forward(grad_output, seed, offset, threshold, scale, out, scratch)


def philox_words(rows: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor | None) -> str:
    """Philox of given counters and keys. `rows` is int32 [n, 6], `out` int32 [n, 4]."""
    c0, c1, c2, c3, k0, k1 = (split(word.long())[0] for word in rows.unbind(-1))
    out.copy_(torch.stack(philox_4x32((c0, c1, c2, c3), (k0, k1)), -1))
    return "Philox in int64"


def dropout_mask(shape: torch.Size, p: float, seed: int, device: torch.device) -> torch.Tensor:
    """Which elements of a tensor are kept: bool."""
    threshold, scale = threshold_and_scale(p)
    drawn = torch.full((), wrap_to_64_bits(seed), device=device)
    bits = random_bits(drawn, 0, shape.numel()).view(shape)
    return (bits >= threshold) & (scale > 0)


def dropout_oracle(input: torch.Tensor, p: float, mask: torch.Tensor) -> torch.Tensor:
    """input / (1 - p) in float64 where `mask`, and zero elsewhere, unless it is not finite."""
    return input.double() * (mask.double() * (1 / (1 - p) if p < 1 else 0.0))


SEED = 0  # for the tools' comparison: all backends drop the same elements


def _expected(input: torch.Tensor, p: float = 0.5, seed: int = SEED) -> Expected:
    mask = dropout_mask(input.shape, p, seed, input.device)

    def value(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return dropout_oracle(x, p, mask)

    return Expected(value, (input, mask), {"input": input}, input.dtype)


def _expected_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, p: float = 0.5, seed: int = SEED
) -> dict[str, Expected]:
    return {"input": _expected(grad_output, p, seed)}


SPEC = OpSpec(
    name="dropout",
    inputs=("input",),
    options={"p": Option(0.5, another=0.1)},
    constants={"seed": SEED},
    floating_only=True,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=lambda grad_output, input, **_: nbytes(grad_output) + nbytes(input),
)
