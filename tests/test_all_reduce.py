"""all_reduce and barrier across ranks, without a GPU: both languages' kernels of all ranks at once.

tests/peers.py says where the ranks run. test_distributed.py has the public functions.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from backends import DEVICE, KERNELS
from peers import COUNTS, SECOND, Ranks, at_once, read_late

from diglot.distributed.layout import EPOCH_WORD
from diglot.reference.distributed.all_reduce import all_reduce_oracle

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="test_distributed_on_gpu.py has GPUs")

IN_WORKSPACE = ["in place", "two shots in place", "direct shots"]
EVERY_PROTOCOL = ["push", "pull", "two shots", *IN_WORKSPACE]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Elements, dtype, op, protocol, and elements before the tensor in its storage.
CASES = [
    (1, BF16, "sum", "push", 0),
    (7, FP16, "max", "push", 1),
    (1000, FP32, "avg", "push", 0),
    (1999, BF16, "sum", "push", 3),
    (1024, FP32, "min", "push", 2),
    (1, FP32, "sum", "pull", 0),
    (16, BF16, "avg", "pull", 0),
    (1001, FP16, "sum", "pull", 1),
    (2048, FP32, "sum", "pull", 0),
    (9001, BF16, "max", "pull", 0),  # several launches
    (300, FP16, "min", "push", 0),
    (1, FP32, "sum", "two shots", 0),  # most ranks have no part of it
    (1003, BF16, "avg", "two shots", 0),
    (1999, FP16, "sum", "two shots", 1),
    (5000, FP32, "sum", "two shots", 0),  # several launches
    (70, BF16, "min", "two shots in place", 0),
    (1777, FP32, "max", "two shots in place", 0),
    (9001, BF16, "sum", "two shots in place", 0),  # several launches
    (1, FP32, "sum", "direct shots", 0),
    (3, FP16, "sum", "direct shots", 0),
    (1777, FP32, "avg", "direct shots", 0),
    (9001, BF16, "max", "direct shots", 0),
]


def inputs(
    ranks: int, case: int, n: int, dtype: torch.dtype, offset: int = 0
) -> list[torch.Tensor]:
    """The tensor of each rank, with some special values."""
    made = []
    for rank in range(ranks):
        generator = torch.Generator().manual_seed(1000 * case + rank)
        x = torch.randn(n + offset, generator=generator) * 10 ** (rank - 1)
        if n > 300:
            x[100 + rank], x[200 + offset], x[250 + offset] = torch.nan, torch.inf, -0.0
        made.append(x.to(dtype)[offset:])
    return made


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal to the bit; any NaN equals any other."""
    if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
        return False
    integer = torch.int32 if a.dtype == FP32 else torch.int16
    return torch.equal(a.nan_to_num(0).view(integer), b.nan_to_num(0).view(integer))


def reduce_cases(ranks: Ranks, backend: str, rank: int) -> list[torch.Tensor]:
    results, room = [], ranks.layout.room
    for case, (n, dtype, op, protocol, offset) in enumerate(CASES):
        x = inputs(ranks.layout.ranks, case, n, dtype, offset)[rank]
        if protocol in IN_WORKSPACE:
            x = ranks.spaces[rank].view(torch.uint8)[room:].view(dtype)[:n].copy_(x)
        results.append(ranks.reduce(backend, rank, x, op, protocol, source=room))
        ranks.barrier(backend, rank)
    return results


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("backend", KERNELS)
def test_every_rank_gets_the_bits_of_the_oracle(backend, count):
    results = at_once(backend, Ranks(count, symmetric=1 << 16), reduce_cases)
    for case, (n, dtype, op, _, offset) in enumerate(CASES):
        expected = all_reduce_oracle(inputs(count, case, n, dtype, offset), op)
        for rank in range(count):
            assert same_bits(results[rank][case], expected), (rank, CASES[case])


