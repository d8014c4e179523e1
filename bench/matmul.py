"""matmul: cases, providers, bars."""

from __future__ import annotations

from typing import Any

import torch

import diglot
from diglot.bench import products
from diglot.bench.harness import (
    Bar,
    Benchmark,
    Case,
    Function,
    Row,
    Tensors,
    expected_of,
    normal,
)
from diglot.reference.matmul import SPEC

LAYOUTS = ("NN", "NT", "TN", "TT")
LARGE = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 28672, 8192),
    (16384, 6656, 16384),
    (4096, 1792, 4096),
)
FEW_ROWS = {16: {"cuda": 1.20, "triton": 1.10}, 64: {"cuda": 1.10, "triton": 1.00},
            128: {"cuda": 1.05, "triton": 0.97}}  # fmt: skip
WEIGHTS = 8192


def _inputs(case: Case) -> Tensors:
    """A (m, k) and B (k, n), each by rows or by columns, as the layout says."""
    m, n, k = case.shape
    layout = case.options["layout"]
    a, b = normal([(k, m) if layout[0] == "T" else (m, k), (n, k) if layout[1] == "T" else (k, n)],
                  case.dtype)  # fmt: skip
    return a.mT if layout[0] == "T" else a, b.mT if layout[1] == "T" else b


def _is_large(row: Row) -> bool:
    return tuple(row["shape"]) in LARGE


def _few_rows(row: Row) -> dict[str, float] | None:
    m, *others = row["shape"]
    return FEW_ROWS.get(m) if others == [WEIGHTS, WEIGHTS] else None


def _expected(case: Case, tensors: Tensors) -> Any:
    return expected_of(SPEC)(Case(case.direction, case.dtype, case.shape), tensors)


benchmark = Benchmark(
    op="matmul",
    cases=[
        *(
            Case("forward", torch.bfloat16, shape, {"layout": layout})
            for shape in LARGE
            for layout in LAYOUTS
        ),
        *(
            Case("forward", torch.bfloat16, (m, WEIGHTS, WEIGHTS), {"layout": "NT"})
            for m in FEW_ROWS
        ),
        Case("forward", torch.bfloat16, (4096, 4096, 4095), {"layout": "NN"}),
        Case("forward", torch.float32, (4096, 4096, 4096), {"layout": "NN"}),
        Case("forward", torch.float64, (2048, 2048, 2048), {"layout": "NN"}),
        Case("forward", torch.float32, (64, 64, 64), {"layout": "NN"}, timer="host"),
    ],
    inputs=_inputs,
    expected=_expected,
    bytes_moved=products.bytes_moved,
    flops=products.flops,
    shape=products.square,
    keywords=lambda case: {},
    takes=products.is_product,
    bars=[
        Bar(
            "worst speed over cuBLAS, large",
            _is_large,
            products.speed_over_torch,
            lambda row: 0.97 if row["provider"] == "cuda" else 0.95,
        ),
        Bar(
            "speed over cuBLAS, few rows",
            lambda row: _few_rows(row) is not None,
            products.speed_over_torch,
            lambda row: (_few_rows(row) or {})[row["provider"]],
        ),
        Bar(
            "speed over cuBLAS, K odd",
            lambda row: row["shape"][-1] % 2 == 1,
            products.speed_over_torch,
            lambda row: 0.85 if row["provider"] == "cuda" else 0.80,
        ),
        products.HOST_BAR,
    ],
)

benchmark.ours({"forward": diglot.matmul})
FUNCTIONS: dict[str, Function] = {"forward": torch.matmul}
benchmark.way("torch", FUNCTIONS, code=[torch.matmul])


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What `torch.compile` compiles."""
    return a @ b


benchmark.compiled({"forward": _product})
benchmark.way("formula", {"forward": _product})
