"""What the benchmarks' instruments say on a GPU, beside PyTorch's, Triton's and plain events.

Other tests may use the GPU at the same time, and make a time longer. So each figure has some tries,
and their median counts where two timers should agree.
"""

from __future__ import annotations

import functools
import json
import statistics
import time

import pytest
import torch
import torch.nn.functional as F
from commands import run

import diglot
from diglot.bench import running
from diglot.bench.harness import Case
from diglot.bench.instruments import Instruments
from diglot.bench.selection import load
from diglot.tools import measure
from diglot.tools.measure import Timing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(bool(measure.why_not()), reason="nothing timed"),
]

TRIES = 8
AGREEMENT = 0.03


def tried(is_so):
    """Whether it is so in one of several tries."""
    return any(is_so() for _ in range(TRIES))


def agree(ours, other):
    """Whether two timers agree, by the median of several tries of one after the other."""
    ratios = [other() / ours() for _ in range(TRIES)]
    return abs(statistics.median(ratios) - 1) < AGREEMENT, ratios


@pytest.fixture
def gelu():
    x = torch.randn(16384, 8192, device="cuda")
    return functools.partial(diglot.gelu, x, backend="cuda")


def by_events(function):
    """The median of 30 calls, each between two events and after a large array is overwritten."""
    large = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(8):
            large.zero_()
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def by_do_bench(function):
    from triton.testing import do_bench

    return do_bench(function, return_mode="median") * 1e3


@pytest.mark.parametrize("other", [by_events, by_do_bench])
def test_times_agree(other):
    """Of an op that memory alone limits. Timers leave a GPU in between calls in different ways,
    which changes its clock. gelu's time depends on the clock: on one machine by 3 %, on others by
    less.
    """
    x, y = torch.randn(2, 16384, 8192, device="cuda")
    add = functools.partial(diglot.add, x, y, backend="cuda")
    found, ratios = agree(
        lambda: measure.interleaved({"add": add})["add"].median_us, lambda: other(add)
    )
    assert found, ratios


def test_times_of_a_graph_agree(gelu):
    """Large calls, one after the other, take as long in a graph as in a stream."""

    def in_a_stream():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(20):
            torch.cuda._sleep(2_000_000)  # a millisecond, in which the host enqueues the calls
            start.record()
            for _ in range(measure.GRAPH_CALLS):
                gelu()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / measure.GRAPH_CALLS)
        return statistics.median(times)

    found, ratios = agree(lambda: measure.graphed({"gelu": gelu})["gelu"].median_us, in_a_stream)
    assert found, ratios


def test_warm_caches_are_faster():
    x = torch.randn(1 << 20, device="cuda")  # of 4 MB
    copy = functools.partial(torch.empty_like(x).copy_, x)

    def gain():
        cold, warm = (
            measure.interleaved({"copy": copy}, cold=cold)["copy"].median_us
            for cold in (True, False)
        )
        return cold / warm

    # Of several tries most: of equal times, as with caches that are not cold, half would be.
    ratios = [gain() for _ in range(TRIES)]
    assert statistics.median(ratios) > 1.03, ratios


def test_host_time_does_not_show():
    """Also where the host takes longer than the filler is at first; what waits is told."""
    x = torch.randn(1 << 20, device="cuda")
    slow = iter([0.0] * 5)

    def late():
        time.sleep(next(slow, 2e-3))
        return x + 1

    def waits():
        x.sum().item()
        return x + 1

    timings = measure.interleaved({"plain": lambda: x + 1, "late": late, "waits": waits})
    assert timings["late"].median_us < 1.5 * timings["plain"].median_us
    assert timings["late"].exposed < timings["late"].samples / 2
    assert timings["waits"].exposed == timings["waits"].samples


def test_a_slow_function_does_not_take_the_samples_of_others():
    small, large = torch.randn(1 << 12, device="cuda"), torch.randn(1 << 28, device="cuda")
    timings = measure.interleaved(
        {"small": lambda: small + 1, "large": lambda: [large + 1 for _ in range(8)]}, budget_ms=40
    )
    assert timings["large"].samples < 20 < timings["small"].samples


def test_launches():
    x = torch.randn(1024, 1024, device="cuda")
    assert measure.launches(lambda: F.gelu(x)) == 1
    for backend in ("cuda", "triton"):
        diglot.gelu(x, backend=backend)
        assert measure.launches(lambda b=backend: diglot.gelu(x, backend=b)) == 1
    assert measure.launches(lambda: 0.5 * x * (1 + torch.erf(x))) == 4
    for backend in ("cuda", "triton"):  # a seed is drawn by a kernel of its own
        for seed, count in ((None, 2), (torch.zeros((), dtype=torch.int64, device="cuda"), 1)):
            call = functools.partial(diglot.dropout, x, 0.1, seed=seed, backend=backend)
            call()
            assert measure.launches(call) == count


def test_peak_bytes():
    x = torch.randn(1 << 22, device="cuda")
    assert x.nbytes <= measure.peak_bytes(lambda: x + 1) < x.nbytes + (1 << 21)
    assert 2 * x.nbytes <= measure.peak_bytes(lambda: (x + 1) * 2) < 2 * x.nbytes + (2 << 21)
    assert measure.peak_bytes(lambda: x.add_(1)) == 0


def test_work_left_to_another_stream_is_found():
    x, side = torch.randn(1 << 28, device="cuda"), torch.cuda.Stream()

    def escapes():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.mul_(1.0)

    def joins():
        escapes()
        torch.cuda.current_stream().wait_stream(side)

    assert not measure.ends_in_stream(escapes)
    assert tried(lambda: measure.ends_in_stream(joins))


def test_unsynchronised_timing_is_refused():
    """The host's clock around calls that are not waited for sees launches alone."""

    def naive(calls, prepare):
        copy = measure.interleaved({"copy": calls["copy"]})
        found = {}
        for name in calls.keys() - {"copy"}:
            calls[name]()  # which has memory made for the result
            torch.cuda.synchronize()
            begin = time.perf_counter()
            calls[name]()
            us = (time.perf_counter() - begin) * 1e6
            found[name] = Timing(us, us, us, 1)
        return found | copy

    benchmark = load("gelu").benchmark
    case = Case("forward", torch.float32, (16384, 16384), {"approximate": "tanh"})
    instruments = Instruments(timers={"device": naive})
    (rows,) = running.run(benchmark, [case], only=["cuda", "torch"], instruments=instruments)
    assert [row["reason"].startswith("refused: ") for row in rows] == [True, True]


@pytest.mark.parametrize("op", ["gelu", "softmax", "rms_norm", "global_softmax"])
def test_all_figures_are_there(op, tmp_path):
    file = tmp_path / "a.json"
    result = run("bench", op, "--ranking", "--sizes", "2^20", "--dtype", "fp32", "--json", file)
    assert result.exit_code == 0, result.output
    report = json.loads(file.read_text())
    five = {"formula", "torch", "torch.compile", "triton", "cuda"}
    for row in report["rows"]:
        assert row["verified"] and row.get("reason") is None, row
        for figure in ("time_us", "share_of_copy", "host_us", "first_call_ms", "launches"):
            assert row[figure] > 0, figure
        assert row["peak_bytes"] is not None
        five.discard(row["provider"])
    assert not five and set(report["lines"][op]) >= {"formula", "torch", "torch.compile", "triton"}
    by = {(row["provider"], row["direction"]): row["launches"] for row in report["rows"]}
    assert by["formula", "forward"] > by["cuda", "forward"] == 1
