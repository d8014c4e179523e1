"""A GPU works behind the host's back: timing that does not wait for it, and timing that does.

    python examples/lessons/timing.py

The same matrix product is timed in five ways. A rate above what the GPU can do is the sign of a
time that was not waited for. Needs a GPU: only a GPU works behind the host's back.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from lesson import ON_GPU, Table, show

# isort: split
import torch

SIZE = 8192  # a product that takes the GPU much longer than the host takes to ask for it


def without_waiting(function: Callable[[], object], trials: int = 3) -> float:
    """Milliseconds, wrong: until the work is enqueued, not until it is done."""
    torch.cuda.synchronize()
    times = []
    for _ in range(trials):
        begin = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - begin))
    torch.cuda.synchronize()
    return statistics.mean(times)


def with_waiting(function: Callable[[], object], trials: int = 3) -> float:
    """Milliseconds, the mean of trials after a first call; the GPU idle before, and done after."""
    function()
    torch.cuda.synchronize()
    times = []
    for _ in range(trials):
        begin = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.mean(times)


def first_call(function: Callable[[], object]) -> float:
    """Milliseconds of a call that loads and allocates what later ones find."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def by_events(function: Callable[[], object]) -> float:
    """Milliseconds, the median by the GPU's own clock, with a cold L2 cache."""
    from diglot.tools import measure

    return measure.interleaved({"": function})[""].median_us / 1e3


def by_triton(function: Callable[[], object]) -> float:
    """Milliseconds, the median of `triton.testing.do_bench`."""
    from triton.testing import do_bench

    return do_bench(function, return_mode="median")


WAYS = {
    "the first call": first_call,
    "without waiting": without_waiting,
    "waiting before and after": with_waiting,
    "events on the GPU": by_events,
    "triton.testing.do_bench": by_triton,
}


def times_ms(function: Callable[[], object]) -> dict[str, float]:
    """The time of a function that enqueues work, in milliseconds, by each way."""
    return {name: way(function) for name, way in WAYS.items()}


def main() -> Iterator[Table]:
    """A row for each way."""
    if ON_GPU:
        a, b = torch.randn(2, SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
        rows = [
            {"timed by": name, "ms": ms, "TFLOP/s": 2e-9 * SIZE**3 / ms}
            for name, ms in times_ms(lambda: a @ b).items()
        ]
        yield Table(f"A product of {SIZE} x {SIZE} bfloat16 matrices", rows)


if __name__ == "__main__":
    show(main)
