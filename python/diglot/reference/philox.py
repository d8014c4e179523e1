"""Philox-4x32-10 in plain PyTorch, on words held in int64."""

from __future__ import annotations

import torch

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def multiply_wide(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and the low word of a product; by halves of b, so that nothing overflows."""
    low, high = a * (b & 0xFFFF), a * (b >> 16)
    low = low + ((high & 0xFFFF) << 16)
    return (high >> 16) + (low >> 32), low & WORD


def philox_4x32(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """The words that Philox makes from a counter and a key (Salmon et al., 2011)."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(ROUNDS):
        high0, low0 = multiply_wide(c0, MULTIPLIERS[0])
        high1, low1 = multiply_wide(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def split(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The low and the high word of int64 numbers."""
    return value & WORD, (value >> 32) & WORD


def random_bits(seed: torch.Tensor, offset: int, n: int) -> torch.Tensor:
    """The words of the elements with row-major indices below n: int64 [n].

    The layout is that of triton_ops/lib/philox.py and csrc/include/diglot/philox.cuh: element i has
    word i % 4 of the counter offset + i / 4.
    """
    counter = torch.arange(-(-n // 4), device=seed.device) + offset
    zero = torch.zeros_like(counter)
    words = philox_4x32((*split(counter), zero, zero), split(seed))
    return torch.stack(words, -1).reshape(-1)[:n]
