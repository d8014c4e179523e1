"""What the benchmarks of elementwise ops share: types, shapes, cases, tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from diglot.bench.harness import (
    Bar,
    Benchmark,
    Case,
    Row,
    arrays_of,
    bytes_moved,
    expected_of,
    host_cases,
    recorded,
    rows_of,
    share_of_copy,
)
from diglot.reference.specs import find_spec

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BIG, MIDDLE, SMALL = (16384, 16384), (1024, 4096), (4096,)


def on_device(
    directions: Sequence[str], options: Sequence[dict[str, Any]] = ({},), *shapes: tuple[int, ...]
) -> list[Case]:
    """Cases of every shape, direction, type and choice of options, by default of two shapes."""
    return [
        Case(direction, dtype, shape, of)
        for shape in shapes or (BIG, MIDDLE)
        for direction in directions
        for dtype in DTYPES
        for of in options
    ]


def small(
    options: Sequence[dict[str, Any]] = ({},), dtypes: Sequence[torch.dtype] = DTYPES
) -> list[Case]:
    """A small array in a CUDA graph, and the host's time of it with the last options."""
    in_graph = [Case("forward", t, SMALL, of, timer="graph") for t in dtypes for of in options]
    return [*in_graph, *host_cases(SMALL, options[-1])]


def is_big(row: Row) -> bool:
    """Whether a row is of the large array, on the device."""
    return row["timer"] == "device" and row["shape"] == list(BIG)


def copy_bar(bound: Any, applies: Any = is_big) -> Bar:
    """The share of a copy's speed that a large array must reach, from a row."""
    return Bar("share of the copy ceiling", applies, share_of_copy, bound)


def benchmark_of(op: str, cases: list[Case], bars: list[Bar], **fields: Any) -> Benchmark:
    """The benchmark of an op that maps its input's elements; `fields` are what differs."""
    made: dict[str, Any] = {
        "inputs": lambda case: recorded(case, arrays_of(case)),
        "expected": expected_of(find_spec(op)),
        "bytes_moved": bytes_moved,
        "shape": rows_of,
    }
    return Benchmark(op=op, cases=cases, bars=bars, **made | fields)
