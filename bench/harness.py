"""One harness for every op: ceilings first, then all providers interleaved, nothing unverified.

`bench/<op>.py` describes an op as data: its cases, its providers and its bars. A provider is a way
of computing a case: a function from the case and its tensors to a call that returns the result.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.evidence import RESULTS, commit, gpu_short_name, source_hash, versions
from diglot.tools import measure
from diglot.tools.accuracy import measure_error
from diglot.tools.specs import Expected

SCHEMA = 1
# Ours have no speed unless every element is within the tolerance. Peers round as they please (a sum
# of 16384 terms in bfloat16 is off by half): they are only held to an absolute error, which tells a
# wrong kernel from an inaccurate one, and their worst error is written beside their time.
OURS = ("cuda", "triton")
PEER_ABSOLUTE_ERROR = 1.0

Tensors = tuple[torch.Tensor, ...]
Call = Callable[[], Any]


@dataclass(frozen=True)
class ErrorOf:
    """What a call's result is worth: as in `diglot.tools.accuracy.Error`."""

    worst_ulp: float
    worst_absolute: float
    failing: float


@dataclass(frozen=True)
class Case:
    """One thing to compute.

    Attributes:
        direction: "forward" or "backward".
        dtype: of every tensor.
        shape: of every tensor.
        options: the op's options.
        timer: "device" (cold cache), "captured" (the same of a call that is a CUDA graph), "graph"
            (in a CUDA graph of many, warm) or "host" (cost of the call).
    """

    direction: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    timer: str = "device"


@dataclass(frozen=True)
class Bar:
    """What a case must reach.

    Attributes:
        name: what is said of it in tables.
        applies: whether it speaks of a row.
        value: the number of a row, from it and the rows of the same case by provider.
        bound: the number that it must reach.
        at_least: whether the bound is a floor, not a ceiling.
    """

    name: str
    applies: Callable[[dict[str, Any]], bool]
    value: Callable[[dict[str, Any], dict[str, dict[str, Any]]], float]
    bound: Callable[[dict[str, Any]], float]
    at_least: bool = True


@dataclass
class Benchmark:
    """An op's benchmark, as data.

    Attributes:
        op: its name.
        cases: what is computed.
        inputs: the tensors of a case.
        expected: the right values of what a call returns. None for an op in place.
        bytes_moved: of a case: each input read once and each output written once.
        bars: what is to be reached.
        error: of an op in place: from a case, its tensors and a call to what the call made of them.
        prepare: of an op in place: before each timed call, untimed.
        providers: ways of computing a case.
    """

    op: str
    cases: list[Case]
    inputs: Callable[[Case], Tensors]
    expected: Callable[[Case, Tensors], Expected] | None
    bytes_moved: Callable[[Case, Tensors], int]
    bars: list[Bar]
    error: Callable[[Case, Tensors, Call], ErrorOf] | None = None
    prepare: Callable[[Tensors], None] | None = None
    providers: dict[str, Callable[[Case, Tensors], Call | None]] = field(default_factory=dict)

    def provider(self, name: str) -> Callable[[Callable], Callable]:
        """Decorator: a way of computing a case; None where it cannot."""

        def add(function: Callable[[Case, Tensors], Call | None]) -> Callable:
            self.providers[name] = function
            return function

        return add


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _verify(benchmark: Benchmark, case: Case, tensors: Tensors, call: Call) -> dict[str, Any]:
    if benchmark.error is not None:
        return asdict(benchmark.error(case, tensors, call))
    assert benchmark.expected is not None
    error = measure_error(call(), benchmark.expected(case, tensors))
    return {
        "worst_ulp": error.worst_ulp,
        "worst_absolute": error.worst_absolute,
        "failing": error.failing,
    }


