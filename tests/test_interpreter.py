"""The interpreter of CUDA kernels: each planted bug is found and named."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
from backends import NEEDS_CUDA, NOT_INTERPRETED, OPS
from planted.library import THREADS, build_interpreted, runner

import diglot
from diglot.backends.registry import INTERPRET, load_interpreter

pytestmark = [
    *NEEDS_CUDA,
    pytest.mark.skipif(not INTERPRET, reason="DIGLOT_INTERPRET is not set"),
]


@pytest.fixture(scope="module")
def run():
    return runner(build_interpreted())


# Parts of the message, beside the kernel's name and the line of the source.
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
    "odd_width": ["__shfl_sync() of a width that is no power of two up to 32"],
    "absent_lanes_of_mask": ["__shfl_down_sync() from lane 16, which is not there"],
    "beyond_shared_by_pointer": ["4 bytes out of bounds are written", "shared memory"],
    "copy_beyond": ["20 bytes out of bounds are written, across the end of a tensor"],
    "copy_constant_size_beyond": ["256 bytes out of bounds are written, across the end of a"],
    "set_constant_size_beyond": ["256 bytes out of bounds are written, across the end of a"],
    "set_shared_beyond": ["68 bytes out of bounds are written, across the end of shared memory"],
    "copy_huge": ["18446744073709551612 bytes out of bounds are read"],
    "least_by_minus_one": ["an integer division by zero, or of the least integer by -1"],
    "write_to_literal": ["1 bytes of a constant are written"],
    "write_to_table": ["8 bytes of a constant are written"],
    "copy_from_nowhere": ["memory is used that is not there, or that may only be read"],
    "write_to_input": ["4 bytes of a tensor that may only be read are written", "(9, 0, 0)"],
    "misaligned_atomic": ["a misaligned atomic operation"],
    "null_pointer": ["a null pointer is used"],
    "spin_in_vote": ["of its 256 threads", "wait in"],
    "spin_in_barrier": ["of its 256 threads", "wait in"],
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


def test_beyond_dynamic_shared_memory(run):
    message, _ = run("sum_in_dynamic", shared=4 * THREADS - 4)
    assert "the block has 1020 bytes of dynamic shared memory" in message
    assert "4 bytes out of bounds are written" in message


def test_a_plain_launch_does_not_run_all_blocks_at_once(run):
    message, _ = run("wait_for_blocks", blocks=64)
    assert "wait in a loop that waits for memory" in message


def test_a_dropped_arrival_at_a_grid_barrier(run):
    message, _ = run("drop_arrival", blocks=8, threads=64, cooperative=True)
    assert "1 of its 64 threads, thread (0, 0, 0) for one, wait in a loop" in message
    assert "grid_barrier.cuh:" in message


def test_stack_overflow(run):
    message, _ = run("stack_overflow")
    assert "planted::stack_overflow: block (" in message
    assert "thread (9, 0, 0): its stack of 65536 bytes overflows" in message
    assert "planted/kernels.cu:" in message
    assert run("sum_in_shared")[0] == ""


def test_a_recursion_that_looks_is_no_wait(run):
    message, _ = run("overflow_by_looks", patience_ms=0)
    assert "its stack of 65536 bytes overflows" in message


def test_a_thread_that_never_waits_is_ended(run):
    message, _ = run("never_ends", seconds=1)
    assert "planted::never_ends: block (" in message
    assert "it has not ended after 1 seconds" in message
    assert "planted/kernels.cu:" in message


def test_order_is_shuffled_and_repeatable(run):
    """The last of the threads that write one word wins: the order depends on the seed alone."""
    results = [run("race_in_shared", seed=seed, races=False)[1].tolist() for seed in range(6)]
    again = [run("race_in_shared", seed=seed, races=False)[1].tolist() for seed in range(6)]
    assert results == again
    assert len({tuple(result) for result in results}) > 1


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("cluster_without_a_block", "of a block that has ended: it leaves its cluster early"),
        ("beyond_cluster", "the shared memory of block 2 of a cluster of 2"),
    ],
)
def test_faults_in_a_cluster(run, kernel, message):
    said, _ = run(kernel, cluster=2)
    assert "planted::sum_in_cluster" in said and message in said, said
    assert run("sum_in_cluster", cluster=2)[0] == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocks": 0}, "cudaErrorInvalidConfiguration"),
        ({"threads": 0}, "cudaErrorInvalidConfiguration"),
        ({"threads": 1025}, "a block has at most 1024"),
        ({"shared": 227 * 1024 + 1}, "a block has at most 232448"),
        ({"blocks": 6, "cluster": 4}, "clusters of 4 blocks in a grid of (6, 1, 1)"),
        ({"blocks": 32, "cluster": 16}, "a cluster has at most 8"),
        ({"blocks": 65, "cooperative": True}, "64 blocks run at once"),
        ({"blocks": 17, "threads": 1024, "cooperative": True}, "16 blocks run at once"),
        ({"blocks": 9, "shared": 200 * 1024, "cooperative": True}, "8 blocks run at once"),
    ],
)
def test_launches_that_cuda_refuses(run, arguments, message):
    assert message in run("empty", **arguments)[0]


def test_the_largest_block_runs(run):
    assert run("empty", threads=1024)[0] == ""


def seconds(function) -> float:
    """The least of three calls, after one."""
    function()
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def test_speed(run):
    """Two idle cores take 0.04 s for the first and 0.01 s for the second."""
    x = torch.randn(1 << 20)
    assert seconds(lambda: diglot.gelu(x, backend="cuda")) < 1.0
    rows = torch.randn(64, 1000)
    _, sums = run("sum_rows", values=rows, blocks=64, races=False)
    torch.testing.assert_close(sums, rows.sum(1), rtol=1e-5, atol=1e-4)
    assert seconds(lambda: run("sum_rows", values=rows, blocks=64, races=False)) < 0.25


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
        has_kernels = any(f"{name}_".startswith(f"{op.rstrip('_')}_") for name in dir(launchers))
        assert (both_run and has_kernels) == (op not in NOT_INTERPRETED), op


def test_a_seed_that_is_none():
    code = "import torch, diglot; diglot.add(torch.ones(3), 1, backend='cuda')"
    environment = {**os.environ, "DIGLOT_INTERPRET_SEED": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert "ValueError: DIGLOT_INTERPRET_SEED must be an integer" in done.stderr


IN_PLACE = """
import torch, diglot
for elements in (4096, 100):  # as many as there are threads to load them, and fewer
    every_other = torch.ones(2 * elements)[::2]
    try:
        diglot.dropout(every_other, 0.5, True, True, backend="cuda")
        print("nothing")
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.slow
def test_the_race_for_a_value_that_nobody_uses():
    """As docs/interpreter.md says: surplus threads read what the last element's owner writes."""
    environment = {**os.environ, "DIGLOT_INTERPRET_RACES": "2"}
    done = subprocess.run(
        [sys.executable, "-c", IN_PLACE], capture_output=True, text=True, env=environment
    )
    many, few = done.stdout.splitlines()
    assert many == "nothing", done.stderr
    assert "elementwise_strided" in few
    assert "a race in global memory: it " in few
