"""reduce_scatter across ranks, without a GPU: both languages' kernels of all ranks at once.

tests/peers.py says where the ranks run. test_distributed.py has the public function.
"""

from __future__ import annotations

import time

import pytest
import torch
from backends import DEVICE, KERNELS
from peers import COUNTS, SECOND, Ranks, at_once
from test_all_reduce import ORDERED, inputs, same_bits

from diglot.reference.distributed.all_reduce import all_reduce_oracle

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="test_distributed_on_gpu.py has GPUs")

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Elements of a part, dtype, op, protocol, and elements before the tensor in its storage.
CASES = [
    (1, BF16, "sum", "push", 0),
    (7, FP16, "max", "push", 1),
    (500, FP32, "avg", "push", 0),
    (333, BF16, "sum", "push", 3),
    (3, FP32, "sum", "pull", 0),
    (48, BF16, "avg", "pull", 0),
    (101, FP16, "sum", "pull", 1),
    (256, FP32, "min", "pull", 0),
    (3000, BF16, "max", "pull", 0),  # several launches
    (104, BF16, "sum", "in place", 0),
    (600, FP32, "sum", "in place", 0),
]


def placed(ranks: Ranks, rank: int, x: torch.Tensor) -> torch.Tensor:
    """A copy in the rank's workspace."""
    room = ranks.layout.room
    count = x.numel() * x.element_size()
    place = ranks.spaces[rank].view(torch.int8)[room : room + count].view(x.dtype)
    return place.view(x.shape).copy_(x)


def scatter_cases(ranks: Ranks, backend: str, rank: int) -> list[torch.Tensor]:
    results = []
    for case, (n, dtype, op, protocol, offset) in enumerate(CASES):
        count = ranks.layout.ranks
        x = inputs(count, case, n * count, dtype, offset)[rank]
        if protocol == "in place":
            x = placed(ranks, rank, x)
        source = ranks.layout.room
        results.append(ranks.scatter(backend, rank, x, op, protocol, source=source))
        ranks.barrier(backend, rank)
    return results


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("backend", KERNELS)
def test_every_rank_gets_its_part_of_the_oracle(backend, count):
    results = at_once(backend, Ranks(count, symmetric=1 << 15), scatter_cases)
    for case, (n, dtype, op, _, offset) in enumerate(CASES):
        expected = all_reduce_oracle(inputs(count, case, n * count, dtype, offset), op)
        for rank in range(count):
            part = expected[rank * n : (rank + 1) * n]
            assert same_bits(results[rank][case], part), (rank, CASES[case])


@pytest.mark.parametrize("protocol", ["push", "pull", "in place"])
@pytest.mark.parametrize("backend", KERNELS)
def test_sums_are_in_the_order_of_ranks(backend, protocol):
    def work(ranks, backend, rank):
        x = placed(ranks, rank, ORDERED[rank].repeat(12))
        return ranks.scatter(backend, rank, x, "sum", protocol, source=ranks.layout.room)

    for result in at_once(backend, Ranks(3, symmetric=8192), work):
        assert torch.equal(result, torch.tensor([0.0, 0.0, 1.0]).repeat(4))


# Two calls of each protocol that follow each other use its two buffers; a third one the first.
PROTOCOLS = [
    (300, "push"), (300, "push"), (300, "push"), (600, "in place"), (600, "in place"),
    (600, "pull"), (600, "pull"), (500, "pull"),
]  # fmt: skip
CALLS = 4 * len(PROTOCOLS)


def scatter_in_a_row(ranks: Ranks, backend: str, rank: int) -> int:
    """As `reduce_in_a_row` of test_all_reduce.py."""
    count, wrong = ranks.layout.ranks, 0
    for call in range(CALLS):
        n, protocol = PROTOCOLS[call % len(PROTOCOLS)]
        x = torch.empty(n * count)
        if protocol == "in place":
            x = placed(ranks, rank, x)
        x.view(count, n).copy_((torch.arange(count) * 100.0 + call + rank)[:, None].expand(-1, n))
        if call % count == rank:
            time.sleep(0.003)
        out = ranks.scatter(
            backend, rank, x, protocol=protocol, blocks=2, source=ranks.layout.room,
            patience=5 * SECOND,
        )  # fmt: skip
        x.fill_(-1e6)
        wrong += int((out != count * (call + 100 * rank) + count * (count - 1) / 2).sum())
    return wrong


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("backend", KERNELS)
def test_calls_in_a_row(backend, count):
    ranks = Ranks(count, symmetric=8192)
    assert at_once(backend, ranks, scatter_in_a_row) == [0] * count
    assert not any(report.any() for report in ranks.reports)


@pytest.mark.parametrize("protocol", ["push", "pull", "in place"])
@pytest.mark.parametrize("backend", KERNELS)
def test_a_peer_that_does_not_come(backend, protocol):
    def work(ranks, backend, rank):
        if rank == 0:
            return None
        x = placed(ranks, rank, torch.ones(512))
        options = {"protocol": protocol, "source": ranks.layout.room}
        return ranks.scatter(backend, rank, x, "max", patience=SECOND // 4, **options)

    ranks = Ranks(2, symmetric=8192)
    assert at_once(backend, ranks, work)[1].isnan().all()
    assert ranks.reports[1].tolist()[:7] == [1, 1, 8, 1, 0, 0, 0]


@pytest.mark.parametrize("backend", KERNELS)
def test_launchers_refuse(backend):
    ranks = Ranks(2)
    options = {"outputs": (torch.empty(4),), "words": ("sum",)}
    with pytest.raises(ValueError, match="input has as many parts"):
        ranks.run(backend, 0, "reduce_scatter", (torch.ones(9),), **options)
    with pytest.raises(ValueError, match="op must be sum, avg, max or min"):
        ranks.scatter(backend, 0, torch.ones(4), "mean")
    with pytest.raises(ValueError, match="more bytes than a slot"):
        ranks.scatter(backend, 0, torch.ones(4000))
    with pytest.raises(ValueError, match="parts in place begin at multiples of 16 bytes"):
        ranks.scatter(backend, 0, torch.ones(10), protocol="in place")
    assert ranks.scatter(backend, 0, torch.ones(0)).shape == (0,)
