"""stream_map: ops over arrays in host memory, beside the copies alone and beside simpler forms.
What new results, small arrays and other people's streams have it do is in stream_cases.py.

Everything of a workload is timed in turns, by the host's clock, from the call to the result.
`diglot bench stream_map --results DIR` writes results, reports and charts to DIR/<gpu>. By
`make bench` they go to bench/results/<gpu>, and charts to docs/images.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diglot
from diglot.bench.evidence import RESULTS, ROOT, gpu_short_name
from diglot.bench.harness import OURS, Row, Rows
from diglot.bench.reports import write_report
from diglot.bench.workloads import Provider, Workload, bar, faster_than, measured, once
from diglot.pipeline.report import PipelineReport
from diglot.tools import measure, transfer

GIB, MIB = 1 << 30, 1 << 20
COLUMNS = 1024  # of float32: a row has 4 KiB
MAPPED_SHARE = 2  # maps have a half of the bytes, a compute-bound run a quarter
COMPUTE_SHARE = 4
COMPUTE_OVER_COPY = 5
HOST_THREADS = (4, 8, 16)
# Workloads whose last reports and charts are kept, and their files' names.
KEPT = {
    "pinned, hw7": "overlap",
    "pageable, hw7": "overlap_pageable",
    "2 GPUs, pinned, hw7": "overlap_2gpus",
}

OPS: dict[str, Callable[..., torch.Tensor]] = {"hw7": diglot.gaussian_pdf, "gelu": diglot.gelu}


def _gb_per_s(row: Row, _: Rows) -> float:
    return row["gb_per_s"]


class Arrays:
    """Pinned arrays, the same input on the GPU, and what ops make of it there."""

    def __init__(self, size: int) -> None:
        self.shape = (size // 4 // COLUMNS, COLUMNS)
        self.on_device = torch.randn(self.shape, device="cuda")
        self.source = torch.empty(self.shape, pin_memory=True)
        self.source.copy_(self.on_device)
        self.target = torch.zeros(self.shape, pin_memory=True)
        self.spoiled = torch.full((64 * MIB // 4,), torch.nan, device="cuda")

    def spoil(self, target: torch.Tensor) -> None:
        """Leaves nothing right in an output."""
        for part in target.view(-1).split(self.spoiled.numel()):
            part.copy_(self.spoiled[: part.numel()])

    def provider(
        self,
        fn: Callable[..., torch.Tensor],
        backend: str,
        source: Any = None,
        target: Any = None,
        **options: Any,
    ) -> Provider:
        """stream_map, from pinned memory to pinned memory by default."""
        source = self.source if source is None else source
        target = self.target if target is None else target

        def call() -> None:
            diglot.stream_map(fn, source, out=target, backend=backend, **options)

        def is_right() -> bool:
            whole = self.is_result(fn, backend, target)
            self.spoil(target)
            return whole

        return Provider(call, None, is_right)

    def is_result(self, fn: Callable[..., torch.Tensor], backend: str, found: torch.Tensor) -> bool:
        """Whether it is, bit by bit, what the op makes of the whole array at once."""
        exact = fn(self.on_device[: len(found)], backend=backend)
        parts = zip(found.split(1 << 16), exact.split(1 << 16), strict=True)
        return all(torch.equal(f.cuda().view(torch.int32), e.view(torch.int32)) for f, e in parts)


def _copies(arrays: Arrays, devices: Any = "cuda") -> transfer.Copies:
    source, target = (a.view(-1).view(torch.uint8) for a in (arrays.source, arrays.target))
    return transfer.Copies(devices, source, target)


def pinned(arrays: Arrays, copies: transfer.Copies) -> Iterator[Workload]:
    """From pinned memory to pinned memory: hw7, with its serial form, and gelu."""
    arrays.spoil(arrays.target)
    size = arrays.source.nbytes
    duplex = bar("share of the duplex ceiling", faster_than("copies"), 0.97)
    for name, fn in OPS.items():
        providers = {"copies": Provider(copies.run)}
        providers |= {backend: arrays.provider(fn, backend) for backend in OURS}
        bars = [duplex]
        if name == "hw7":
            for backend in OURS:

                def serial(backend: str = backend, fn: Any = fn) -> None:
                    chunk = arrays.source.to("cuda", non_blocking=True)
                    arrays.target.copy_(fn(chunk, backend=backend), non_blocking=True)
                    torch.cuda.synchronize()

                providers[f"serial {backend}"] = Provider(serial)
            bars.append(bar("speed over the serial form", faster_than("serial"), 1.75))
        yield Workload(f"pinned, {name}", size, 5, providers, bars)


def pageable(arrays: Arrays) -> Iterator[Workload]:
    """From ordinary memory to ordinary memory, which was touched before."""
    fn = OPS["hw7"]
    source, target = torch.empty(arrays.shape), torch.empty(arrays.shape)
    threads = len(os.sched_getaffinity(0))
    for to in (source, target):
        transfer.copy_host(_bytes(arrays.source.numpy()), _bytes(to.numpy()), threads)

    def plain() -> None:
        fn(source.to("cuda"), backend="cuda").cpu()

    providers = {b: arrays.provider(fn, b, source, target) for b in OURS}
    bars = [
        bar("GB/s each way", _gb_per_s, 18.0),
        bar("speed over .to, op, .cpu", faster_than("plain"), 4.0),
    ]
    yield Workload("pageable, hw7", source.nbytes, 3, {**providers, "plain": Provider(plain)}, bars)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def folder_with_room(size: int) -> tuple[Path, str]:
    """A folder with room for a number of bytes, memory's if there is one; and its file system."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for name in ("/dev/shm", tempfile.gettempdir(), Path.cwd()):
        folder = Path(name).resolve()
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            continue
        status = os.statvfs(folder)
        if status.f_bavail * status.f_frsize < size:
            continue
        of = [m for m in mounts if folder == Path(m[1]) or Path(m[1]) in folder.parents]
        return folder, max(of, key=lambda m: len(m[1]))[2] if of else "unknown"
    raise RuntimeError(f"no folder has room for {size:,} bytes of maps")


