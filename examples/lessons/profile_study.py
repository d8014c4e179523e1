"""The profile study: a large product, whose first call tunes and whose next call only runs.

    python examples/lessons/profile_study.py

A product of float16 matrices, (12288 x 10240) @ (10240 x 2048), is called twice under PyTorch's
profiler, each call in a range with a name: i_0 and i_1. The function is compiled by `torch.compile`
in the mode "max-autotune" (without CUDA graphs, to see the launches). In i_0 that compiles many
kernels, runs each, and keeps the fastest; i_1 launches the one that won. So the first call says
nothing of a kernel's speed, and a service calls each shape once before it opens. Without a GPU the
matrices are small and the ranges are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from lesson import DEVICE, ON_GPU, Row, Table, check_equal, show

# isort: split
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from diglot.tools.profile_engines import silence_kineto

SIZES = (12288, 10240, 2048) if ON_GPU else (96, 80, 16)
DTYPE = torch.float16 if ON_GPU else torch.float32
CALLS = 2


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b."""
    return a @ b


def study() -> list[Row]:
    """A row for each call: its time, and its kernels, or without a GPU its operators."""
    rows, inner, columns = SIZES
    a = torch.randn(rows, inner, device=DEVICE, dtype=DTYPE)
    b = torch.randn(inner, columns, device=DEVICE, dtype=DTYPE)
    tuned = torch.compile(product, mode="max-autotune-no-cudagraphs")
    silence_kineto()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * ON_GPU
    with profile(activities=activities) as done:
        for i in range(CALLS):
            with record_function(f"i_{i}"):
                result = tuned(a, b)
                if ON_GPU:
                    torch.cuda.synchronize()
    check_equal(result.float() / inner**0.5, (a @ b).float() / inner**0.5, 1e-2)
    events = done.events()
    found: list[Row] = []
    for i in range(CALLS):
        (call,) = [e for e in events if e.name == f"i_{i}" and e.device_type.name == "CPU"]
        begin, end = call.time_range.start, call.time_range.end
        kernels = [
            e.name
            for e in events
            if e.device_type.name == "CUDA" and begin <= e.time_range.start <= end
            and not e.name.startswith(("i_", "Mem"))
        ]  # fmt: skip
        row: Row = {"call": call.name, "ms": (end - begin) / 1e3}
        row["kernels"] = len(kernels) if ON_GPU else None
        found.append({**row, "last kernel": kernels[-1][:60] if kernels else None})
    return found


def main() -> Iterator[Table]:
    """The first call against the next one."""
    rows = study()
    first, second = (row["ms"] for row in rows)
    yield Table(f"{DTYPE}, {SIZES[0]} x {SIZES[1]} @ {SIZES[1]} x {SIZES[2]}, max-autotune", rows)
    yield Table("The first call against the next", [{"times as long": first / second}])


if __name__ == "__main__":
    show(main)
