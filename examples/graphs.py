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
from typing import NamedTuple

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


def make_branches() -> dict[str, graphs.GraphedCallable]:
    """The same work in a chain, and in two branches that are forked and joined."""
    side = torch.cuda.Stream()

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

    x = torch.randn(1 << 16, device="cuda")
    made = {each.__name__: graphs.capture(each, x) for each in (one_after_the_other, side_by_side)}
    assert [graphs.inspect(graphed).width for graphed in made.values()] == [1, 2]
    assert torch.equal(*[graphed(x) for graphed in made.values()])
    return made


def branches(folder: Path | None) -> str:
    """Work of two streams, forked and joined in one graph, runs at the same time."""
    captured = make_branches().values()
    shapes = [graphs.inspect(graphed) for graphed in captured]
    times = [device_us(lambda g=graphed: g(*g.inputs)) for graphed in captured]  # type: ignore[misc]
    if folder is not None:
        shapes[1].save(folder / "branches.svg")
    return (
        f"branches: {len(shapes[0].nodes)} nodes in a chain of {shapes[0].depth} took "
        f"{times[0]:.1f} µs, and in two branches, {shapes[1].depth} deep, {times[1]:.1f} µs"
    )


Spans = list[tuple[float, float]]  # when something begins and ends, in ms


def prepare_and_replay(batches: int, waits: bool) -> tuple[Spans, Spans]:
    """When the host prepares batches, and when they are replayed.

    Args:
        waits: whether the host waits for each replay before it prepares the next batch.
    """
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
    for batch in range(batches):
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
        if waits:
            end.synchronize()
    torch.cuda.synchronize()
    return host, [(origin.elapsed_time(begin), origin.elapsed_time(end)) for begin, end in marks]


def overlap(host: Spans, device: Spans) -> float:
    """For how long the host prepares a batch while the one before is replayed, in ms."""
    return sum(
        max(0.0, min(h[1], d[1]) - max(h[0], d[0]))
        for h, d in zip(host[1:], device[:-1], strict=True)
    )


def the_next_batch(folder: Path | None) -> str:
    """The host prepares the next batch while a replay runs."""
    (_, waiting), (host, device) = (prepare_and_replay(6, waits) for waits in (True, False))
    if folder is not None:
        _draw_timeline({"host prepares": host, "replay": device}, folder / "timeline.svg")
    return (
        f"the next batch: six batches took {waiting[-1][1]:.2f} ms one after the other, and "
        f"{device[-1][1]:.2f} ms where the host prepares the next one during a replay, for "
        f"{overlap(host, device):.2f} ms of it"
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


class Shared(NamedTuple):
    """Two graphs in one pool, and two of the same function in two pools.

    Attributes:
        addresses: of the results of the first two.
        together, apart: what the pools reserve, in bytes.
    """

    addresses: list[int]
    together: int
    apart: int


def share_memory() -> Shared:
    """Graphs of a pool have the same addresses, since their lives do not overlap."""
    x = torch.randn(1 << 20, device="cuda")

    def chain(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin().cos() + 1

    pool = graphs.Pool("cuda")
    shared = [graphs.capture(chain, x, pool=pool) for _ in range(2)]
    results = [graphed(x) for graphed in shared]
    apart = [graphs.capture(chain, x) for _ in range(2)]
    found = Shared(
        [result.data_ptr() for result in results],
        pool.bytes,
        sum(graphed.pool.bytes for graphed in apart),
    )
    assert found.addresses[0] == found.addresses[1], found
    assert found.together < found.apart, found
    return found


def shared_memory(folder: Path | None) -> str:
    """What graphs of one pool reserve, beside graphs of pools of their own."""
    found = share_memory()
    return (
        f"shared memory: two graphs reserve {found.together / 2**20:.0f} MiB in one pool and "
        f"{found.apart / 2**20:.0f} MiB in two; both results are at {hex(found.addresses[0])}"
    )


class _UpdateResult(ctypes.Structure):  # CUgraphExecUpdateResultInfo
    _fields_ = (
        ("result", ctypes.c_int),
        ("node", ctypes.c_void_p),
        ("from_node", ctypes.c_void_p),
    )


def update_times(nodes: int, rounds: int = 20) -> tuple[list[float], list[float]]:
    """What the host takes to make a graph executable, and to update it; in µs, round by round.

    The update brings another number to each kernel. One with a further node must be refused.
    """
    x = torch.ones(1 << 10, device="cuda")

    def captured(factor: float, nodes: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            for _ in range(nodes):
                x.mul_(factor)
        return graph

    def handle(graph: torch.cuda.CUDAGraph) -> ctypes.c_void_p:
        return ctypes.c_void_p(graph.raw_cuda_graph())

    def update(executable: ctypes.c_void_p, graph: torch.cuda.CUDAGraph) -> int:
        answer = ctypes.byref(_UpdateResult())
        return driver().cuGraphExecUpdate_v2(executable, handle(graph), answer)

    twice, thrice, longer = captured(2, nodes), captured(3, nodes), captured(2, nodes + 1)
    made, updated = [], []
    for _ in range(rounds):
        executable = ctypes.c_void_p()
        began = time.perf_counter()
        status = driver().cuGraphInstantiateWithFlags(
            ctypes.byref(executable), handle(twice), ctypes.c_ulonglong(0)
        )
        made.append(1e6 * (time.perf_counter() - began))
        check_driver(status, "making a graph executable")
        began = time.perf_counter()
        status = update(executable, thrice)
        updated.append(1e6 * (time.perf_counter() - began))
        check_driver(status, "updating an executable graph")
        refused = update(executable, longer)
        assert refused == UPDATE_REFUSED, refused
        status = driver().cuGraphExecDestroy(executable)
        check_driver(status, "destroying an executable graph")
    return made, updated


def an_update(folder: Path | None) -> str:
    """An executable graph takes other numbers and addresses, and no other topology."""
    made, updated = map(statistics.median, update_times(50))
    return (
        f"an update: 50 nodes took {made:.0f} µs to make executable, and {updated:.0f} µs to "
        f"update with another number; a 51st node was refused (CUDA error {UPDATE_REFUSED})"
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
