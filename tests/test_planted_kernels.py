"""What kernels rely on: the same on a GPU and in the interpreter, by kernels that assert it."""

from __future__ import annotations

import ctypes

import pytest
import torch
from backends import DEVICE, NEEDS_CUDA, assert_close
from planted.library import BLOCKS, THREADS, build_for_gpu, build_interpreted, find_nvcc, runner

pytestmark = NEEDS_CUDA


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    if DEVICE == "cpu":
        return runner(build_interpreted())
    if find_nvcc() is None:
        pytest.skip("no nvcc")
    return runner(build_for_gpu(tmp_path_factory.mktemp("planted")))


SUMS = torch.arange(BLOCKS * THREADS, dtype=torch.float32).view(BLOCKS, THREADS).sum(1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kernel", ["sum_in_shared", "sum_by_shuffles"])
def test_right_kernels_run(run, kernel, seed):
    message, out = run(kernel, seed=seed)
    assert message == ""
    assert torch.equal(out, SUMS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel", ["votes", "shuffles", "atomics", "wait_for_two_words", "forms"])
def test_what_a_gpu_gives(run, kernel, seed):
    """The kernels assert it."""
    message, out = run(kernel, seed=seed, shared=64)
    assert message == ""
    assert torch.equal(out, torch.ones(BLOCKS))


@pytest.mark.parametrize("seed", range(3))
def test_blocks_of_a_cluster_read_each_other(run, seed):
    message, out = run("sum_in_cluster", blocks=8, cluster=2, seed=seed)
    assert message == ""
    values = torch.arange(8 * THREADS, dtype=torch.float32).view(4, 2 * THREADS)
    assert torch.equal(out, values.sum(1).repeat_interleave(2))


def test_dynamic_shared_memory(run):
    message, out = run("sum_in_dynamic", shared=4 * THREADS)
    assert message == ""
    assert torch.equal(out, SUMS)


EDGES = [0.0, 1.0, 65504.0, 65519.99, 65520.0, 3.3895314e38, 3.4e38, 2**-24, 2**-25, 1.5 * 2**-25]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_to_16_bits(run, dtype):
    """To nearest even, subnormal numbers kept, as PyTorch does it."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31, (3000,), generator=generator, dtype=torch.int64)
    small = torch.randn(1000, generator=generator) * 2.0**-20
    every = torch.arange(-(2**15), 2**15, 16, dtype=torch.int32).to(torch.int16).view(dtype).float()
    step = every.nextafter(torch.tensor(torch.inf))
    edges = torch.tensor([*EDGES, torch.inf, torch.nan])
    values = torch.cat([random.to(torch.int32).view(torch.float32), small, every, step, edges])
    halfway = (every[1:-1] + every[2:]) / 2  # ties, and NaN
    values = torch.cat([values, -values, halfway])
    kernel = "round_to_half" if dtype == torch.float16 else "round_to_bfloat16"
    message, out = run(kernel, values=values, blocks=len(values), threads=1, races=False)
    assert message == ""
    torch.testing.assert_close(out, values.to(dtype).float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.signbit() | out.isnan(), values.signbit() | out.isnan())


# The errors that CUDA's programming guide documents, and where.
FAST = {
    "fast_exponential": (torch.linspace(-80, 80, 999), torch.exp, 2.0 + 1.173 * 80),
    "fast_sine": (torch.linspace(-3.14, 3.14, 999), torch.sin, None),
    "fast_quotient": (torch.linspace(1e-3, 1e3, 999), torch.reciprocal, 2.0),
}


@pytest.mark.parametrize("kernel", FAST)
def test_fast_functions(run, kernel):
    values, function, ulp = FAST[kernel]
    message, out = run(kernel, values=values, blocks=len(values), threads=1, races=False)
    assert message == ""
    oracle = function(values.double())
    if ulp is None:
        assert (out - oracle).abs().max() <= 2**-21.41
    else:
        assert_close(out, oracle, ulp)


def test_printf(run, capfd):
    assert run("print", blocks=2)[0] == ""
    ctypes.CDLL(None).fflush(None)
    assert sorted(capfd.readouterr().out.splitlines()) == ["block 0 says 2", "block 1 says 2"]


def test_a_slow_block_is_waited_for(run):
    """Longer than blocks that all do nothing but wait would be."""
    message, out = run("wait_for_slow_block", blocks=16, threads=32, cooperative=True)
    assert message == ""
    assert out[0] == 15


@pytest.mark.parametrize("seed", range(3))
def test_a_cooperative_launch_runs_all_blocks_at_once(run, seed):
    message, out = run("wait_for_blocks", blocks=64, cooperative=True, seed=seed, patience_ms=10000)
    assert message == ""
    assert out[0] == 63


def test_lanes_are_scheduled_one_by_one(run):
    message, out = run("wait_for_lane")
    assert message == ""
    assert torch.equal(out, torch.ones(BLOCKS))


def test_lanes_of_a_warp_are_ordered_by_its_barrier(run):
    assert run("ordered_in_warp")[0] == ""


def test_a_dropped_warp_is_a_wrong_sum(run):
    message, out = run("dropped_warp")
    assert message == ""
    assert not torch.equal(out, SUMS)


@pytest.mark.parametrize("seed", range(3))
def test_grid_barrier(run, seed):
    """One word serves launches of different grids, one after the other, without a reset."""
    for blocks in (64, 7, 1, 33):
        message, out = run("cross_grid_barriers", blocks=blocks, **COOPERATIVE, seed=seed)
        assert message == ""
        assert torch.equal(out, torch.zeros(blocks))


COOPERATIVE = {"cooperative": True, "threads": 64, "races": False, "patience_ms": 10000}


def test_a_grid_that_is_too_large(run):
    message, _ = run("cross_grid_barriers", blocks=100_000, **COOPERATIVE)
    assert "cross_grid_barriers" in message
    assert "100000" in message
    assert "at once" in message
    assert run("cross_grid_barriers", **COOPERATIVE)[0] == ""
