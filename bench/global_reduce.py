"""What the benchmarks of global_softmax and standardize share: cases, providers, bars.

An array is reduced as a whole and then mapped, so that up to the size of the L2 cache the question
is how often memory is read, and how many launches that takes: all sides run in a CUDA graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from bench.harness import Bar, Benchmark, Call, Case, Tensors
from diglot.tools.specs import Expected, find_spec, nbytes

DTYPES = (torch.float32, torch.bfloat16)
MEGABYTES = (1, 8, 32)
MIDDLE, BIG = 8, 256

Function = Callable[..., torch.Tensor]


def _speed_over(peer: str) -> Callable[[dict[str, Any], dict[str, dict[str, Any]]], float]:
    return lambda row, rows: rows[peer]["time_us"] / row["time_us"]


def _is_small_forward(row: dict[str, Any]) -> bool:
    return row["timer"] == "graph" and row["direction"] == "forward"


def benchmark_of(
    op: str,
    ours: dict[str, Callable[..., Any]],
    eager: dict[str, Function],
    formulas: dict[str, Function],
    saved: Callable[[torch.Tensor], Tensors],
) -> Benchmark:
    """The benchmark of an op. Functions are given for the directions "forward" and "backward".

    Args:
        op: its name.
        ours: from a backend and tensors, the result.
        eager: PyTorch's own op.
        formulas: the definition written out.
        saved: from the input, what the backward pass takes beside the output's gradient.
    """
    spec = find_spec(op)

    def inputs(case: Case) -> Tensors:
        generator = torch.Generator("cuda").manual_seed(0)
        count = 2 if case.direction == "backward" else 1
        return tuple(
            torch.randn(case.shape, generator=generator, device="cuda").to(case.dtype)
            for _ in range(count)
        )

    def expected(case: Case, tensors: Tensors) -> Expected:
        if case.direction == "backward":
            return spec.backward(*tensors)["input"]
        return spec.forward(*tensors)

    def call(function: Callable[..., Any], case: Case, tensors: Tensors) -> Call:
        if case.direction == "backward":
            tensors = (tensors[0], *saved(tensors[1]))
        return lambda: function(*tensors)

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
        inputs=inputs,
        expected=expected,
        bytes_moved=lambda case, tensors: sum(map(nbytes, tensors)) + nbytes(tensors[0]),
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
    )

    @made.provider("cuda")
    def cuda(case: Case, tensors: Tensors) -> Call:
        return call(functools.partial(ours[case.direction], "cuda"), case, tensors)

    @made.provider("triton")
    def triton(case: Case, tensors: Tensors) -> Call:
        return call(functools.partial(ours[case.direction], "triton"), case, tensors)

    @made.provider("torch")
    def own(case: Case, tensors: Tensors) -> Call:
        return call(eager[case.direction], case, tensors)

    @made.provider("torch.compile")
    def compiled(case: Case, tensors: Tensors) -> Call:
        torch._dynamo.reset()  # each case is compiled for its size alone
        return call(torch.compile(formulas[case.direction], dynamic=False), case, tensors)

    @made.provider("formula")
    def formula(case: Case, tensors: Tensors) -> Call:
        return call(formulas[case.direction], case, tensors)

    return made
