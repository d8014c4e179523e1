"""stream_map where it is hardest: results that the call allocates, small arrays, and the streams of
homework 7 as it was published, which is a mode of examples/streams.py.

`diglot bench stream_cases --results DIR` writes results to DIR/<gpu>.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import diglot
from diglot.bench.evidence import load_example
from diglot.bench.harness import OURS, Row, Rows
from diglot.bench.reports import write_report
from diglot.bench.stream_map import (
    COLUMNS,
    GIB,
    MIB,
    OPS,
    Arrays,
)
from diglot.bench.workloads import Provider, Workload, bar, faster_than, measured
from diglot.tools import measure, transfer

example = load_example("streams")

SMALL = 64 * MIB
NEW = 2 * GIB
PIECE = 16 * MIB  # of memory that a thread touches
HW7 = OPS["hw7"]


def touch(size: int, threads: int) -> torch.Tensor:
    """New memory, to which a number of threads have written."""
    memory = torch.empty(size, dtype=torch.uint8)
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, size, PIECE):
            place = ctypes.c_void_p(memory.data_ptr() + begin)
            pool.submit(ctypes.memset, place, 0, min(PIECE, size - begin))
    return memory


def new_results(arrays: Arrays) -> Iterator[Workload]:
    """From ordinary memory, which was touched before, to a result that the call allocates. One lies
    in new memory, and one in the memory of a freed result, as in a loop.
    """
    size = arrays.on_device.nbytes
    source = arrays.on_device.cpu()
    threads = len(os.sched_getaffinity(0))
    touch(2 * size, threads)  # so that the machine has held what it will give out
    warm = torch.zeros_like(source)
    results: dict[str, torch.Tensor] = {}

    def stream(backend: str) -> None:
        results[backend] = diglot.stream_map(HW7, source, backend=backend)

    def is_right(backend: str) -> bool:
        return arrays.is_result(HW7, backend, results[backend])

    def touch_alone() -> None:
        results["memory"] = touch(size, threads)

    def forget() -> None:
        results.clear()
        diglot.result_cache.clear()

    def providers(prepare: Callable[[], None]) -> dict[str, Provider]:
        found = {"first touch": Provider(touch_alone, prepare)}
        for b in OURS:
            there = arrays.provider(HW7, b, source, warm)
            found[f"warm out {b}"] = dataclasses.replace(there, prepare=prepare)
            found[b] = Provider(
                functools.partial(stream, b), prepare, functools.partial(is_right, b)
            )
        return found

    def over_slower(row: Row, rows: Rows) -> float:
        """Speed over that of the slower of a warm `out` and the first touch."""
        slower = max(
            rows[name]["time_us"] for name in ("first touch", f"warm out {row['provider']}")
        )
        return slower / row["time_us"]

    bars = [bar("share of the slower of a warm out and the first touch", over_slower, 0.85)]
    for name, prepare in (("new", forget), ("next", results.clear)):
        yield Workload(
            f"{name} result, pageable, hw7",
            size,
            5,
            providers(prepare),
            bars,
            {"threads": threads},
        )


def ideal(size: int, chunk: int, copies: transfer.Duplex, computing: float) -> float:
    """Seconds of the first chunk in, the slowest stage over the rest, and the last chunk out.

    Args:
        size: bytes of the array.
        chunk: bytes of a chunk; the last one has the rest.
        copies: the speeds of copies of such chunks.
        computing: seconds of the kernel alone on the whole array.
    """
    last = size % chunk or chunk
    slowest = max(size / copies.both / 1e9, computing)
    return chunk / copies.h2d / 1e9 + (1 - chunk / size) * slowest + last / copies.d2h / 1e9


def small(arrays: Arrays) -> Iterator[Workload]:
    """64 MiB: its first and its last chunk are a part that counts."""
    rows = SMALL // 4 // COLUMNS
    source, target = arrays.source[:rows], arrays.target[:rows]
    on_device = arrays.on_device[:rows]

    def alone(backend: str) -> float:
        """Seconds of compute."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        HW7(on_device, backend=backend)
        start.record()
        HW7(on_device, backend=backend)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    @functools.cache
    def ceiling(chunk_bytes: int) -> transfer.Duplex:
        """Of copies in such chunks, of all the arrays."""
        to_device, to_host = (a.view(-1).view(torch.uint8) for a in (arrays.source, arrays.target))
        return transfer.duplex(transfer.Copies("cuda", to_device, to_host, chunk_bytes))

    computing = {backend: alone(backend) for backend in OURS}

    def over_ideal(row: Row, _: Rows) -> float:
        """By the ideal for its chunks."""
        chunk = row["run"]["chunk_rows"] * COLUMNS * 4
        copies = ceiling(chunk)
        row["ceilings_gb_per_s"] = dataclasses.asdict(copies)
        row["ideal_us"] = 1e6 * ideal(SMALL, chunk, copies, computing[row["provider"]])
        return row["time_us"] / row["ideal_us"]

    providers = {backend: arrays.provider(HW7, backend, source, target) for backend in OURS}
    bars = [bar("time over the ideal", over_ideal, 1.25, at_least=False)]
    yield Workload("64 MiB pinned, hw7", SMALL, 30, providers, bars)


def homework() -> Iterator[Workload]:
    """256 MiB in 64 chunks on 8 streams, as published, beside stream_map on the same arrays."""
    problems = {backend: example.Homework(backend) for backend in OURS}

    def provider(backend: str, way: str) -> Provider:
        problem = problems[backend]

        def is_right() -> bool:
            exact = HW7(problem.source.to("cuda"), backend=backend)
            found = problem.target.to("cuda")
            whole = torch.equal(found.view(torch.int32), exact.view(torch.int32))
            problem.target.fill_(torch.nan)
            return whole

        return Provider(problem.ways[way], None, is_right)

    providers = {}
    for way in ("non-stream", "streams", "stream_map"):
        for b in OURS:
            providers[b if way == "stream_map" else f"{way} {b}"] = provider(b, way)
    bars = [
        bar("speed over the published streams", faster_than("streams"), 0.97),
        bar("speed over no streams", faster_than("non-stream"), 1.6),
    ]
    size = problems[OURS[0]].source.nbytes
    options = {"chunks": example.Homework.CHUNKS, "streams": example.Homework.STREAMS}
    yield Workload("hw7 as published, pinned", size, 20, providers, bars, options)


def run(folder: Path | None = None, size: int = NEW) -> Path:
    """Measures; writes stream_cases.json.

    Args:
        folder: where it goes; by default bench/results/<gpu>.
        size: bytes of the new results.

    Raises:
        RuntimeError: there is no GPU, or kernels are interpreted.
    """
    measure.check()
    began = time.perf_counter()
    arrays = Arrays(size)
    rows: list[Row] = []
    for workloads in (small(arrays), homework(), new_results(arrays)):
        for workload in workloads:
            rows += measured(workload, {})
    print(f"stream_cases: {time.perf_counter() - began:.0f} s", flush=True)
    facts: dict[str, Any] = {"processors": len(os.sched_getaffinity(0))}
    return write_report("stream_cases", rows, folder, **facts)
