"""CUDA graphs, shown rather than told: a training loop, branches, overlap, shared memory, updates.

    python examples/graphs.py
    python examples/graphs.py --save out

Each lesson captures something, replays it, asserts what must hold, and prints what it took here.
It needs a GPU. --save FOLDER writes graphs and a timeline as pictures (matplotlib draws them).
docs/graphs.md explains what the lessons show; examples/graphs_encoder.py serves and trains a
network.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import diglot
from diglot import graphs
from diglot.backends.driver import check_driver, driver

UPDATE_REFUSED = 910  # CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE


def device_us(function: Callable[[], object], calls: int = 50) -> float:
    """Median of the device's time for a call, in microseconds."""
    function()
    times = []
    for _ in range(calls):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times)


def a_training_loop(folder: Path | None) -> str:
    """Ten steps with dropout and clipping: weights are those of eager steps, bit by bit."""
    weights, seconds = [], []
    for is_graphed in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10)
        ).cuda()
        loss = nn.CrossEntropyLoss()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
        batches = [
            (torch.randn(64, 256, device="cuda"), torch.randint(10, (64,), device="cuda"))
            for _ in range(10)
        ]

        def eager_step(
            inputs: torch.Tensor,
            targets: torch.Tensor,
            model: nn.Module = model,
            optimizer: torch.optim.Optimizer = optimizer,
            loss: nn.Module = loss,
        ) -> None:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            diglot.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        step: Callable[..., object] = eager_step
        if is_graphed:
            step = graphs.training_step(model, loss, optimizer, batches[0], max_norm=1.0)
        torch.manual_seed(1)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for batch in batches:
            step(*batch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *weights))
    return (
        f"a training loop: ten steps took {1e3 * seconds[0]:.2f} ms eagerly, the first ones, and "
        f"{1e3 * seconds[1]:.2f} ms as replays; the weights are equal, bit by bit"
    )


def branches(folder: Path | None) -> str:
    """Work of two streams, forked and joined in one graph, runs at the same time."""
    side = torch.cuda.Stream()
    x = torch.randn(1 << 16, device="cuda")

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = x.sin()
        return x

    def one_after_the_other(x: torch.Tensor) -> torch.Tensor:
        return chain(x) + chain(x + 1)

    def side_by_side(x: torch.Tensor) -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            other = chain(x + 1)
        one = chain(x)
        torch.cuda.current_stream().wait_stream(side)
        return one + other

    captured = [graphs.capture(function, x) for function in (one_after_the_other, side_by_side)]
    shapes = [graphs.inspect(graphed) for graphed in captured]
    assert [shape.width for shape in shapes] == [1, 2], shapes
    assert torch.equal(captured[0](x), captured[1](x))
    times = [device_us(lambda graphed=graphed: graphed(x)) for graphed in captured]  # type: ignore[misc]
    if folder is not None:
        shapes[1].save(folder / "branches.svg")
    return (
        f"branches: {len(shapes[0].nodes)} nodes in a chain of {shapes[0].depth} took "
        f"{times[0]:.1f} µs, and in two branches, {shapes[1].depth} deep, {times[1]:.1f} µs"
    )


