"""Clusters under the interpreter: blocks that begin late, and threads that end early."""

from __future__ import annotations

import pytest
import torch
from backends import INTERPRETS_CUDA
from planted.library import ROOT, build_interpreted, runner

BLOCKS, CLUSTER, THREADS = 32, 8, 32
SEEDS = range(8)

pytestmark = INTERPRETS_CUDA


@pytest.fixture(scope="module")
def run():
    start = runner(build_interpreted(ROOT / "tests/planted/clusters.cu"))
    values = torch.arange(BLOCKS * THREADS, dtype=torch.float32)

    def run(kernel, seed):
        return start(
            kernel, values=values, blocks=BLOCKS, threads=THREADS, cluster=CLUSTER, seed=seed
        )

    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_of_a_cluster_begin_together(run, seed):
    sums = torch.arange(BLOCKS * THREADS, dtype=torch.float32).view(-1, CLUSTER, THREADS).sum(2)
    for _ in range(5):  # which OS thread is first, no seed decides
        message, out = run("sum_of_next", seed)
        assert message == ""
        assert torch.equal(out, sums.roll(-1, 1).flatten())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_repeats_what_is_found_of_blocks_that_begin(run, seed):
    first, _ = run("next_before_it_begins", seed)
    assert first != ""
    assert {run("next_before_it_begins", seed)[0] for _ in range(4)} == {first}


@pytest.mark.parametrize("seed", SEEDS)
def test_who_arrives_and_ends_lets_nobody_go_on_early(run, seed):
    message, out = run("arrive_and_end", seed)
    last = torch.arange(BLOCKS).view(-1, CLUSTER)[:, -1:] * float(THREADS)
    assert message == ""
    assert torch.equal(out, last.expand(-1, CLUSTER).flatten())
