"""Lessons on a GPU: what they say of time is so."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from lessons import load

from diglot.tools import measure


@pytest.mark.gpu
@pytest.mark.alone
def test_timing_without_waiting_is_wrong(monkeypatch):
    timing = load("timing", monkeypatch)
    a, b = torch.randn(2, timing.SIZE, timing.SIZE, device="cuda", dtype=torch.bfloat16)
    times = timing.times_ms(lambda: a @ b)
    right = times["events on the GPU"]
    assert times["without waiting"] < right / 5
    assert times["waiting before and after"] == pytest.approx(right, rel=0.25)
    assert times["triton.testing.do_bench"] == pytest.approx(right, rel=0.25)


@pytest.mark.gpu
@pytest.mark.alone
def test_accesses_cost_what_their_addresses_say(monkeypatch):
    x = torch.randn(8192, 8192, device="cuda")
    out = torch.empty_like(x)
    access = load("memory_access", monkeypatch)
    for language in ("cuda", "triton"):
        near, far = (
            lambda s=stride, n=language: access.copy_strided(n, s, x, out) for stride in (1, 32)
        )
        times = measure.interleaved({"near": near, "far": far})
        assert times["far"].median_us > 1.5 * times["near"].median_us
    banks = load("bank_conflicts", monkeypatch)
    ways = {way: lambda w=way: banks.transpose(w, x, out) for way in banks.COLUMN}
    times = {name: of.median_us for name, of in measure.interleaved(ways).items()}
    assert times["rows of 33"] < times["rows of 32"]
    assert times["rows of 33"] < times["straight"]


@pytest.mark.gpu
@pytest.mark.alone
def test_spills_and_block_sizes_cost(monkeypatch):
    spilling = load("spilling", monkeypatch)
    a, b = torch.randn(2, spilling.ROWS, spilling.BLOCK, device="cuda")
    out = torch.empty_like(a)
    for language, free, capped in (("cuda", 1, 16), ("triton", None, 32)):
        run = partial(spilling.run, language, a=a, b=b, out=out)
        ways = {"free": partial(run, free), "capped": partial(run, capped)}
        times = measure.interleaved(ways)
        assert times["capped"].median_us > 1.2 * times["free"].median_us
    block_size = load("block_size", monkeypatch)
    x = torch.randn(block_size.ELEMENTS, device="cuda")
    out = torch.empty_like(x)
    sizes = {block: partial(block_size.run, "triton", block, 4, x, out) for block in (64, 1024)}
    times = measure.interleaved({str(block): run for block, run in sizes.items()})
    assert times["64"].median_us > times["1024"].median_us


@pytest.mark.gpu
def test_warps_and_blocks_stay(monkeypatch):
    places = load("hierarchy", monkeypatch).places_cuda()  # it asserts that none has moved
    multiprocessors = torch.cuda.get_device_properties().multi_processor_count
    assert len(places[:, 0, 0].unique()) <= multiprocessors


@pytest.mark.gpu
@pytest.mark.alone
def test_achieved_occupancy_follows_the_theory(monkeypatch):
    for table in load("occupancy", monkeypatch).main():
        for row in table.rows:
            assert row["theory"] / 2 < row["achieved"] <= row["theory"]
            assert row["most at once"] == row["warps"]


@pytest.mark.gpu
@pytest.mark.alone
def test_reading_again_past_l1_costs(monkeypatch):
    past = load("past_l1", monkeypatch)
    x = torch.rand(past.BLOCKS, past.WINDOW, device="cuda")
    for language in ("cuda", "triton"):
        ways = {m: partial(past.sums, language, m, 64, x) for m in past.CHANGES.values()}
        times = measure.interleaved(ways)
        assert times[".cg"].median_us > 1.2 * times[".ca"].median_us


@pytest.mark.gpu
def test_an_autotuner_times_new_keys_alone(monkeypatch):
    """Once for each length, however often that comes."""
    autotune = load("autotune", monkeypatch)
    tuned, timed = autotune.make_tuned(), []
    real = tuned._bench
    monkeypatch.setattr(tuned, "_bench", lambda *a, **k: timed.append(k) or real(*a, **k))
    for n, new in ((4096, 3), (4096, 0), (1 << 20, 3), (4096, 0)):
        timed.clear()
        autotune.first_and_second_call_ms(tuned, n)
        assert len(timed) == new
    assert len(tuned.cache) == 2 and tuned.best_config in autotune.CONFIGS