@contextmanager
def mapped(arrays: Arrays, size: int) -> Iterator[tuple[list[Workload], str]]:
    """From a map of a .npy file, in the page cache, to a map of another file. That is new for each
    call, or always the same one. Its pages are in the page cache, and not yet in the map.
    """
    place, file_system = folder_with_room(3 * size)
    rows = size // 4 // COLUMNS
    fn = OPS["hw7"]
    with tempfile.TemporaryDirectory(dir=place, prefix="diglot-bench-") as name:
        folder = Path(name)
        np.save(folder / "in.npy", arrays.source[:rows].numpy())
        source = np.load(folder / "in.npy", mmap_mode="r")
        held: dict[str, np.ndarray] = {}

        def new() -> np.ndarray:
            held.clear()
            (folder / "out.npy").unlink(missing_ok=True)
            held["out"] = np.lib.format.open_memmap(
                folder / "out.npy", "w+", np.float32, (rows, COLUMNS)
            )
            return held["out"]

        def again() -> np.ndarray:
            # A map of its own for each call: of one that was written or read before, some pages
            # are the process's, as the call before has left them.
            held["out"] = np.load(folder / "out.npy", mmap_mode="r+")
            return held["out"]

        def is_right(backend: str) -> bool:
            whole = arrays.is_result(fn, backend, torch.from_numpy(held["out"]))
            held["out"][::64] = np.nan  # in every chunk
            return whole

        def stream(backend: str) -> None:
            diglot.stream_map(fn, source, out=held["out"], backend=backend)

        def workload(name: str, target: Callable[[], np.ndarray]) -> Workload:
            _, threads = transfer.host_ceiling(
                _bytes(source), lambda: _bytes(target()), 1, HOST_THREADS
            )

            def copy() -> None:
                transfer.copy_host(_bytes(source), _bytes(held["out"]), threads)

            providers = {"map copy": Provider(copy, target)}
            for backend in OURS:
                check = functools.partial(is_right, backend)
                providers[backend] = Provider(functools.partial(stream, backend), target, check)
            bars = [bar("share of a parallel copy of maps", faster_than("map copy"), 0.8)]
            return Workload(name, size, 3, providers, bars, {"copy threads": threads})

        new()
        yield (
            [workload("maps, new file", new), workload("maps, file there", again)],
            f"{file_system} at {place}",
        )


