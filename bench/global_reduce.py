"""What the benchmarks of global_softmax and standardize share: cases, providers, bars.

An array is reduced as a whole and then mapped. Up to the size of the L2 cache the question is how
often memory is read, and in how many launches. All sides run in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from diglot.bench.harness import (
    Bar,
    Benchmark,
    Case,
    Function,
    Row,
    Rows,
    Tensors,
    arrays_of,
    bytes_moved,
    expected_of,
)
from diglot.reference.specs import find_spec

DTYPES = (torch.float32, torch.bfloat16)
MEGABYTES = (1, 8, 32)
MIDDLE, BIG = 8, 256


def _speed_over(peer: str) -> Callable[[Row, Rows], float]:
    return lambda row, rows: rows[peer]["time_us"] / row["time_us"]


def _is_small_forward(row: Row) -> bool:
    return row["timer"] == "graph" and row["direction"] == "forward"


def benchmark_of(
    op: str,
    ours: dict[str, Function],
    eager: dict[str, Function],
    formulas: dict[str, Function],
    saved: Callable[[torch.Tensor], Tensors],
) -> Benchmark:
    """The benchmark of an op. Functions are given for the directions "forward" and "backward".

    Args:
        ours: functions that take the keyword `backend` too.
        saved: from the input, what the backward pass takes beside the output's gradient.
    """

    def operands(case: Case, tensors: Tensors) -> Tensors:
        if case.direction == "backward":
            return tensors[0], *saved(tensors[1])
        return tensors

    made = Benchmark(
        op=op,
        cases=[
            Case(direction, dtype, ((megabytes << 20) // dtype.itemsize,), timer=timer)
            for direction, sizes, timer in (
                ("forward", MEGABYTES, "graph"),
                ("backward", (MIDDLE,), "graph"),
                ("forward", (BIG,), "device"),
            )
            for megabytes in sizes
            for dtype in DTYPES
        ],
        inputs=arrays_of,
        expected=expected_of(find_spec(op)),
        bytes_moved=bytes_moved,
        bars=[
            Bar(
                "speed over torch.compile in a graph",
                _is_small_forward,
                _speed_over("torch.compile"),
                lambda row: 1.3,
            ),
            Bar(
                "speed over the formula in a graph",
                _is_small_forward,
                _speed_over("formula"),
                lambda row: 3.0,
            ),
        ],
        shape=lambda elements: (elements,),
        takes=lambda case: len(case.shape) == 1,
        operands=operands,
    )
    made.ours(ours)
    made.way("torch", eager, code=[eager["forward"]])
    made.compiled(formulas)
    made.way("formula", formulas)
    return made
