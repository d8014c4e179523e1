"""What the benchmarks of row-wise ops share: shapes, providers, bars.

A row is read once, and its kernel is bound by memory. On an otherwise idle GPU there are two
questions. Which share of a copy's speed does it reach? And how fast is it beside the best of
PyTorch, its compiler and other packages?
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

import diglot
from diglot.bench.harness import (
    MODES,
    RECORDED,
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
    host_bar,
    host_cases,
    recorded,
    rows_of,
    share_of_copy,
    time_over_torch,
)
from diglot.reference.specs import find_spec

BF16, FP32 = torch.bfloat16, torch.float32
SHORT = (32768, 1024)
SHAPES = (
    (SHORT, BF16),
    ((32768, 4096), BF16),
    ((32768, 16384), BF16),
    ((8192, 65536), BF16),
    ((4096, 262144), BF16),
    ((32768, 4096), FP32),
    ((32768, 16384), FP32),
    ((4096, 262144), FP32),
)
FEW = ((1, 4096), (8, 4096))  # in a CUDA graph
SMALL = (64, 64)  # of the host's time
AUTOTUNED_CASE = ((32768, 4096), BF16)
# Whatever a user would call in place of a kernel: its own language's, and the compiler's for both.
COMPILED = tuple(MODES)
PEERS = {"triton": (*COMPILED, "liger"), "cuda": ("torch", *COMPILED, "quack")}


def over_best_peer(row: Row, rows: Rows) -> float:
    """Speed as a multiple of that of the best peer."""
    times = [rows[p]["time_us"] for p in PEERS[row["provider"]] if "time_us" in rows.get(p, {})]
    return min(times, default=math.inf) / row["time_us"]


def _is_row(row: Row) -> bool:
    return row["timer"] == "device" and "dim" not in row["options"]


def _bound(row: Row) -> float | None:
    """The share of the copy ceiling that a row must reach; None: a multiple of a peer's speed."""
    n, backward = row["shape"][-1], row["direction"] == "backward"
    if tuple(row["shape"]) == SHORT:
        return 0.70 if backward else 0.87
    if row["provider"] == "cuda":
        return 0.95 if not backward else 0.92 if n <= 65536 else 0.85
    if n <= 16384:
        return 0.88 if backward else 0.95
    return None


BARS = [
    Bar(
        "share of the copy ceiling",
        lambda row: _is_row(row) and _bound(row) is not None,
        share_of_copy,
        lambda row: _bound(row) or 0.0,
    ),
    Bar(
        "share of the copy ceiling along dimension 0",
        lambda row: row["timer"] == "device" and row["options"].get("dim") == 0,
        share_of_copy,
        lambda row: 0.85,
    ),
    Bar(
        "speed over the best peer",
        lambda row: _is_row(row),
        over_best_peer,
        lambda row: 1.15 if _bound(row) is None else 0.97,
    ),
    Bar(
        "time over torch's in a graph",
        lambda row: row["timer"] == "graph",
        time_over_torch,
        lambda row: 1.0,
        at_least=False,
    ),
]


def cases(extra: Sequence[Case] = ()) -> list[Case]:
    """Every shape in both directions, few rows in a graph, and others."""
    return [
        *(
            Case(direction, dtype, shape, autotuned=(shape, dtype) == AUTOTUNED_CASE)
            for shape, dtype in SHAPES
            for direction in ("forward", "backward")
        ),
        *extra,
        *(Case("forward", dtype, shape, timer="graph") for shape in FEW for dtype in (BF16, FP32)),
        *host_cases(SMALL),
    ]


def benchmark_of(op: str, forward: Function, gradient: Function) -> Benchmark:
    """The benchmark of softmax or of its logarithm.

    Args:
        forward: the definition written out: from the input and the keyword `dim`.
        gradient: likewise, from the output's gradient and the output.
    """
    formulas = {"forward": forward, "backward": gradient}
    eager: Function = getattr(torch, op)
    differentiate_ours = getattr(torch.ops.diglot, f"{op}_backward")
    differentiate_eager = getattr(torch.ops.aten, f"_{op}_backward_data")

    def ours_backward(grad: torch.Tensor, y: torch.Tensor, dim: int, backend: str) -> torch.Tensor:
        return differentiate_ours(grad, y, dim, y.dtype, backend)

    def eager_backward(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
        return differentiate_eager(grad, y, dim, y.dtype)

    def operands(case: Case, tensors: Tensors) -> Tensors:
        if case.direction == "backward":
            grad, x = tensors
            # In double precision: along dimension 0 PyTorch's own is off by hundreds of ulp, and
            # what follows from it would be.
            return grad, eager(x.double(), case.options.get("dim", -1)).to(x.dtype)
        return tensors

    made = Benchmark(
        op=op,
        cases=cases(
            [
                Case(direction, BF16, (8192, 8192), {"dim": 0})
                for direction in ("forward", "backward")
            ]
        ),
        inputs=lambda case: recorded(case, arrays_of(case)),
        expected=expected_of(find_spec(op)),
        bytes_moved=bytes_moved,
        bars=[*BARS, host_bar(cuda=(4, 9), triton=(12, 18))],
        shape=rows_of,
        takes=is_matrix,
        operands=operands,
        keywords=lambda case: {"dim": case.options.get("dim", -1)},
    )
    ours = getattr(diglot, op)
    made.ours({"forward": ours, RECORDED: ours, "backward": ours_backward})
    made.way("torch", {"forward": eager, RECORDED: eager, "backward": eager_backward}, code=[eager])
    made.compiled({**formulas, "forward": eager})
    made.way("formula", formulas)
    return made


def is_matrix(case: Case) -> bool:
    """Whether a case has rows, and no dimensions beside."""
    return len(case.shape) == 2


def has_no_options(case: Case) -> bool:
    """What peers take that know rows alone."""
    return not case.options
