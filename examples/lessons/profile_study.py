"""The profile study: a large product, whose first call tunes and whose next call only runs.

    python examples/lessons/profile_study.py

A product of float16 matrices, (12288 x 10240) @ (10240 x 2048), is called twice under PyTorch's
profiler, each call in a range with a name: i_0 and i_1. Two ways tune in i_0, and launch one kernel
in i_1. `torch.compile` in the mode "max-autotune" (without CUDA graphs, to see the launches)
compares cuBLAS with kernels that it generates. `triton.autotune` runs our own short kernel in three
configurations, and clears the L2 cache between runs. So the first call says nothing of a kernel's
speed, and a service calls each shape once before it opens. TensorBoard, or a browser at
ui.perfetto.dev, shows the traces in out/profile_study. Without a GPU the matrices are small, the
ranges are the same, and only `torch.compile` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lesson import DEVICE, ON_GPU, Row, Table, check_equal, show

# isort: split
import torch
import triton
from short_product import product_kernel
from torch.profiler import (
    ProfilerActivity,
    profile,
    record_function,
    tensorboard_trace_handler,
)

from diglot.tools.profile_engines import silence_kineto

SIZES = (12288, 10240, 2048) if ON_GPU else (96, 80, 16)
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
DTYPE = torch.float16 if ON_GPU else torch.float32
CALLS = 2
TRACES = "out/profile_study"
CONFIGS = [
    triton.Config({"BM": 128, "BN": 128, "BK": 64, "GROUP": 8}, num_warps=4, num_stages=3),
    triton.Config({"BM": 64, "BN": 128, "BK": 64, "GROUP": 8}, num_warps=8, num_stages=3),
    triton.Config({"BM": 128, "BN": 256, "BK": 64, "GROUP": 8}, num_warps=8, num_stages=3),
]


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b."""
    return a @ b


def tuned_by_triton() -> Product:
    """The short kernel, with an autotuner of its own."""
    tuned = triton.autotune(CONFIGS, key=["M", "N", "K"])(product_kernel)

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (m, k), n = a.shape, b.shape[1]
        out = a.new_empty(m, n)
        tuned[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](
            a, b, out, m, n, k
        )
        return out

    return call


def study(by: str, tuned: Product) -> list[Row]:
    """A row for each call of a function that tunes: its time, and on a GPU its kernels."""
    rows, inner, columns = SIZES
    a = torch.randn(rows, inner, device=DEVICE, dtype=DTYPE)
    b = torch.randn(inner, columns, device=DEVICE, dtype=DTYPE)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * ON_GPU
    keep = tensorboard_trace_handler(TRACES, by)
    with profile(activities=activities, on_trace_ready=keep) as done:
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
        row: Row = {"by": by, "call": call.name, "ms": (end - begin) / 1e3}
        row["kernels"] = len(kernels) if ON_GPU else None
        found.append({**row, "last kernel": kernels[-1][:60] if kernels else None})
    return found


def main() -> Iterator[Table]:
    """The first call against the next one."""
    silence_kineto()
    ways: dict[str, Product] = {}
    ways["torch.compile"] = torch.compile(product, mode="max-autotune-no-cudagraphs")
    if ON_GPU:
        ways["triton.autotune"] = tuned_by_triton()
    studies = {by: study(by, tuned) for by, tuned in ways.items()}
    title = f"{DTYPE}, {SIZES[0]} x {SIZES[1]} @ {SIZES[1]} x {SIZES[2]}"
    yield Table(title, [row for rows in studies.values() for row in rows])
    ratios = {by: first["ms"] / second["ms"] for by, (first, second) in studies.items()}
    yield Table(
        "The first call against the next",
        [{"by": by, "times as long": ratio} for by, ratio in ratios.items()],
    )


if __name__ == "__main__":
    show(main)
