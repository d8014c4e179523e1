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

    def run(kernel, seed, **launch):
        how = {"blocks": BLOCKS, "threads": THREADS, "cluster": CLUSTER, **launch}
        return start(kernel, values=values, seed=seed, **how)

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


@pytest.mark.parametrize("seed", SEEDS)
def test_clusters_of_a_cooperative_launch_run_at_once(run, seed):
    message, out = run("sum_in_grid", seed, cooperative=True, seconds=20)
    assert message == ""
    assert torch.equal(out, torch.arange(float(BLOCKS * THREADS)).sum().expand(BLOCKS))


def test_clusters_that_wait_for_those_to_come_are_an_endless_wait(run):
    message, _ = run("sum_in_grid", 0, seconds=20)
    assert "cannot go on" in message


def test_a_cooperative_launch_of_too_many_clusters_is_refused(run):
    message, _ = run("sum_in_grid", 0, cooperative=True, blocks=72)
    assert "cudaErrorCooperativeLaunchTooLarge" in message
