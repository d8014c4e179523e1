"""The ladder: the same product of bfloat16 matrices, step by step from naive to final.

examples/tensor_cores/ladder.py runs the steps. Here is what can be said of them beforehand: the
least time that each needs by a GPU's data sheet. `markdown` makes the tables of docs/ladder.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diglot.bench.harness import Row
from diglot.bench.markdown import table
from diglot.bench.reports import measured_on
from diglot.tools.gpus import Gpu, find_gpu

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192))  # M, N, K
PREDICTED = "NVIDIA H200"
NOT_MEASURED = "not measured"
ELEMENT_BYTES = 2
# Multiply-adds of an SM in a cycle. NVIDIA H100 Tensor Core GPU Architecture (2022).
TENSOR_CORES, CUDA_CORES = 2048, 128
# A warp's load serves 32 lanes and takes a cycle. A thread that keeps nothing in registers needs
# two for each multiply-add.
TWO_LOADS = 32 // 2
# Bytes that L2 serves in a cycle. NVIDIA A100 Tensor Core GPU Architecture (2020); no document was
# found to name Hopper's.
L2_BYTES = 5120


@dataclass(frozen=True)
class Step:
    """A step of the ladder.

    Attributes:
        number: within its language, from 1 on.
        tile: rows and columns of C for which operands are loaded once.
        rate: multiply-adds of an SM in a cycle, at most.
    """

    language: str
    number: int
    name: str
    change: str
    tile: tuple[int, int]
    rate: int = TENSOR_CORES

    @property
    def provider(self) -> str:
        """Its name in results."""
        return f"{self.language} {self.number}, {self.name}"


STEPS = (
    Step("cuda", 1, "threads", "one thread computes one element", (8, 32), TWO_LOADS),
    Step("cuda", 2, "shared memory", "tiles in shared memory, 8 x 8 elements a thread",
         (128, 128), CUDA_CORES),
    Step("cuda", 3, "wgmma", "tensor cores multiply, TMA loads", (128, 128)),
    Step("cuda", 4, "ring", "a producer warp, four stages, mbarriers", (128, 128)),
    Step("cuda", 5, "wide tiles", "128 x 256, registers moved, products overlap", (128, 256)),
    Step("cuda", 6, "persistent", "a block on each SM, groups of rows of tiles", (128, 256)),
    Step("cuda", 7, "clusters", "two blocks share B by multicast", (256, 256)),
    Step("cuda", 8, "epilogue", "stmatrix, and TMA stores", (256, 256)),
    Step("triton", 1, "naive", "a program for each tile, by pointers", (128, 128)),
    Step("triton", 2, "grouped", "groups of rows of tiles", (128, 128)),
    Step("triton", 3, "persistent", "a program on each SM, one flattened loop", (128, 128)),
    Step("triton", 4, "descriptors", "TMA, 128 x 256", (128, 256)),
    Step("triton", 5, "halves", "C in two halves, a fourth stage", (128, 256)),
    Step("triton", 6, "specialised", "a warpgroup loads, two multiply", (128, 256)),
)  # fmt: skip


@dataclass(frozen=True)
class Floors:
    """The least times of a step, in µs: of its operations, of DRAM's bytes, and of L2's."""

    operations: float
    dram: float
    l2: float

    @property
    def least(self) -> float:
        """The step's prediction: that all of it overlaps."""
        return max(self.operations, self.dram, self.l2)

    @property
    def limit(self) -> str:
        """What takes that time."""
        times = {"operations": self.operations, "DRAM": self.dram, "L2": self.l2}
        return max(times, key=lambda name: times[name])


def l2_bytes(step: Step, shape: Sequence[int]) -> int:
    """Bytes that a step asks of L2: each tile's operands, and C once."""
    m, n, k = shape
    rows, columns = step.tile
    tiles = -(-m // rows) * -(-n // columns)
    return ELEMENT_BYTES * (tiles * (rows + columns) * k + m * n)


def floors(step: Step, shape: Sequence[int], gpu: Gpu) -> Floors:
    """The floors of M x N x K on a GPU, at the clock that its data sheet's peak rate implies."""
    m, n, k = shape
    peak = gpu.tflop_per_s["bfloat16"]
    assert peak is not None
    cycles_per_us = peak * 1e6 / 2 / TENSOR_CORES / gpu.multiprocessors
    once = ELEMENT_BYTES * (m * k + k * n + m * n)
    return Floors(
        operations=m * n * k / (gpu.multiprocessors * step.rate * cycles_per_us),
        dram=once / gpu.bandwidth_gb_per_s / 1e3,
        l2=l2_bytes(step, shape) / (L2_BYTES * cycles_per_us),
    )


def row_of(provider: str, shape: Sequence[int], **figures: Any) -> Row:
    """A row of results."""
    workload = " x ".join(map(str, shape))
    given = {"op": "ladder", "provider": provider, "workload": workload, "shape": [*shape]}
    return {**given, "timer": "device", "bars": [], **figures}


def markdown(reports: Sequence[Mapping[str, Any]]) -> str:
    """For each report and shape a table of both ladders."""
    lines: list[str] = []
    for report in reports:
        gpu = find_gpu(report["gpu"])
        if gpu is None:
            continue
        lines += [f"{measured_on([report])}. Times are medians of interleaved runs. "
                  "Results were checked in that run.", ""]  # fmt: skip
        for shape in SHAPES:
            rows = {r["provider"]: r for r in report["rows"] if r["shape"] == [*shape]}
            title = f"M, N, K = {', '.join(map(str, shape))} on {report['gpu']}"
            header = [title, "what changes", "L2, GB", "limit", "predicted µs", "measured µs",
                      "TFLOP/s", "over torch.mm"]  # fmt: skip
            lines += table(header, _lines(rows, shape, gpu))
    return "\n".join(lines)


def _lines(rows: Mapping[str, Row], shape: Sequence[int], gpu: Gpu) -> Iterator[list[str]]:
    for step in STEPS:
        found = floors(step, shape, gpu)
        yield [
            step.provider,
            step.change,
            f"{l2_bytes(step, shape) / 1e9:.2f}",
            found.limit,
            f"{found.least:,.0f}",
            *_measured(rows.get(step.provider)),
        ]
    yield ["torch.mm", "", "", "", "", *_measured(rows.get("torch"))]


def _measured(row: Row | None) -> list[str]:
    if row is None:
        return [NOT_MEASURED, "", ""]
    if "time_us" not in row:
        return [row.get("reason", "wrong result"), "", ""]
    return [f"{row['time_us']:,.0f}", f"{row['tflop_per_s']:.0f}", f"{row['speed_over_torch']:.2f}"]
