"""all_gather across ranks, without a GPU: both languages' kernels of all ranks at once.

tests/peers.py says where the ranks run. test_distributed.py has the public function.
"""

from __future__ import annotations

import time

import pytest
import torch
from backends import DEVICE, KERNELS
from peers import COUNTS, SECOND, Ranks, at_once
from test_reduce_scatter import placed

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="test_distributed_on_gpu.py has GPUs")

BF16, FP32, INT64 = torch.bfloat16, torch.float32, torch.int64
# Elements, dtype, protocol, and elements before the input and the output in their storages.
CASES = [
    (1, torch.bool, "push", 0, 0),
    (7, torch.int8, "push", 1, 0),
    (1000, FP32, "push", 0, 0),
    (1001, BF16, "push", 3, 1),
    (400, INT64, "push", 0, 0),
    (3, torch.uint8, "pull", 0, 0),
    (48, BF16, "pull", 0, 0),
    (1001, torch.float16, "pull", 1, 0),
    (1024, FP32, "pull", 0, 1),
    (9001, BF16, "pull", 0, 0),  # several launches
    (515, torch.int8, "in place", 0, 2),
    (1040, BF16, "in place", 0, 0),
]


def numbers(case: int, rank: int, n: int, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """The tensor of a rank: any bits, or any truth values."""
    generator = torch.Generator().manual_seed(1000 * case + rank)
    count = (n + offset) * dtype.itemsize
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), generator=generator)
    return bits.to(torch.uint8).view(dtype)[offset:]


def bits_of(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def gather_cases(ranks: Ranks, backend: str, rank: int) -> list[torch.Tensor]:
    results = []
    for case, (n, dtype, protocol, offset, skipped) in enumerate(CASES):
        x = numbers(case, rank, n, dtype, offset)
        if protocol == "in place":
            x = placed(ranks, rank, x)
        source = ranks.layout.room
        results.append(ranks.gather(backend, rank, x, protocol, skipped, source=source))
        ranks.barrier(backend, rank)
    return results


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("backend", KERNELS)
def test_every_rank_gets_all_tensors(backend, count):
    results = at_once(backend, Ranks(count, symmetric=8192), gather_cases)
    for case, (n, dtype, _, offset, _) in enumerate(CASES):
        expected = torch.cat([numbers(case, r, n, dtype, offset) for r in range(count)])
        for rank in range(count):
            assert torch.equal(bits_of(results[rank][case]), bits_of(expected)), (rank, CASES[case])


# Two calls of each protocol that follow each other use its two buffers; a third one the first.
PROTOCOLS = [
    (900, "push"), (900, "push"), (900, "push"), (2000, "in place"), (2000, "in place"),
    (2000, "pull"), (2000, "pull"), (1500, "pull"),
]  # fmt: skip
CALLS = 4 * len(PROTOCOLS)


def gather_in_a_row(ranks: Ranks, backend: str, rank: int) -> int:
    """As `reduce_in_a_row` of test_all_reduce.py."""
    count, wrong = ranks.layout.ranks, 0
    for call in range(CALLS):
        n, protocol = PROTOCOLS[call % len(PROTOCOLS)]
        x = torch.empty(n)
        if protocol == "in place":
            x = placed(ranks, rank, x)
        x.fill_(float(call + 100 * rank))
        if call % count == rank:
            time.sleep(0.003)
        out = ranks.gather(
            backend, rank, x, protocol=protocol, blocks=2, source=ranks.layout.room,
            patience=5 * SECOND,
        )  # fmt: skip
        x.fill_(-1e6)
        wrong += int((out.view(count, n) != (torch.arange(count) * 100 + call)[:, None]).sum())
    return wrong


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("backend", KERNELS)
def test_calls_in_a_row(backend, count):
    ranks = Ranks(count, symmetric=8192)
    assert at_once(backend, ranks, gather_in_a_row) == [0] * count
    assert not any(report.any() for report in ranks.reports)


@pytest.mark.parametrize("protocol", ["push", "pull", "in place"])
@pytest.mark.parametrize("backend", KERNELS)
def test_a_peer_that_does_not_come(backend, protocol):
    def work(ranks, backend, rank):
        if rank == 0:
            return None
        x = placed(ranks, rank, torch.ones(500))
        options = {"protocol": protocol, "source": ranks.layout.room}
        return ranks.gather(backend, rank, x, patience=SECOND // 4, **options)

    ranks = Ranks(2, symmetric=8192)
    assert at_once(backend, ranks, work)[1][:500].isnan().all()
    assert ranks.reports[1].tolist()[:7] == [1, 1, 5, 1, 0, 0, 0]


@pytest.mark.parametrize("backend", KERNELS)
def test_launchers_refuse(backend):
    ranks = Ranks(2)
    ints = torch.ones(4, dtype=torch.int32)
    with pytest.raises(ValueError, match="out has the input of every rank"):
        ranks.run(backend, 0, "all_gather", (ints,), (ints,))
    with pytest.raises(ValueError, match="1, 2 or 4 bytes"):
        ranks.run(backend, 0, "all_gather", (ints.long(),), (ints.long().repeat(2),))
    with pytest.raises(ValueError, match="more bytes than a slot"):
        ranks.gather(backend, 0, torch.ones(4000))
    assert ranks.gather(backend, 0, torch.ones(0)).shape == (0,)
