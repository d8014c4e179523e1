"""The interpreter of CUDA kernels: each planted bug is found and named, right kernels run."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

import pytest
import torch
from backends import NOT_INTERPRETED, OPS, assert_close
from planted.library import BLOCKS, THREADS, Options, build_planted

import diglot
from diglot.backends.registry import INTERPRET, load_interpreter

pytestmark = pytest.mark.skipif(not INTERPRET, reason="DIGLOT_INTERPRET is not set")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(kernel): what went wrong, or "", and the results of its blocks."""
    library = ctypes.CDLL(str(build_planted(tmp_path_factory.mktemp("planted"))))
    library.run.restype = ctypes.c_char_p

    def run(
        kernel,
        *,
        values=None,
        blocks=BLOCKS,
        threads=THREADS,
        shared=0,
        cooperative=False,
        seed=0,
        races=True,
        patience_ms=200,
    ):
        if values is None:
            values = torch.arange(max(blocks, 1) * THREADS, dtype=torch.float32)
        out = torch.full((max(blocks, 1),), -1.0)
        message = library.run(
            kernel.encode(),
            ctypes.byref(Options(blocks, threads, shared, cooperative, seed, races, patience_ms)),
            ctypes.c_void_p(values.data_ptr()),
            ctypes.c_int64(values.numel()),
            ctypes.c_void_p(out.data_ptr()),
        )
        return message.decode(), out

    return run


SUMS = torch.arange(BLOCKS * THREADS, dtype=torch.float32).view(BLOCKS, THREADS).sum(1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kernel", ["sum_in_shared", "sum_by_shuffles"])
def test_right_kernels_run(run, kernel, seed):
    message, out = run(kernel, seed=seed)
    assert message == ""
    assert torch.equal(out, SUMS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel", ["votes", "shuffles", "atomics"])
def test_what_a_gpu_gives(run, kernel, seed):
    """The kernels assert it."""
    message, out = run(kernel, seed=seed)
    assert message == ""
    assert torch.equal(out, torch.ones(BLOCKS))


def test_dynamic_shared_memory(run):
    message, out = run("sum_in_dynamic", shared=4 * THREADS)
    assert message == ""
    assert torch.equal(out, SUMS)
    message, _ = run("sum_in_dynamic", shared=4 * THREADS - 4)
    assert "the block has 1020 bytes of dynamic shared memory" in message
    assert "4 bytes out of bounds are written" in message


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


@pytest.mark.parametrize("seed", range(3))
def test_a_cooperative_launch_runs_all_blocks_at_once(run, seed):
    message, out = run("wait_for_blocks", blocks=64, cooperative=True, seed=seed, patience_ms=10000)
    assert message == ""
    assert out[0] == 63


def test_other_launches_do_not(run):
    message, _ = run("wait_for_blocks", blocks=64)
    assert "wait in a loop that waits for memory" in message


def test_lanes_are_scheduled_one_by_one(run):
    message, out = run("wait_for_lane")
    assert message == ""
    assert torch.equal(out, torch.ones(BLOCKS))


def test_lanes_of_a_warp_are_ordered_by_its_barrier(run):
    assert run("ordered_in_warp")[0] == ""


# What the message must hold besides the kernel's name and the line of the source.
PLANTED = {
    # Which of the two is found first depends on the order of the threads.
    "missing_barrier": ["shared memory is read that no thread of the block has written"],
    "missing_barrier_in_loop": ["a race in shared memory", "with no barrier between"],
    "race_in_shared": ["a race in shared memory: it writes what thread"],
    "race_in_warp": ["shared memory"],
    "divergent_barrier": ["__syncthreads() while thread", "must reach the same barrier"],
    "missing_arrival": ["255 of its 256 threads", "wait in __syncthreads()", "1 have ended"],
    "off_by_one_read": ["4 bytes out of bounds are read, 0 bytes after a tensor of 4096 bytes"],
    "off_by_one_write": ["4 bytes out of bounds are written, 0 bytes after a tensor of 16 bytes"],
    "misaligned_vector": ["a misaligned access", "no multiple of 16 bytes"],
    "beyond_shared": ["index 256 out of bounds of an array of type 'float [256]'"],
    "absent_lane": ["__shfl_sync() from lane 20, which is not there"],
    "absent_lanes_of_mask": ["16 of its 256 threads", "wait in __shfl_down_sync()"],
    "failed_assertion": ["assertion 'threadIdx.x != 3' failed", "thread (3, 0, 0)"],
    "division_by_zero": ["an integer division by zero", "block (0, 0, 0), thread (0, 0, 0)"],
    "trap": ["__trap()", "thread (5, 0, 0)"],
    "spin_on_atomic": ["1 of its 256 threads", "wait in a loop that waits for memory"],
    "spin_on_volatile": ["256 of its 256 threads", "wait in a loop that waits for memory"],
    "wait_for_nobody": ["1 of its 256 threads", "wait in a loop that waits for memory"],
}


@pytest.mark.parametrize("kernel", PLANTED)
def test_planted_bugs_are_named(run, kernel):
    message, _ = run(kernel)
    names = {"missing_barrier": "sum_in_shared", "missing_barrier_in_loop": "sum_in_shared"}
    assert f"planted::{names.get(kernel, kernel)}" in message
    assert "block (" in message
    file = "vector_access.cuh:" if kernel == "misaligned_vector" else "planted/kernels.cu:"
    assert file in message
    for part in PLANTED[kernel]:
        assert part in message, message
    # The process lives, and runs the next kernel.
    assert run("sum_in_shared")[0] == ""


def test_stack_overflow(run):
    message, _ = run("stack_overflow")
    assert "planted::stack_overflow: block (" in message
    assert "thread (9, 0, 0): its stack of 65536 bytes overflows" in message
    assert run("sum_in_shared")[0] == ""


def test_a_dropped_warp_is_a_wrong_sum(run):
    message, out = run("dropped_warp")
    assert message == ""
    assert not torch.equal(out, SUMS)


def test_order_is_shuffled_and_repeatable(run):
    """The last of the threads that write one word wins: the order depends on the seed alone."""
    results = [run("race_in_shared", seed=seed, races=False)[1].tolist() for seed in range(6)]
    again = [run("race_in_shared", seed=seed, races=False)[1].tolist() for seed in range(6)]
    assert results == again
    assert len({tuple(result) for result in results}) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocks": 0}, "cudaErrorInvalidConfiguration"),
        ({"threads": 0}, "cudaErrorInvalidConfiguration"),
        ({"threads": 1025}, "a block has at most 1024"),
        ({"shared": 227 * 1024 + 1}, "a block has at most 232448"),
        ({"blocks": 65, "cooperative": True}, "64 blocks run at once"),
        ({"blocks": 17, "threads": 1024, "cooperative": True}, "16 blocks run at once"),
        ({"blocks": 9, "shared": 200 * 1024, "cooperative": True}, "8 blocks run at once"),
    ],
)
def test_launches_that_cuda_refuses(run, arguments, message):
    assert message in run("empty", **arguments)[0]


