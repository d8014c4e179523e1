"""grid_barrier_check: the grid barrier beside co-operative groups' grid.sync(), in one program.

A call is a launch with a thousand barriers and nothing in between.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from diglot.backends.runs import run
from diglot.bench.harness import Bar, Benchmark, Call, Case, Tensors
from diglot.ops.grid_barrier_check import WORDS
from diglot.reference.specs import Expected

BARRIERS = 1000
# Blocks on each multiprocessor.
PER_MULTIPROCESSOR = (1, 2, 4)
BOUNDS = {
    ("cuda", 1): 0.97,
    ("cuda", 2): 1.02,
    ("cuda", 4): 1.02,
    ("triton", 1): 1.05,
    ("triton", 2): 1.10,
}


def _bound(row: dict[str, Any]) -> float | None:
    return BOUNDS.get((row["provider"], row["options"]["blocks per multiprocessor"]))


def _inputs(case: Case) -> Tensors:
    multiprocessors = torch.cuda.get_device_properties("cuda").multi_processor_count
    blocks = multiprocessors * case.options["blocks per multiprocessor"]
    return (torch.zeros((2, blocks, WORDS), dtype=torch.int32, device="cuda"),)


benchmark = Benchmark(
    op="grid_barrier_check",
    cases=[
        Case(
            "forward",
            torch.int32,
            (BARRIERS,),
            {"blocks per multiprocessor": blocks},
            timer="graph",
        )
        for blocks in PER_MULTIPROCESSOR
    ],
    inputs=_inputs,
    expected=lambda case, tensors: Expected(
        torch.zeros_like,
        (torch.zeros(case.shape, dtype=case.dtype, device="cuda"),),
        {},
        case.dtype,
    ),
    bytes_moved=lambda case, tensors: 0,
    bars=[
        Bar(
            "time over grid.sync()",
            lambda row: _bound(row) is not None,
            lambda row, rows: row["time_us"] / rows["grid.sync()"]["time_us"],
            lambda row: _bound(row) or 0.0,
            at_least=False,
        )
    ],
)


def _call(backend: str, barrier: str, case: Case, tensors: Tensors) -> Call:
    (slots,) = tensors
    mismatches = torch.zeros(case.shape, dtype=case.dtype, device="cuda")

    def start(what: str) -> torch.Tensor:
        name = "grid_barrier_check"
        run(backend, name, name, slots, barrier, what, mismatches)
        return mismatches

    start("check")  # which is verified
    return lambda: start("wait")


for name, backend, barrier in (
    ("cuda", "cuda", "diglot"),
    ("triton", "triton", "diglot"),
    ("grid.sync()", "cuda", "grid.sync"),
):
    benchmark.provider(name)(functools.partial(_call, backend, barrier))
