"""Numbers travel to a launch as halves, which every way of launching leaves unchanged."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import torch


def _pack_halves(kind: type, value: float) -> tuple[int, int]:
    if kind is float:
        return struct.unpack("<ii", struct.pack("<d", value))[::-1]
    return struct.unpack("<ii", struct.pack("<q", (int(value) + 2**63) % 2**64 - 2**63))[::-1]


_halves = functools.lru_cache(maxsize=1024)(_pack_halves)


def number_halves(value: float, dtype: torch.dtype) -> tuple[int, int]:
    """The high and low 32 bits of a number, as a float64 where `dtype` is floating, else as an
    int64.

    Kernels take every number this way, because Triton passes a Python float as float32, and
    Inductor passes no integer constant beyond 32 bits.
    """
    kind = float if dtype.is_floating_point else int
    # A cache takes 0.0 and -0.0 for one key.
    return _halves(kind, value) if value != 0 else _pack_halves(kind, value)


def numbers_of(dtype: torch.dtype) -> Callable[..., tuple[int, ...]]:
    """The function that makes a launch's numbers from its single unseen argument: the halves."""
    return functools.partial(number_halves, dtype=dtype)
