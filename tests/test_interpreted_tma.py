"""Bulk copies by TMA under the interpreter: kernels with a bug each, and their right versions.

They are in tests/planted/tma.cu, with others that test_planted_table.py runs. Tensor maps alone are
in test_tensor_map.py.
"""

from __future__ import annotations

import pytest
import torch
from backends import INTERPRETS_CUDA
from planted.library import ROOT, build_interpreted, runner

SEEDS = range(8)
TILES, ROWS, COLUMNS = 6, 8, 32
TILE = ROWS * COLUMNS
CLUSTERS = {"multicast_beyond_cluster", "send_tile"}

pytestmark = INTERPRETS_CUDA


@pytest.fixture(scope="module")
def run():
    run = runner(build_interpreted(ROOT / "tests/planted/tma.cu"))

    def run_tiles(kernel: str, seed: int, *, races: bool = True) -> tuple[str, torch.Tensor]:
        """What went wrong, or "", and the tiles."""
        message, out = run(
            kernel,
            values=tiles().flatten(),
            blocks=TILES * TILE,
            threads=TILE,
            shared=2 * 4 * TILE,
            cluster=2 if kernel in CLUSTERS else 1,
            seed=seed,
            races=races,
        )
        return message, out.view(TILES, TILE)

    return run_tiles


def tiles() -> torch.Tensor:
    return (torch.arange(TILES * TILE, dtype=torch.float32) * 7 % 1021).view(TILES, TILE)


def first_of_rest(values: torch.Tensor) -> torch.Tensor:
    result = tiles()
    result[:, 0] = values
    return result


def added() -> torch.Tensor:
    result = torch.full((TILES, TILE), -1.0)
    result[0] += tiles().sum(0)
    return result


RIGHT = {
    "through_one_buffer": tiles,
    "read_back": lambda: first_of_rest(tiles().sum(1)),
    "double_tiles": lambda: 2 * tiles(),
    "plain_copy": tiles,
    "send_tile": lambda: tiles().view(-1, 2, TILE).flip(1).view(TILES, TILE),
    "add_tiles": added,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", RIGHT)
def test_right_kernels(run, kernel, seed):
    message, out = run(kernel, seed)
    assert message == ""
    assert torch.equal(out, RIGHT[kernel]())


# The message under every seed, with race checks.
PLANTED = {
    "bytes_of_two_tiles": ["Mbarrier::wait()", "expected 2048 bytes, got 1024"],
    "negative_store": ["coordinate 0 is -4: only a load may begin at a negative one"],
    "odd_column": ["coordinate 0 is 2, of elements of 4 bytes", "a multiple of 16 bytes"],
    "wrong_rank": ["3 coordinates are given, and the tensor map has 2 dimensions"],
    "no_map": ["what is given as a tensor map is none"],
    "store_to_input": ["a bulk store of 1024 bytes", "of a tensor that may only be read are"],
    "beyond_stages": ["a bulk load of 1024 bytes", "the block has 2048 bytes of dynamic shared"],
    "written_map": [
        "fence.proxy.tensormap: the interpreter does not model tensor maps that a kernel"
    ],
    "map_in_shared": ["a tensor map in shared memory: it must be a parameter"],
    "old_map": ["a tensor map of memory that is none of this launch's tensors"],
    "plain_copy_of_1000_bytes": ["a bulk copy of 1000 bytes", "must be a multiple of 16"],
    "multicast_beyond_cluster": ["by the mask 7, in a cluster of 2"],
    "overwritten_buffer": ["a race in shared memory", "a bulk store of 512 bytes"],
    "minimum_of_floats": ['no reduction "min" is of type float32'],
}


def check_planted(run, kernel: str, seed: int) -> None:
    message, _ = run(kernel, seed)
    for part in PLANTED[kernel]:
        assert part in message, (seed, message)
    assert "tests/planted/tma.cu:" in message


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", PLANTED)
def test_planted_bugs(run, kernel, seed):
    check_planted(run, kernel, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [*RIGHT, *PLANTED])
def test_many_seeds(run, kernel):
    for seed in range(8, 208):
        if kernel in PLANTED:
            check_planted(run, kernel, seed)
            continue
        message, out = run(kernel, seed)
        assert message == "", seed
        assert torch.equal(out, RIGHT[kernel]()), seed


@pytest.mark.parametrize(
    ("kernel", "right"),
    [("overwritten_buffer", "through_one_buffer"), ("read_back_too_soon", "read_back")],
)
def test_waiting_too_little_gives_wrong_numbers(run, kernel, right):
    """Without race checks: copies do not complete before they must."""
    wrong = 0
    for seed in SEEDS:
        message, out = run(kernel, seed, races=False)
        assert message == ""
        wrong += not torch.equal(out, RIGHT[right]())
    assert wrong >= len(SEEDS) // 2


def test_a_map_longer_than_its_tensor(run):
    message, _ = run("long_map", 0)
    assert message.startswith("encoding a tensor map: the buffer has 6144 bytes"), message
    assert "the shape needs 6272" in message
