"""all_reduce_add_rms_norm across ranks, without a GPU: both languages' kernels at once.

tests/peers.py says where the ranks run. test_distributed.py has the public function.
"""

from __future__ import annotations

import time

import pytest
import torch
from backends import DEVICE, KERNELS
from peers import COUNTS, SECOND, Ranks, at_once, read_late
from test_all_reduce import ORDERED, same_bits
from test_reduce_scatter import placed

from diglot.reference.distributed.all_reduce import all_reduce_oracle
from diglot.reference.rms_norm import rms_norm_oracle

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="test_distributed_on_gpu.py has GPUs")

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Rows, columns, dtype, protocol, and whether there is a weight.
CASES = [
    (1, 8, BF16, "pull", True),
    (5, 200, FP16, "pull", True),
    (3, 256, FP32, "pull", False),
    (2, 1000, BF16, "pull", True),
    (5, 512, FP32, "pull", True),  # several launches
    (4, 24, FP16, "pull", False),
    (4, 504, BF16, "in place", True),
    (7, 100, FP32, "in place", True),
]
EPS = 1e-5


def tensors(case: int, count: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor | None]:
    """The inputs of all ranks, the residual, and the weight."""
    rows, columns, dtype, _, has_weight = CASES[case]
    generator = torch.Generator().manual_seed(case)
    made = torch.randn(count + 1, rows, columns, generator=generator).to(dtype)
    weight = torch.randn(columns, generator=generator).to(dtype) if has_weight else None
    return list(made[:count]), made[count].clone(), weight


def norm_cases(ranks: Ranks, backend: str, rank: int) -> list[tuple[torch.Tensor, ...]]:
    results = []
    for case, (_, _, _, protocol, _) in enumerate(CASES):
        xs, residual, weight = tensors(case, ranks.layout.ranks)
        x = placed(ranks, rank, xs[rank]) if protocol == "in place" else xs[rank].clone()
        source = ranks.layout.room
        results.append(
            ranks.add_norm(backend, rank, x, residual, weight, EPS, protocol, source=source)
        )
        ranks.barrier(backend, rank)
    return results


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("backend", KERNELS)
def test_every_rank_gets_the_oracle(backend, count):
    """The new residual to the bit, and the norm within a rounding."""
    results = at_once(backend, Ranks(count, symmetric=8192), norm_cases)
    for case, (_, _, dtype, _, _) in enumerate(CASES):
        xs, residual, weight = tensors(case, count)
        total = all_reduce_oracle(xs, "sum") + residual
        expected = rms_norm_oracle(total, weight, EPS)
        factors = torch.rsqrt(total.double().square().mean(-1) + EPS)
        for rank in range(count):
            normed, made, statistics = results[rank][case]
            assert same_bits(made, total), (rank, CASES[case])
            rounding = torch.finfo(dtype).eps
            assert torch.allclose(normed.double(), expected, rtol=2 * rounding, atol=1e-6)
            assert torch.allclose(statistics.double(), factors, rtol=1e-6)
            assert same_bits(normed, results[0][case][0])  # all ranks have the same bits


@pytest.mark.parametrize("protocol", ["pull", "in place"])
@pytest.mark.parametrize("backend", KERNELS)
def test_sums_are_in_the_order_of_ranks(backend, protocol):
    def work(ranks, backend, rank):
        x = placed(ranks, rank, ORDERED[rank].repeat(4)[None])
        options = {"protocol": protocol, "source": ranks.layout.room}
        return ranks.add_norm(backend, rank, x, torch.zeros(1, 12), None, **options)[1]

    for result in at_once(backend, Ranks(3, symmetric=8192), work):
        assert torch.equal(result[0], torch.tensor([0.0, 0.0, 1.0]).repeat(4))


# Two calls of each protocol that follow each other use its two buffers; a third one the first.
PROTOCOLS = ["in place"] * 2 + ["pull"] * 3
CALLS = 4 * len(PROTOCOLS)


def norm_in_a_row(ranks: Ranks, backend: str, rank: int) -> int:
    """As `reduce_in_a_row` of test_all_reduce.py."""
    count, wrong = ranks.layout.ranks, 0
    residual = torch.full((3, 128), 7.0)
    for call in range(CALLS):
        protocol = PROTOCOLS[call % len(PROTOCOLS)]
        x = torch.empty(3, 128)
        if protocol == "in place":
            x = placed(ranks, rank, x)
        x.fill_(float(call + rank))
        if call % count == rank:
            time.sleep(0.003)
        _, out, _ = ranks.add_norm(
            backend, rank, x, residual, None, protocol=protocol, blocks=2,
            source=ranks.layout.room, patience=5 * SECOND,
        )  # fmt: skip
        x.fill_(-1e6)
        wrong += int((out != count * call + count * (count - 1) / 2 + 7).sum())
    return wrong


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("backend", KERNELS)
def test_calls_in_a_row(backend, count):
    ranks = Ranks(count, symmetric=8192)
    assert at_once(backend, ranks, norm_in_a_row) == [0] * count
    assert not any(report.any() for report in ranks.reports)


@pytest.mark.parametrize("protocol", ["pull", "in place"])
def test_calls_in_a_row_that_a_triton_rank_reads_late(protocol):
    def work(ranks, backend, rank):
        if rank == 1:
            read_late()
        residual, results = torch.zeros(2, 64), []
        for call in range(4):
            x = placed(ranks, rank, torch.full((2, 64), float(call + rank)))
            # One program has all rows: the interpreter runs programs one after another.
            options = {"protocol": protocol, "source": ranks.layout.room, "blocks": 1}
            results.append(ranks.add_norm(backend, rank, x, residual, None, **options)[1])
            x.fill_(-1e6)
        return [total.unique().tolist() for total in results]

    assert at_once("triton", Ranks(2, symmetric=8192), work) == [[[1.0], [3.0], [5.0], [7.0]]] * 2


@pytest.mark.parametrize("protocol", ["pull", "in place"])
@pytest.mark.parametrize("backend", KERNELS)
def test_a_peer_that_does_not_come(backend, protocol):
    def work(ranks, backend, rank):
        if rank == 0:
            return None
        x = placed(ranks, rank, torch.ones(4, 128))
        options = {"protocol": protocol, "source": ranks.layout.room}
        residual = torch.ones(4, 128)
        return ranks.add_norm(backend, rank, x, residual, None, patience=SECOND // 4, **options)

    ranks = Ranks(2, symmetric=8192)
    normed, total, _ = at_once(backend, ranks, work)[1]
    assert normed.isnan().all() and total.isnan().all()
    is_there, rank, op, epoch, _, peer, has_come, _ = ranks.reports[1].tolist()
    assert (is_there, rank, op, epoch, peer, has_come) == (1, 1, 10, 1, 0, 0)


@pytest.mark.parametrize("backend", KERNELS)
def test_launchers_refuse(backend):
    ranks = Ranks(2)
    for x, protocol, why in [
        (torch.ones(2, 6), "pull", "rows begin at multiples of 16 bytes"),
        (torch.ones(10, 128), "push", "rows are pulled"),
        (torch.ones(1, 4096), "pull", "a row is longer than a buffer"),
        (torch.ones(1, 8196), "pull", "more than 32 KiB|longer than a buffer"),
    ]:
        with pytest.raises(ValueError, match=why):
            ranks.add_norm(backend, 0, x, x, None, protocol=protocol)
