"""Races that are planted in kernels are named, in every order of the threads; their right versions
are not.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from planted.library import ROOT, build_interpreted, runner
from seeds import SEEDS_OF_INTERPRETER

from diglot.backends.registry import INTERPRET

pytestmark = pytest.mark.skipif(not INTERPRET, reason="DIGLOT_INTERPRET is not set")

# Of the grid barrier's source, a piece and what takes its place.
BARRIERS = {
    "RelaxedArrival": ("atomic_add_acquire_release(state_, step)", "atomicAdd(state_, step)"),
    "RelaxedWait": ("load_acquire(state_)", "atomicAdd(state_, 0u)"),
    "NoBarrierBefore": (
        "    __syncthreads();\n    if (!is_first_thread()) return;",
        "    if (!is_first_thread()) return;",
    ),
    "NoBarrierBehind": ("      }\n    }\n    __syncthreads();\n", "      }\n    }\n"),
}


def write_barriers(folder: Path) -> None:
    """The grid barrier and its mutants, as classes of one header."""
    source = (ROOT / "csrc/include/diglot/sync/grid_barrier.cuh").read_text()
    mutants = []
    for name, (right, wrong) in BARRIERS.items():
        assert source.count(right) == 1, name
        mutant = source.replace(right, wrong).replace("#pragma once\n", "")
        mutants.append(mutant.replace("GridBarrier", name))
    text = '#include "diglot/sync/grid_barrier.cuh"\n' + "\n".join(mutants)
    folder.mkdir(parents=True, exist_ok=True)
    header = folder / "grid_barriers.h"
    if not header.exists() or header.read_text() != text:
        written = folder / f"grid_barriers.{os.getpid()}"
        written.write_text(text)
        written.replace(header)


@pytest.fixture(scope="module")
def run():
    folder = ROOT / "build/planted"
    write_barriers(folder)
    return runner(build_interpreted(ROOT / "tests/planted/races.cu"))


GRID = {"cooperative": True, "blocks": 4, "threads": 32, "patience_ms": 10000}
IN_CLUSTER = {"cluster": 2, "patience_ms": 10000}
AT_ONCE = {"patience_ms": 10000}

RIGHT = {
    "lanes_that_meet": {},
    "order_by_syncwarp": {},
    "write_one_word": {},
    "by_atomics": {},
    "by_volatile": {},
    "read_in_cluster": IN_CLUSTER,
    "write_words": {},
    "write_tensor": {},
    "in_grid": GRID,
    "count_in_grid": {},
    "meet_in_grid": GRID,
    "launches_one_by_one": {},
    "launches_apart": AT_ONCE,
}
SHARED, GLOBAL = "a race in shared memory: it ", "a race in global memory: it "
WROTE = "reads what thread 0 of the block wrote at "
# How the kernel runs, and the expected message.
WRONG = {
    "a_lane_is_not_in_the_mask": ({}, [SHARED, " of the block "]),
    "order_by_shuffle": ({}, [SHARED, "with no barrier between (byte ", " of `values`)"]),
    "all_write_one_word": ({}, [SHARED, "with no barrier between (byte 0 of `word`)"]),
    "by_atomics_no_release": ({}, [SHARED + WROTE]),
    "by_atomics_no_acquire": ({}, [SHARED + WROTE]),
    "by_volatile_no_release": ({}, [SHARED + WROTE]),
    "by_volatile_no_acquire": ({}, [SHARED + WROTE]),
    "cluster_writes_early": (IN_CLUSTER, [SHARED, " of the cluster "]),
    "cluster_ends_early": (IN_CLUSTER, ["leaves its cluster early"]),
    "write_words_of_others": (
        {},
        [GLOBAL, "writes what thread 0 of block (", " of the watched memory)"],
    ),
    "write_tensor_of_others": ({}, [GLOBAL, "writes what thread 0 of block ("]),
    "in_grid_no_release": (GRID, [GLOBAL, "reads what thread 0 of block (0, 0, 0) wrote at "]),
    "in_grid_no_acquire": (GRID, [GLOBAL, "reads what thread 0 of block (0, 0, 0) wrote at "]),
    "in_grid_narrow_fence": (GRID, [GLOBAL, "is too narrow to order them"]),
    "in_grid_narrow_flag": (GRID, [GLOBAL, "is too narrow to order them"]),
    "count_for_the_block": ({}, [GLOBAL, "with a scope too narrow for the two threads"]),
    "meet_relaxed_arrival": (GRID, [GLOBAL, " what thread "]),
    "meet_relaxed_wait": (GRID, [GLOBAL, " what thread "]),
    "meet_no_barrier_before": (GRID, [GLOBAL, " what thread "]),
    "meet_no_barrier_behind": (GRID, [GLOBAL, " what thread "]),
    "launches_at_once": (AT_ONCE, [GLOBAL, " at once wrote at "]),
}


@pytest.mark.parametrize("seeds", SEEDS_OF_INTERPRETER)
@pytest.mark.parametrize("kernel", RIGHT)
def test_a_right_kernel_is_not_reported(run, kernel, seeds):
    for seed in seeds:
        assert run(kernel, seed=seed, **RIGHT[kernel])[0] == "", seed


@pytest.mark.parametrize("seeds", SEEDS_OF_INTERPRETER)
@pytest.mark.parametrize("kernel", WRONG)
def test_a_race_is_named(run, kernel, seeds):
    arguments, parts = WRONG[kernel]
    for seed in seeds:
        message, _ = run(kernel, seed=seed, **arguments)
        assert message.count("tests/planted/races.cu:") >= 2 or "ends_early" in kernel, message
        for part in parts:
            assert part in message, (seed, message)
