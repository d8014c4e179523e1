"""Random walks on a graph, in turns with passes over a large array: what L2 persistence gains.

    python examples/l2_persistence.py
    python examples/l2_persistence.py --hot-mb 16 32 --hit-ratio 0.5 1

Each step of a walk waits for the one before, so a walk takes as long as its loads do. From memory
they take twice as long as from the L2 cache. The graph would fit the cache, but each pass over the
array pushes it out; `diglot.l2.persist` keeps it there. A pass may take longer then, having less
cache, which is why both times are shown. It needs a GPU and Triton; docs/l2.md has an H200's
figures.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from diglot import l2

MB = 1 << 20
DEGREE = 32  # neighbours of a node, of 4 bytes: a node is one line of the cache
WALKS, STEPS = 256, 200


@triton.jit
def walk_kernel(neighbours, ends, steps, DEGREE: tl.constexpr):  # noqa: ANN001, ANN201
    walk = tl.program_id(0)
    node = walk
    for step in range(steps):
        node = tl.load(neighbours + node * DEGREE + (walk + step) % DEGREE)
    tl.store(ends + walk, node)


@dataclass(frozen=True)
class Problem:
    """A graph to walk on, and an array to pass over.

    Attributes:
        neighbours: (nodes, 32) of int32. Step s of walk w takes the edge (w + s) % 32.
        ends: (256,) of int32, where walks end. Walk w begins at node w.
        source: float32, read by a pass.
        target: written by it: twice the source.
    """

    neighbours: torch.Tensor
    ends: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor

    @staticmethod
    def random(graph_bytes: int, pass_bytes: int) -> Problem:
        """Random edges; a pass reads half of `pass_bytes` and writes the other half."""
        nodes = graph_bytes // (4 * DEGREE)
        source = torch.randn(pass_bytes // 8, device="cuda")
        return Problem(
            torch.randint(nodes, (nodes, DEGREE), dtype=torch.int32, device="cuda"),
            torch.empty(WALKS, dtype=torch.int32, device="cuda"),
            source,
            torch.empty_like(source),
        )

    def walk(self) -> None:
        walk_kernel[(WALKS,)](self.neighbours, self.ends, STEPS, DEGREE, num_warps=1)

    def stream(self) -> None:
        torch.mul(self.source, 2, out=self.target)

    def is_right(self) -> bool:
        """Whether `ends` and `target` are what PyTorch computes step by step."""
        walk = torch.arange(WALKS, device=self.ends.device)
        node = walk
        for step in range(STEPS):
            node = self.neighbours[node, (walk + step) % DEGREE]
        doubled = self.source + self.source
        return torch.equal(node.int(), self.ends) and torch.equal(doubled, self.target)


def times_us(
    hot: torch.Tensor, work: Sequence[Callable[[], None]], hit_ratio: float | None, turns: int
) -> list[list[float]]:
    """Device times of several pieces of work, done in turns while `hot` persists.

    Nothing persists at the beginning, and the cache holds other data. Then `hot` is read once, as
    the work alone may touch little of it, and two turns that are not counted follow.

    Args:
        hot: the tensor to persist.
        work: functions that enqueue work on the current stream.
        hit_ratio: of `diglot.l2.persist`; where it is None nothing persists.
        turns: how many are counted.

    Returns:
        For each turn, the time of each piece in microseconds.
    """
    other = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    before = l2.info().set_aside
    marks = [
        [torch.cuda.Event(enable_timing=True) for _ in range(len(work) + 1)]
        for _ in range(turns + 2)
    ]
    with contextlib.nullcontext() if hit_ratio is None else l2.persist(hot, hit_ratio):
        other.zero_()  # it takes long enough for the host to run ahead
        hot.sum()
        for begun, *ended in marks:
            begun.record()
            for piece, end in zip(work, ended, strict=True):
                piece()
                end.record()
    torch.cuda.synchronize()
    while l2.info().set_aside != before:  # a thread gives it back
        time.sleep(0.001)
    return [
        [1e3 * marks[i].elapsed_time(marks[i + 1]) for i in range(len(work))] for marks in marks[2:]
    ]


def main() -> None:
    """Prints a line for each size of the graph and each hit ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hot-mb", type=int, nargs="+", default=[8, 16, 24, 32], metavar="MB")
    parser.add_argument("--hit-ratio", type=float, nargs="+", default=[0.5, 1.0], metavar="RATIO")
    parser.add_argument("--pass-mb", type=int, default=128, help="read and written by a pass")
    parser.add_argument("--rounds", type=int, default=10, help="times each is measured")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU, and what a cache gains is measured on one")

    info = l2.info()
    print(f"{torch.cuda.get_device_name()}: {info.size / MB:.0f} MB of L2 cache, of which up to")
    print(f"{info.largest_set_aside / MB:.1f} MB can be set aside. Device times in µs:")
    print("graph  hit ratio    walks     pass   speed of both")
    for size in arguments.hot_mb:
        problem = Problem.random(size * MB, arguments.pass_mb * MB)
        problem.stream()
        problem.walk()
        if not problem.is_right():
            sys.exit("the result is wrong")
        samples: dict[float | None, list[list[float]]] = {
            ratio: [] for ratio in (None, *arguments.hit_ratio)
        }
        for _ in range(arguments.rounds):
            for ratio, times in samples.items():
                work = (problem.stream, problem.walk)
                times += times_us(problem.neighbours, work, ratio, 5)
        without = statistics.median(map(sum, samples[None]))
        for ratio, times in samples.items():
            streamed, walked = (statistics.median(part) for part in zip(*times, strict=True))
            speed = without / statistics.median(map(sum, times))
            name = "none" if ratio is None else f"{ratio:g}"
            line = f"{size:2} MB  {name:>9}  {walked:7.1f}  {streamed:7.1f}   {speed:.2f}x"
            print(line, flush=True)


if __name__ == "__main__":
    main()
