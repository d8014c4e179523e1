"""Interpreted comparisons: their progress, and an estimate of their time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from diglot.backends.registry import load_triton, triton_interprets
from diglot.reference.specs import OpSpec
from diglot.tools import inputs
from diglot.tools.compare import compare

LARGE = 1 << 20  # elements; a trial estimates the time of arrays from this size on
TRIED = 1 << 12  # elements of the trial


@contextmanager
def follow_programs(tell: Callable[[int, int], None]) -> Iterator[None]:
    """Context manager: calls a function before every program that Triton interprets.

    Args:
        tell: takes the program's number, from 0, and the number of programs of the launch.
    """
    if load_triton()[0] is None or not triton_interprets():
        yield
        return
    from triton.runtime.interpreter import interpreter_builder as builder

    begin = builder.set_grid_idx

    def begin_and_tell(x: int, y: int, z: int) -> None:
        _, height, depth = builder.grid_dim
        tell((x * height + y) * depth + z, math.prod(builder.grid_dim))
        begin(x, y, z)

    builder.set_grid_idx = begin_and_tell
    try:
        yield
    finally:
        builder.set_grid_idx = begin


def estimate_seconds(
    spec: OpSpec,
    shape: tuple[int, ...],
    dtype: torch.dtype | None,
    device: torch.device,
    backward: bool,
    options: dict[str, Any],
) -> float:
    """The seconds that an interpreted comparison of an op takes, by a trial of few elements.

    Args:
        shape: of the first input.
        dtype: of the inputs; None: float32.
    """
    sizes, left = [], TRIED
    for size in reversed(shape):
        sizes.append(min(size, left))
        left = max(1, left // sizes[-1])
    small = tuple(reversed(sizes))
    tried = inputs.load(spec, shape=small, dtype=dtype, device=device)
    for _ in range(2):  # the first call loads libraries
        begin = time.perf_counter()
        compare(spec.name, *tried, backward=backward, timed=False, resources=False, **options)
    return (time.perf_counter() - begin) * math.prod(shape) / math.prod(small)