def test_the_largest_block_runs(run):
    assert run("empty", threads=1024)[0] == ""


def test_speed(run):
    """Bounds with room for a busy machine: measured, the first takes 0.2 s, the second 0.02 s."""
    x = torch.randn(1 << 20)
    diglot.gelu(x[:10], backend="cuda")
    begin = time.perf_counter()
    diglot.gelu(x, backend="cuda")
    assert time.perf_counter() - begin < 1.0
    run("sum_in_shared", blocks=64, races=False)
    begin = time.perf_counter()
    run("sum_in_shared", blocks=64, races=False)
    assert time.perf_counter() - begin < 0.05


def test_what_ran_is_interpreted():
    diglot.gelu(torch.randn(5), backend="cuda")
    run = diglot.last_run()
    assert (run.backend, run.interpreted) == ("cuda", True)
    assert diglot.explain("gelu", "cpu").chosen == "torch"


def test_every_op_is_interpreted_in_both_languages():
    """Or is listed with a reason, and that is not forgotten there."""
    launchers, _ = load_interpreter()
    assert set(NOT_INTERPRETED) <= set(OPS)
    for op in OPS:
        reasons = diglot.explain(op, "cpu").reasons
        both_run = reasons["cuda"] is None and reasons["triton"] is None
        has_kernels = any(name.startswith(f"{op}_") for name in dir(launchers))
        assert (both_run and has_kernels) == (op not in NOT_INTERPRETED), op


def test_a_seed_that_is_none():
    code = "import torch, diglot; diglot.add(torch.ones(3), 1, backend='cuda')"
    environment = {**os.environ, "DIGLOT_INTERPRET_SEED": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert "ValueError: DIGLOT_INTERPRET_SEED must be an integer" in done.stderr