KEPT = [(n, protocol) for protocol in EVERY_PROTOCOL if protocol != "in place" for n in (5, 1003)]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("backend", KERNELS)
def test_the_output_may_be_the_input(backend, count):
    def work(ranks, backend, rank):
        results, room = [], ranks.layout.room
        for case, (n, protocol) in enumerate(KEPT):
            x = inputs(count, case, n, BF16)[rank]
            if protocol in IN_WORKSPACE:
                x = ranks.spaces[rank].view(torch.uint8)[room:].view(BF16)[:n].copy_(x)
            options = {"source": room, "blocks": 2, "is_kept": True}
            results.append(ranks.reduce(backend, rank, x, "sum", protocol, **options))
        return results

    for results in at_once(backend, Ranks(count, symmetric=4096), work):
        for case, ((n, protocol), result) in enumerate(zip(KEPT, results, strict=True)):
            expected = all_reduce_oracle(inputs(count, case, n, BF16), "sum")
            assert same_bits(result, expected), (n, protocol)


# Sums of three values that depend on the order: of 1, 1e8 and -1e8 in float32. No other order has
# the same sums in all columns.
ORDERED = torch.tensor([[1, 1e8, 1e8], [1e8, 1, -1e8], [-1e8, -1e8, 1]])


@pytest.mark.parametrize("protocol", ["push", "pull", "two shots"])
@pytest.mark.parametrize("backend", KERNELS)
def test_sums_are_in_the_order_of_ranks(backend, protocol):
    def work(ranks, backend, rank):
        return ranks.reduce(backend, rank, ORDERED[rank].repeat(4), "sum", protocol)

    for result in at_once(backend, Ranks(3), work):
        assert torch.equal(result, torch.tensor([0.0, 0.0, 1.0]).repeat(4))


# Two calls of each protocol that follow each other use its two buffers; a third one the first.
PROTOCOLS = [
    (900, "push"), (900, "push"), (900, "push"), (5, "push"), (2000, "in place"),
    (2000, "in place"), (2000, "pull"), (2000, "pull"), (1500, "pull"), (2000, "two shots"),
    (1900, "two shots"), (1801, "two shots in place"), (2000, "two shots in place"),
    (1999, "direct shots"), (1500, "direct shots"),
]  # fmt: skip
CALLS = 5 * len(PROTOCOLS)


