"""mbarriers, named barriers, a cluster's barrier, registers and copies under the interpreter.

Kernels with a bug each, in tests/planted/mbarriers.cu, and their right versions;
test_planted_table.py has others of them.
"""

from __future__ import annotations

import pytest
import torch
from backends import INTERPRETS_CUDA
from planted.library import ROOT, THREADS, build_interpreted, runner

SEEDS = range(8)

pytestmark = INTERPRETS_CUDA


@pytest.fixture(scope="module")
def run():
    return runner(build_interpreted(ROOT / "tests/planted/mbarriers.cu"))


def sums(blocks: int) -> torch.Tensor:
    return torch.arange(blocks * THREADS, dtype=torch.float32).view(blocks, THREADS).sum(1)


RIGHT = ["pass_by_mbarrier", "poll_mbarrier", "await_message", "expect_apart", "sum_by_parts"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", RIGHT)
def test_right_kernels(run, kernel, seed):
    message, out = run(kernel, seed=seed)
    assert message == ""
    assert torch.equal(out, sums(len(out)))


def test_one_lane_of_a_warp_is_elected(run):
    message, out = run("elect")
    assert message == ""
    assert torch.equal(out, torch.full_like(out, THREADS // 32))


# The message, under every seed.
PLANTED = {
    "not_initialised": "an mbarrier is used that is not initialised",
    "initialised_again": "an mbarrier is initialised again, without invalidate()",
    "ordinary_access": "an ordinary access to an mbarrier that is in use",
    "no_arrivals": "an mbarrier is initialised for 0 arrivals; 1 to 1048575 are possible",
    "misaligned_mbarrier": "is no multiple of 8",
    "arrival_missing": "phase 3 (parity 1): 1 of 32 arrivals pending",
    "expect_without_arrival": "a race in shared memory: it reads what thread 0 of the block wrote",
    "await_too_many_bytes": "expected 8 bytes, got 4",
    "part_of_two_counts": "threads, where others arrived at it for ",
    "part_beyond_numbers": "a block has barriers 0 to 15",
    "part_of_a_warp": "for 100 threads, which is no multiple of 32",
    "part_without_a_thread": "127 of 128 threads have arrived at barrier 1",
    "release_that_takes": "setmaxnreg to 176 is no decrease from 168 registers a thread",
    "half_a_warp_of_registers": "wait in setmaxnreg",
    "cluster_without_arrival": "barrier, at which the thread has not arrived",
    "cluster_two_arrivals": "a second arrival at the cluster's barrier",
}
OF_REGISTERS = {"release_that_takes", "half_a_warp_of_registers"}
# The message depends on the order of threads: one of these.
RACES = {
    "parity_not_flipped": ("race", "has written", "two phases of an mbarrier ended"),
    "arrival_twice": ("race", "arrivals more than its"),
    "wait_missing": ("race", "two phases of an mbarrier ended"),
    "no_barrier_after_init": ("wrote at ", "is not initialised"),
    "invalidated_early": ("race", "is not initialised"),
    "copies_not_committed": ("race", "has written"),
}


def options(kernel: str) -> dict[str, int]:
    threads = {"threads": 384} if kernel in OF_REGISTERS else {}
    return {"blocks": 8, "cluster": 2} if "cluster" in kernel else threads


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", PLANTED)
def test_planted_bugs_are_named(run, kernel, seed):
    message, _ = run(kernel, seed=seed, **options(kernel))
    assert PLANTED[kernel] in message, message
    assert "planted/mbarriers.cu:" in message
    assert "block (" in message


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", RACES)
def test_planted_races_are_named(run, kernel, seed):
    message, _ = run(kernel, seed=seed, **options(kernel))
    assert any(said in message for said in RACES[kernel]), message
    assert "planted/mbarriers.cu:" in message
