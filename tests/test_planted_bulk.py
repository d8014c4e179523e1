"""Bulk copies in a ring of stages, and stores of tiles: kernels with a bug each, interpreted.

tests/planted/bulk_copies.cu has them. `make test-all` runs each under 200 seeds.
"""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, NEEDS_CUDA
from planted.library import ROOT, build_interpreted, runner

pytestmark = [*NEEDS_CUDA, pytest.mark.skipif(DEVICE != "cpu", reason="interprets kernels")]
SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 200))]
TILES = 8 * 8 * 32  # elements of a block


@pytest.fixture(scope="module")
def run():
    run = runner(build_interpreted(ROOT / "tests/planted/bulk_copies.cu"))

    def run_kernel(kernel: str, seed: int) -> tuple[str, torch.Tensor]:
        values = torch.arange(2 * TILES, dtype=torch.float32) % 61
        if "store" in kernel or kernel == "only_read":
            message, out = run(kernel, values=values, blocks=32 + 2 * TILES, threads=128, seed=seed)
            return message, out[:2] / 2
        return run(kernel, values=values, blocks=2, threads=160, seed=seed)

    return run_kernel


EXPECTED = (torch.arange(2 * TILES, dtype=torch.float32) % 61).view(2, TILES).sum(1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", ["sum_tiles", "store_tiles"])
def test_right_kernels(run, kernel, seed):
    message, out = run(kernel, seed)
    assert message == ""
    assert torch.equal(out, EXPECTED)


RACE, UNWRITTEN = "a race in shared memory", "has written"
MISSED = "two phases of an mbarrier ended"
# What is said: one of these, as the order of threads and copies has it.
PLANTED = {
    "wait_missing": (RACE, UNWRITTEN, MISSED),
    "wait_late": (RACE, UNWRITTEN, MISSED),
    "wait_early": (RACE, UNWRITTEN, MISSED),
    "released_early": (RACE, MISSED),
    "no_fence_after_read": ("a generic read before an async write without a proxy fence",),
    "parity_not_flipped": (RACE, UNWRITTEN, MISSED, "1 of 1 arrivals pending"),
    "bytes_short": ("expected 512 bytes, got 1024",),
    "arrival_twice": (RACE, UNWRITTEN, MISSED, "arrivals more than its"),
    "no_init_fence": ("fence_mbarrier_init",),
    "misaligned_stage": ("multiple of 128",),
    "not_initialised": ("an mbarrier is used that is not initialised",),
    "ends_early": ("before a bulk load", "waits for bytes", "before the block's end"),
    "no_fence_before_store": ("a proxy fence is missing",),
    "no_barrier_before_store": (RACE, UNWRITTEN),
    "no_wait_after_store": (RACE,),
    "store_not_committed": (RACE,),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", PLANTED)
def test_planted_bugs_are_named(run, kernel, seed):
    message, _ = run(kernel, seed)
    assert any(said in message for said in PLANTED[kernel]), message
    assert "planted/bulk_copies.cu:" in message