def the_next_batch(folder: Path | None) -> str:
    """The host prepares the next batch while a replay runs."""
    x = torch.empty(1 << 20, device="cuda")

    def work(x: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = (x * 1.0001).sin()
        return x.sum()

    graphed = graphs.capture(work, x)
    (static,) = graphed.inputs
    pinned = [torch.empty(1 << 20, pin_memory=True) for _ in range(2)]
    done = [torch.cuda.Event() for _ in pinned]  # when the copy out of a pinned buffer is done
    origin = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    origin.record()
    start = time.perf_counter()
    host, marks = [], []
    for batch in range(6):
        slot = batch % 2
        done[slot].synchronize()
        began = time.perf_counter() - start
        pinned[slot].uniform_()  # the preparation
        host.append((1e3 * began, 1e3 * (time.perf_counter() - start)))
        static.copy_(pinned[slot], non_blocking=True)
        done[slot].record()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graphed(static)
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    device = [(origin.elapsed_time(begin), origin.elapsed_time(end)) for begin, end in marks]
    overlapped = sum(
        max(0.0, min(h[1], d[1]) - max(h[0], d[0]))
        for h, d in zip(host[1:], device[:-1], strict=True)
    )
    if folder is not None:
        _draw_timeline({"host prepares": host, "replay": device}, folder / "timeline.svg")
    alone = sum(end - begin for begin, end in (*host, *device))
    return (
        f"the next batch: six batches took {device[-1][1]:.2f} ms; preparation and replays take "
        f"{alone:.2f} ms, {overlapped:.2f} ms of it at the same time"
    )


def _draw_timeline(rows: dict[str, list[tuple[float, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2), layout="constrained")
    axes = figure.add_subplot()
    for row, (name, spans) in enumerate(rows.items()):
        axes.broken_barh([(b, e - b) for b, e in spans], (row - 0.4, 0.8), color=f"C{row}")
        for number, (begin, end) in enumerate(spans):
            axes.text((begin + end) / 2, row, str(number), ha="center", va="center", color="white")
        axes.text(0, row + 0.42, name, fontsize=8)
    axes.set_yticks([])
    axes.set_xlabel("ms")
    figure.savefig(path)


def shared_memory(folder: Path | None) -> str:
    """Graphs of a pool have the same addresses, since their lives do not overlap."""
    x = torch.randn(1 << 20, device="cuda")

    def chain(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin().cos() + 1

    pool = graphs.Pool("cuda")
    shared = [graphs.capture(chain, x, pool=pool) for _ in range(2)]
    results = [graphed(x) for graphed in shared]
    apart = [graphs.capture(chain, x) for _ in range(2)]
    both = pool.bytes
    alone = sum(graphed.pool.bytes for graphed in apart)
    addresses = [hex(result.data_ptr()) for result in results]
    assert addresses[0] == addresses[1], addresses
    assert both < alone, (both, alone)
    return (
        f"shared memory: two graphs reserve {both / 2**20:.0f} MiB in one pool and "
        f"{alone / 2**20:.0f} MiB in two; both results are at {addresses[0]}"
    )


class _UpdateResult(ctypes.Structure):  # CUgraphExecUpdateResultInfo
    _fields_ = (
        ("result", ctypes.c_int),
        ("node", ctypes.c_void_p),
        ("from_node", ctypes.c_void_p),
    )


def an_update(folder: Path | None) -> str:
    """An executable graph takes other numbers and addresses, and no other topology."""
    x = torch.ones(1 << 10, device="cuda")

    def captured(factor: float, nodes: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            for _ in range(nodes):
                x.mul_(factor)
        return graph

    def update(graph: torch.cuda.CUDAGraph) -> int:
        return driver().cuGraphExecUpdate_v2(
            executable, ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.byref(_UpdateResult())
        )

    twice, thrice, longer = captured(2, 50), captured(3, 50), captured(2, 51)
    executable = ctypes.c_void_p()
    began = time.perf_counter()
    status = driver().cuGraphInstantiateWithFlags(
        ctypes.byref(executable), ctypes.c_void_p(twice.raw_cuda_graph()), ctypes.c_ulonglong(0)
    )
    instantiated = time.perf_counter()
    check_driver(status, "making a graph executable")
    check_driver(update(thrice), "updating an executable graph")
    updated = time.perf_counter()
    refused = update(longer)
    assert refused == UPDATE_REFUSED, refused
    check_driver(driver().cuGraphExecDestroy(executable), "destroying an executable graph")
    return (
        f"an update: 50 nodes took {1e6 * (instantiated - began):.0f} µs to make executable, and "
        f"{1e6 * (updated - instantiated):.0f} µs to update with another number; a 51st node was "
        f"refused (CUDA error {refused})"
    )


LESSONS = (a_training_loop, branches, the_next_batch, shared_memory, an_update)


def main() -> None:
    """Prints a line for each lesson."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write pictures there")
    folder = parser.parse_args().save
    if not torch.cuda.is_available():
        sys.exit("there is no GPU, and CUDA graphs are a GPU's")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    print(torch.cuda.get_device_name())
    for lesson in LESSONS:
        print(lesson(folder), flush=True)


if __name__ == "__main__":
    main()