def compute_bound(arrays: Arrays, size: int, duplex: float) -> Iterator[Workload]:
    """A kernel that takes five times as long as the copies, for each backend of its own."""
    rows = size // 4 // COLUMNS
    on_device = arrays.on_device[:rows]
    source, target = arrays.source[:rows], arrays.target[:rows]
    providers, terms_of = {}, {}
    for backend in OURS:

        def alone(terms: int, backend: str = backend) -> None:
            OPS["hw7"](on_device, terms=terms, backend=backend)
            torch.cuda.synchronize()

        def seconds(terms: int, alone: Callable[[int], None] = alone) -> float:
            alone(terms)
            return statistics.median(once(Provider(lambda: alone(terms))) for _ in range(3))

        few, many = 256, 1024
        slope = (seconds(many) - seconds(few)) / (many - few)
        terms = max(1, round(COMPUTE_OVER_COPY * size / duplex / 1e9 / slope))
        terms_of[f"terms {backend}"] = terms
        fn = functools.partial(OPS["hw7"], terms=terms)
        providers[backend] = arrays.provider(fn, backend, source, target)
        providers[f"compute {backend}"] = Provider(functools.partial(alone, terms))
    bars = [bar("share of compute alone", faster_than("compute"), 0.97)]
    yield Workload("compute-bound, hw7", size, 3, providers, bars, terms_of)


def several_gpus(arrays: Arrays) -> Iterator[Workload]:
    """Two GPUs, where there are two, from and to the same pinned memory."""
    if torch.cuda.device_count() < 2:
        return
    devices = [0, 1]
    copies = _copies(arrays, devices)
    arrays.spoil(arrays.target)
    providers = {"copies": Provider(copies.run)}
    providers |= {b: arrays.provider(OPS["hw7"], b, devices=devices) for b in OURS}
    bars = [bar("share of both GPUs' duplex ceiling", faster_than("copies"), 0.95)]
    yield Workload("2 GPUs, pinned, hw7", arrays.source.nbytes, 5, providers, bars)


def run(folder: Path | None = None, size: int = 4 * GIB) -> Path:
    """Measures; writes stream_map.json and, beside it in stream_map/, reports; charts.

    Args:
        folder: where all of it goes; by default bench/results/<gpu>, and charts to docs/images.
        size: bytes of the largest arrays.

    Raises:
        RuntimeError: there is no GPU, or kernels are interpreted.
    """
    measure.check()
    results = folder or RESULTS / gpu_short_name(torch.cuda.get_device_name())
    charts = folder or (ROOT or Path.cwd()) / "docs/images"
    beside = results / "stream_map"
    for path in (charts, beside):
        path.mkdir(parents=True, exist_ok=True)
    reports: dict[tuple[str, str], PipelineReport] = {}
    rows: list[Row] = []
    began = time.perf_counter()

    arrays = Arrays(size)
    copies = _copies(arrays)
    ceiling = transfer.duplex(copies)
    print(f"ceilings, GB/s: {ceiling}", flush=True)
    for workload in pinned(arrays, copies):
        rows += measured(workload, reports)
    for workload in compute_bound(arrays, size // COMPUTE_SHARE, ceiling.both):
        rows += measured(workload, reports)
    for workload in several_gpus(arrays):
        rows += measured(workload, reports)
    for workload in pageable(arrays):
        rows += measured(workload, reports)
    facts: dict[str, Any] = {"ceilings_gb_per_s": dataclasses.asdict(ceiling)}
    try:
        with mapped(arrays, size // MAPPED_SHARE) as (workloads, place):
            facts["maps"] = place
            for workload in workloads:
                rows += measured(workload, reports)
    except RuntimeError as error:
        facts["maps"] = f"not measured: {error}"
        print(facts["maps"], flush=True)

    for (name, backend), report in reports.items():
        if name in KEPT:
            report.save(beside / f"{KEPT[name]}_{backend}.json", force=True)
            report.plot(charts / f"{KEPT[name]}_{backend}.png", force=True)
    facts["devices"] = torch.cuda.device_count()
    facts["processors"] = len(os.sched_getaffinity(0))
    print(f"stream_map: {time.perf_counter() - began:.0f} s", flush=True)
    return write_report("stream_map", rows, results, **facts)