def _run_case(benchmark: Benchmark, case: Case) -> list[dict[str, Any]]:
    tensors = benchmark.inputs(case)
    moved = benchmark.bytes_moved(case, tensors)
    calls: dict[str, Call] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, provider in benchmark.providers.items():
        call = provider(case, tensors)
        if call is None:
            continue
        row = {
            "op": benchmark.op,
            "provider": name,
            "direction": case.direction,
            "dtype": _dtype_name(case.dtype),
            "shape": list(case.shape),
            "options": case.options,
            "timer": case.timer,
            "bytes": moved,
            **_verify(benchmark, case, tensors, call),
        }
        rows[name] = row
        # A wrong result of ours has no speed. Peers are timed whatever their tail is worth, and
        # their error stands beside it.
        row["verified"] = (
            row["failing"] == 0 if name in OURS else row["worst_absolute"] < PEER_ABSOLUTE_ERROR
        )
        if row["verified"]:
            calls[name] = call
        torch.cuda.empty_cache()
    if case.timer in ("device", "captured"):
        if case.timer == "captured":
            calls = {name: measure.captured(call) for name, call in calls.items()}
        calls["copy"] = measure.copy_ceiling(moved, case.dtype, "cuda")
        prepare = functools.partial(benchmark.prepare, tensors) if benchmark.prepare else None
        timings = measure.interleaved(calls, budget_ms=60, prepare=prepare)
    elif case.timer == "graph":
        timings = measure.graphed(calls)
    else:
        timings = measure.host(calls)
    ceiling = timings.pop("copy", None)
    for name, timing in timings.items():
        row = rows[name]
        row |= {
            "time_us": timing.median_us,
            "p20_us": timing.p20_us,
            "p80_us": timing.p80_us,
            "samples": timing.samples,
        }
        if ceiling is not None:
            row["tb_per_s"] = moved / timing.median_us / 1e6
            row["copy_tb_per_s"] = moved / ceiling.median_us / 1e6
            row["share_of_copy"] = ceiling.median_us / timing.median_us
        if "torch" in timings:
            row["speed_over_torch"] = timings["torch"].median_us / timing.median_us
    return list(rows.values())


def _judge(benchmark: Benchmark, rows: list[dict[str, Any]]) -> None:
    def case_of(row: dict[str, Any]) -> tuple[Any, ...]:
        keys = ("direction", "dtype", "shape", "options", "timer")
        return tuple(json.dumps(row[key], sort_keys=True) for key in keys)

    cases: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault(case_of(row), {})[row["provider"]] = row
    for row in rows:
        row["bars"] = []
        if row["provider"] not in OURS:
            continue
        for bar in benchmark.bars:
            if bar.applies(row):
                bound = bar.bound(row)
                value = bar.value(row, cases[case_of(row)]) if row["verified"] else None
                met = value is not None and (value >= bound if bar.at_least else value <= bound)
                row["bars"].append({"name": bar.name, "value": value, "bound": bound, "met": met})


def run(benchmark: Benchmark, folder: Path | None = None) -> Path:
    """Runs a benchmark and writes its results.

    Args:
        benchmark: what to run.
        folder: where to write; by default bench/results/<gpu>.

    Returns:
        The file written.

    Raises:
        RuntimeError: kernels are interpreted, or there is no GPU.
    """
    measure.check()
    rows = []
    for i, case in enumerate(benchmark.cases):
        print(
            f"{benchmark.op} {i + 1}/{len(benchmark.cases)}: {case.direction} "
            f"{_dtype_name(case.dtype)} {'x'.join(map(str, case.shape))} {case.options} "
            f"[{case.timer}]",
            flush=True,
        )
        rows += _run_case(benchmark, case)
        torch.cuda.empty_cache()
    _judge(benchmark, rows)
    return write_report(benchmark.op, rows, folder)


def write_report(
    op: str, rows: list[dict[str, Any]], folder: Path | None = None, **facts: Any
) -> Path:
    """Writes rows, and what they were measured on, to <op>.json; returns the file.

    `facts` are what else is known of the GPU, by name.
    """
    gpu = torch.cuda.get_device_name()
    report = {
        "schema": SCHEMA,
        "op": op,
        "gpu": gpu,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit(),
        "sources": source_hash(),
        "versions": versions(),
        **facts,
        "rows": rows,
    }
    folder = folder or RESULTS / gpu_short_name(gpu)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{op}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


def share_of_copy(row: dict[str, Any], _: dict[str, dict[str, Any]]) -> float:
    """Speed as a share of the copy ceiling."""
    return row["share_of_copy"]


def speed_over_torch(row: dict[str, Any], _: dict[str, dict[str, Any]]) -> float:
    """Speed as a multiple of PyTorch's."""
    return row["speed_over_torch"]


def time_over_torch(row: dict[str, Any], rows: dict[str, dict[str, Any]]) -> float:
    """Time as a multiple of PyTorch's."""
    return row["time_us"] / rows["torch"]["time_us"]


def microseconds_over_torch(row: dict[str, Any], rows: dict[str, dict[str, Any]]) -> float:
    """Time beyond PyTorch's, in microseconds."""
    return row["time_us"] - rows["torch"]["time_us"]