def reduce_in_a_row(ranks: Ranks, backend: str, rank: int) -> int:
    """Calls without a pause between them, on ranks that are late by turns; how many are wrong.

    Each reads its input in place, and changes it as soon as its own call has ended. Others are
    staged or pushed. Every other call overwrites its input.
    """
    count, wrong = ranks.layout.ranks, 0
    room = ranks.layout.room
    place = ranks.spaces[rank].view(torch.int32)[room // 4 : room // 4 + 2000].view(FP32)
    for call in range(CALLS):
        n, protocol = PROTOCOLS[call % len(PROTOCOLS)]
        x = place[:n] if protocol in IN_WORKSPACE else torch.empty(n)
        x.fill_(float(call + rank))
        if call % count == rank:
            time.sleep(0.003)
        out = ranks.reduce(
            backend, rank, x, protocol=protocol, blocks=2, source=room, patience=5 * SECOND,
            is_kept=call % 2 == 1 and protocol != "in place",
        )  # fmt: skip
        x.fill_(-1e6)
        wrong += int((out != count * call + count * (count - 1) / 2).sum())
    return wrong


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("backend", KERNELS)
def test_calls_in_a_row(backend, count):
    ranks = Ranks(count, symmetric=1 << 14)
    assert at_once(backend, ranks, reduce_in_a_row) == [0] * count
    launches = {int(space[EPOCH_WORD]) for space in ranks.spaces}
    assert launches == {CALLS << 16}  # nothing but the epoch is left
    assert not any(report.any() for report in ranks.reports)


@pytest.mark.parametrize("protocol", EVERY_PROTOCOL)
def test_calls_in_a_row_that_a_triton_rank_reads_late(protocol):
    """Rank 1 pauses before each of its reads, and rank 0 goes on to its next call."""

    def work(ranks, backend, rank):
        if rank == 1:
            read_late()
        room = ranks.layout.room
        skipped = int(protocol not in IN_WORKSPACE)  # no aligned part stays where it is
        place = ranks.spaces[rank].view(torch.int32)[room // 4 + skipped :].view(FP32)
        results = []
        for call in range(4):
            x = place[:100].fill_(call + rank)
            results.append(ranks.reduce(backend, rank, x, protocol=protocol, source=room))
            x.fill_(-1e6)
        return [out.unique().tolist() for out in results]

    ranks = Ranks(2, symmetric=8192)
    assert at_once("triton", ranks, work) == [[[1.0], [3.0], [5.0], [7.0]]] * 2


@pytest.mark.parametrize("protocol", EVERY_PROTOCOL)
@pytest.mark.parametrize("backend", KERNELS)
def test_a_peer_that_does_not_come(backend, protocol):
    """The kernel ends, says who waited for whom, and fills its output with NaN. Later waits on the
    workspace end at once."""

    def work(ranks, backend, rank):
        if rank == 0:
            return None
        x, room = torch.ones(500), ranks.layout.room
        if protocol in IN_WORKSPACE:
            x = ranks.spaces[rank].view(torch.uint8)[room:].view(FP32)[:500].copy_(x)
        options = {"protocol": protocol, "source": room}
        begin = time.perf_counter()
        first = ranks.reduce(backend, rank, x, patience=SECOND // 4, **options)
        middle = time.perf_counter()
        second = ranks.reduce(backend, rank, x, patience=60 * SECOND, **options)
        return first, second, middle - begin, time.perf_counter() - middle

    ranks = Ranks(2, symmetric=8192)
    first, second, waited, later = at_once(backend, ranks, work)[1]
    assert first.isnan().all() and second.isnan().all()
    assert waited > 0.24 and later < 10
    assert ranks.reports[1].tolist()[:7] == [1, 1, 0, 1, 0, 0, 0]
    assert int(ranks.spaces[1][EPOCH_WORD]) < 0  # its highest bit marks the fault
    assert not ranks.reports[0].any()
    assert not ranks.spaces[0][ranks.layout.room // 8 :].any()  # nobody wrote to its tensors
    begin = ranks.layout.staging // 8  # nor, after the fault, to its buffer of the second launch
    assert not ranks.spaces[0][begin : begin + ranks.layout.most_staged // 8].any()


@pytest.mark.parametrize("protocol", ["in place", "two shots"])
@pytest.mark.parametrize("backend", KERNELS)
def test_a_late_rank_after_a_fault(backend, protocol):
    """Its peer has given up direct shots, and gone on to another launch. That one's signals are not
    taken for the end of direct shots, where the peer would have stored its part."""

    def work(ranks, backend, rank):
        room, is_done = ranks.layout.room, ranks.reports[0][7:]
        x = ranks.spaces[rank].view(torch.uint8)[room:].view(FP32)[:500].fill_(1)
        if rank == 0:
            shots = {"protocol": "direct shots", "source": room, "patience": SECOND // 10}
            results = [
                ranks.reduce(backend, rank, x, **shots),
                ranks.reduce(backend, rank, x, protocol=protocol, source=room),
            ]
            is_done.fill_(1)
            return results
        while not is_done.item():
            time.sleep(0.01)
        shots = {"protocol": "direct shots", "source": room, "patience": SECOND // 4}
        return [ranks.reduce(backend, rank, x, **shots)]

    ranks = Ranks(2, symmetric=8192)
    for results in at_once(backend, ranks, work):
        assert all(out.isnan().all() for out in results)
    assert ranks.reports[1].tolist()[:7] == [1, 1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("protocol", ["pull", "in place", "two shots", "direct shots"])
@pytest.mark.parametrize("backend", KERNELS)
def test_signals_that_are_there_after_a_fault(backend, protocol):
    """A launch takes nothing of its peer: what the peer's signal stands for may be old by now."""

    def work(ranks, backend, rank):
        room, is_done = ranks.layout.room, ranks.reports[0][7:]
        x = ranks.spaces[rank].view(torch.uint8)[room:].view(FP32)[:500].fill_(1)
        if rank == 1:
            ranks.spaces[1][EPOCH_WORD] = -(1 << 63)  # a fault before the first launch
            while not is_done.item():
                time.sleep(0.01)
        patience = SECOND // 10 if rank == 0 else 60 * SECOND
        out = ranks.reduce(backend, rank, x, protocol=protocol, source=room, patience=patience)
        is_done.fill_(1)
        return out

    for out in at_once(backend, Ranks(2, symmetric=8192), work):
        assert out.isnan().all()


@pytest.mark.parametrize("backend", KERNELS)
def test_a_barrier_that_a_peer_does_not_reach(backend):
    def work(ranks, backend, rank):
        if rank == 2:
            ranks.barrier(backend, rank, patience=SECOND // 10)

    ranks = Ranks(3)
    at_once(backend, ranks, work)
    _, rank, op, epoch, block, peer, has_come, _ = ranks.reports[2].tolist()
    assert (rank, op, epoch, block, has_come) == (2, 4, 1, 0, 0) and peer in (0, 1)


@pytest.mark.parametrize("backend", KERNELS)
def test_calls_that_do_not_fit_each_other(backend):
    """Found at the first meeting, without waiting for the time-out."""

    def work(ranks, backend, rank):
        begin = time.perf_counter()
        out = ranks.reduce(backend, rank, torch.ones(500), protocol="pull", call=5 + rank)
        return out, time.perf_counter() - begin

    ranks = Ranks(2)
    for rank, (out, seconds) in enumerate(at_once(backend, ranks, work)):
        assert out.isnan().all() and seconds < 50
        assert ranks.reports[rank].tolist()[:7] == [1, rank, 0, 1, 0, 1 - rank, 1]


@pytest.mark.parametrize("backend", KERNELS)
def test_a_rank_that_is_late(backend):
    def work(ranks, backend, rank):
        time.sleep(2.5 * rank)  # longer than the interpreter waits before it reports a deadlock
        return ranks.reduce(backend, rank, torch.ones(5))

    assert all(torch.equal(out, torch.full((5,), 2.0)) for out in at_once(backend, Ranks(2), work))


@pytest.mark.parametrize("backend", KERNELS)
def test_nothing_to_reduce(backend):
    """An empty tensor takes no launch, and so no epoch, on any rank."""
    ranks = Ranks(1)
    assert ranks.reduce(backend, 0, torch.empty(0, 3)).shape == (0, 3)
    assert not ranks.spaces[0].any()


@pytest.mark.parametrize("backend", KERNELS)
def test_launchers_refuse(backend):
    ranks = Ranks(1)
    for x, options, why in [
        (torch.ones(5), {"op": "mean"}, "op must be sum, avg, max or min"),
        (torch.ones(5000), {"protocol": "push"}, "more bytes than a slot of packets holds"),
        (torch.ones(5)[1:], {"is_kept": True}, "a multiple of 16 bytes"),
    ]:
        with pytest.raises(ValueError, match=why):
            ranks.reduce(backend, 0, x, **options)


# The interpreter watches all that the kernels write, the workspaces among it, for races.
WATCHED = """
import sys
sys.path.insert(0, sys.argv[1])
import peers
import test_all_gather, test_all_reduce, test_all_reduce_add_rms_norm, test_reduce_scatter
for count in (2, 3):
    for row, cases in [  # the latter of several types
        (test_all_reduce.reduce_in_a_row, test_all_reduce.reduce_cases),
        (test_all_gather.gather_in_a_row, test_all_gather.gather_cases),
        (test_reduce_scatter.scatter_in_a_row, test_reduce_scatter.scatter_cases),
        (test_all_reduce_add_rms_norm.norm_in_a_row, test_all_reduce_add_rms_norm.norm_cases),
    ]:
        ranks = peers.Ranks(count, symmetric=1 << 14)
        assert peers.at_once("cuda", ranks, row) == [0] * count
        peers.at_once("cuda", peers.Ranks(count, symmetric=1 << 16), cases)
"""


@pytest.mark.parametrize("backend", KERNELS[:1])
def test_ranks_do_not_race(backend):
    environment = {**os.environ, "DIGLOT_INTERPRET_RACES": "2"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(Path(__file__).parent)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
