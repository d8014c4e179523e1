"""Sums, products and quotients in two parts, for oracles of float64: the second part keeps the
rounding error.

A number in two parts is their sum: the head, rounded, and a tail that is no more than the head's
rounding. Where anything overflows, the tail is zero.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class TwoPart(NamedTuple):
    """head + tail, in float64."""

    head: torch.Tensor
    tail: torch.Tensor


def two_sum(a: torch.Tensor, b: torch.Tensor | float) -> TwoPart:
    """a + b, exactly."""
    head = a + b
    back = head - a
    return _finite(head, (a - (head - back)) + (b - back))


def two_product(a: torch.Tensor, b: torch.Tensor | float) -> TwoPart:
    """a · b, exactly unless it underflows; by Dekker's halves, since PyTorch has no fma."""
    head = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    product = a_high * b_high - head
    return _finite(head, (product + a_high * b_low + a_low * b_high) + a_low * b_low)


def two_quotient(a: TwoPart, b: float) -> TwoPart:
    """a / b."""
    head = a.head / b
    product = two_product(head, b)
    return _finite(head, ((a.head - product.head) - product.tail + a.tail) / b)


def exp_negative(of: TwoPart) -> torch.Tensor:
    """exp(-of), to which an argument's rounding would add as many ulp as it is large."""
    return torch.exp(-of.head) * (1 - of.tail)


def _halves(a: torch.Tensor | float) -> tuple[torch.Tensor | float, torch.Tensor | float]:
    """The upper and the lower half of the digits."""
    scaled = a * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def _finite(head: torch.Tensor, tail: torch.Tensor) -> TwoPart:
    return TwoPart(head, torch.where(tail.isfinite(), tail, 0.0))
