"""Races of asynchronous operations that complete together, and have seen different things."""

from __future__ import annotations

import pytest
import torch
from backends import INTERPRETS_CUDA
from planted.library import ROOT, build_interpreted, runner

SEEDS = range(8)
THREADS = 128
RACE = "a race in shared memory: it "

pytestmark = INTERPRETS_CUDA


@pytest.fixture(scope="module")
def run():
    start = runner(build_interpreted(ROOT / "tests/planted/operations.cu"))
    return lambda kernel, seed: start(
        kernel, values=torch.ones(64 * 32), blocks=1, threads=THREADS, seed=seed
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_right_kernel(run, seed):
    message, _ = run("square", seed)
    assert message == ""


@pytest.mark.parametrize("seed", SEEDS)
def test_each_warp_must_wait_for_what_a_product_reads(run, seed):
    message, _ = run("one_warp_waits", seed)
    assert f"{RACE}reads what a bulk load" in message or "has written" in message


@pytest.mark.parametrize("seed", SEEDS)
def test_two_loads_of_one_phase_race(run, seed):
    message, _ = run("two_loads", seed)
    assert f"{RACE}writes what a bulk load" in message


def test_a_copy_of_few_bytes_is_named_by_the_kernels_line(run):
    message, _ = run("copy_words", 0)
    assert message.count("operations.cu:") == 2
