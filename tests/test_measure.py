"""The timers, on a simulated GPU: what they show is what a call takes there, and nothing else."""

from __future__ import annotations

import functools

import pytest
from simulated_gpu import BYTES_PER_US, SimulatedGpu

from diglot.tools import measure

MB = 1 << 20


@pytest.fixture
def gpu(monkeypatch):
    made = SimulatedGpu()
    made.install(monkeypatch)
    return made


def timers():
    """All that take the device's time."""
    return [
        measure.interleaved,
        functools.partial(measure.interleaved, cold=False),
        lambda functions: measure.interleaved(
            {n: measure.captured(f) for n, f in functions.items()}
        ),
        measure.graphed,
    ]


@pytest.mark.parametrize("timer", range(4), ids=["cold", "warm", "captured", "graphed"])
def test_a_time_is_that_of_the_call(gpu, timer):
    """From its start on the device to its end: not nothing, as where an end is before the call."""
    found = timers()[timer]({us: functools.partial(gpu.launch, us) for us in (3.0, 20.0, 5000.0)})
    for us, timing in found.items():
        assert timing.median_us == timing.p20_us == timing.p80_us == pytest.approx(us)
        assert timing.exposed == 0 and timing.samples >= 10


@pytest.mark.parametrize("host_us", [10, 390, 1500, 15_000])
@pytest.mark.parametrize("cold", [True, False])
def test_host_time_does_not_show(gpu, host_us, cold):
    """However long the host takes, as a formula of hundreds of launches or a peer's autotuner."""

    def call():
        gpu.compute(host_us)
        gpu.launch(20.0)

    timing = measure.interleaved({"": call}, cold=cold)[""]
    assert (timing.median_us, timing.p80_us) == pytest.approx((20, 20)) and timing.exposed == 0


def test_host_time_that_grows_does_not_show(gpu):
    """It is short while it is looked at, and then is longer; or now and then, as of a busy host."""
    calls = {"slower": 0, "at times": 0}

    def slower():
        calls["slower"] += 1
        gpu.compute(3000 if calls["slower"] > 5 else 5)
        gpu.launch(20.0)

    def at_times():
        calls["at times"] += 1
        gpu.compute(5 if calls["at times"] % 7 else 9000)
        gpu.launch(20.0)

    for timing in measure.interleaved({"slower": slower, "at times": at_times}).values():
        assert (timing.p20_us, timing.p80_us) == pytest.approx((20, 20)) and timing.exposed == 0


def test_many_launches_take_what_they_take(gpu):
    def call():
        for _ in range(300):
            gpu.launch(3.0, host_us=7.0)

    assert measure.interleaved({"": call})[""].median_us == pytest.approx(900)


def test_host_time_that_cannot_be_hidden_is_told(gpu):
    """Of a call that waits for the device, whose filler is not made longer for every sample."""

    def call():
        gpu.launch(20.0)
        gpu.synchronize()
        gpu.launch(20.0)

    timings = measure.interleaved({"": call, "other": functools.partial(gpu.launch, 20.0)})
    assert timings[""].exposed == timings[""].samples and timings["other"].exposed == 0
    assert timings[""].median_us > 40
    assert gpu.host_us < 1e6


@pytest.mark.parametrize("l2_bytes", [50 * MB, 300 * MB])
def test_a_cold_cache_is_cold(monkeypatch, l2_bytes):
    """A flush that does nothing, or overwrites a part, leaves the call's array where it is."""
    gpu = SimulatedGpu(l2_bytes)
    gpu.install(monkeypatch)
    size = l2_bytes // 8

    def call():
        gpu.launch(5.0, {"x": size})

    missed_us = 5 + size / BYTES_PER_US
    for functions in ({"": call}, {"": call, "other": call}):
        cold, warm = (measure.interleaved(functions, cold=cold)[""] for cold in (True, False))
        assert (cold.p20_us, cold.p80_us) == pytest.approx((missed_us, missed_us))
        assert (warm.p20_us, warm.p80_us) == pytest.approx((5, 5))
    assert measure.graphed({"": call})[""].median_us == pytest.approx(5)


@pytest.mark.parametrize("cold", [True, False])
def test_what_prepares_a_call_is_not_timed(gpu, cold):
    """It comes before each call, and before the cache is overwritten, where that is done."""
    order = []

    def prepare():
        order.append("prepare")
        gpu.launch(500.0, {"x": 8 * MB})

    def call():
        order.append("call")
        gpu.launch(20.0, {"x": 8 * MB})

    timing = measure.interleaved({"": call}, prepare=prepare, cold=cold)[""]
    assert timing.median_us == pytest.approx(20 + cold * 8 * MB / BYTES_PER_US)
    assert order == ["prepare", "call"] * (len(order) // 2)


def test_a_slow_function_does_not_take_the_samples_of_others(gpu):
    slow, fast = functools.partial(gpu.launch, 30_000.0), functools.partial(gpu.launch, 5.0)
    timings = measure.interleaved({"slow": slow, "fast": fast}, budget_ms=60)
    assert timings["slow"].samples == 10 and timings["fast"].samples > 100


def test_host_time_per_call(gpu):
    def call():
        gpu.compute(6.0)
        gpu.launch(1.0)

    assert measure.host({"": call})[""].median_us == pytest.approx(8.0)
