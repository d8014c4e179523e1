"""diglot.distributed on two GPUs: against NCCL and the oracle, in graphs, and without a peer."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from peers import free_port, group_of_gpus

import diglot
from diglot import distributed
from diglot.reference.distributed.all_reduce import all_reduce_oracle

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MB = 1 << 20


def gathered(x: torch.Tensor) -> list[torch.Tensor]:
    """The tensor of each rank, by NCCL."""
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x.contiguous())
    return every


def reduce_random_tensors(rank: int, backend: str) -> None:
    """Of any size up to four million elements, any start, and on ranks that are late by turns."""
    space = distributed.Workspace(symmetric=32 * MB)
    room, other = (space.empty(4 * MB, dtype=torch.float32) for _ in range(2))
    numbers = torch.Generator().manual_seed(5)

    def random(most: int) -> int:
        return int(torch.randint(most, (1,), generator=numbers))

    for case in range(400 if backend == "cuda" else 60):
        n, offset = max(0, int(2 ** (random(2200) / 100)) - random(3)), random(3)
        which, late, op = random(3), random(8), ("sum", "avg", "max", "min")[random(4)]
        if backend == "triton":  # each kernel takes a second to compile
            op = ("sum", "max", "avg")[which]
        torch.manual_seed(10 * case + rank)
        x = torch.randn(n + offset, device="cuda").to(DTYPES[which])[offset:]
        if case % 4 == 0:
            x = room.view(DTYPES[which])[: x.numel()].copy_(x)
        out = other.view(x.dtype)[: x.numel()] if case % 8 == 4 else None
        if case % 16 == 8:
            out = x
        every = gathered(x)
        if late == rank:
            torch.cuda._sleep(200_000)
        result = distributed.all_reduce(x, op, backend=backend, out=out)
        assert diglot.last_run().backend == backend and (out is None or result is out)
        expected = all_reduce_oracle(every, op)
        assert torch.equal(result, expected), (case, n, op, diglot.last_run())
    x = torch.randint(-8, 8, (100_001,), device="cuda").bfloat16()  # NCCL's sums are exact too
    assert torch.equal(
        distributed.all_reduce(x, backend=backend), distributed.all_reduce(x, backend="torch")
    )
    space.synchronize()
    space.close()


def exchange_random_tensors(rank: int, backend: str) -> None:
    """all_gather, reduce_scatter and the all-reduce with a norm, and a gradient, by NCCL's data."""
    space = distributed.Workspace(symmetric=16 * MB)
    numbers = torch.Generator().manual_seed(6)
    ranks = dist.get_world_size()

    def random(most: int) -> int:
        return int(torch.randint(most, (1,), generator=numbers))

    for case in range(120 if backend == "cuda" else 40):
        rows, n = 1 + random(300), 8 * (1 + int(2 ** (random(1000) / 100)))
        dtype, late = DTYPES[random(3)], random(8)
        torch.manual_seed(10 * case + rank)
        x = torch.randn(ranks * rows, n, device="cuda").to(dtype)
        if late == rank:
            torch.cuda._sleep(200_000)
        every = gathered(x)
        what = (case, rows, n, dtype)
        assert torch.equal(distributed.all_gather(x, backend=backend), torch.cat(every)), what
        total = all_reduce_oracle(every, "sum")
        part = distributed.reduce_scatter(x, backend=backend)
        assert torch.equal(part, total.chunk(ranks)[rank]), what
        torch.manual_seed(case)
        residual, weight = torch.randn_like(x), torch.randn(n, device="cuda").to(dtype)
        normed, summed = distributed.all_reduce_add_rms_norm(
            x, residual, weight, 1e-5, backend=backend
        )
        assert diglot.last_run().backend == backend
        assert torch.equal(summed, (total.float() + residual.float()).to(dtype)), what
        expected = torch.nn.functional.rms_norm(summed.double(), (n,), weight.double(), 1e-5)
        close = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}[dtype]
        torch.testing.assert_close(normed, expected.to(dtype), rtol=close, atol=close)
    x = torch.ones(64, 8, device="cuda", requires_grad=True)
    made = distributed.all_gather(x, backend=backend)
    made.backward(torch.full_like(made, rank + 1.0))
    assert (x.grad == sum(range(1, ranks + 1))).all()
    space.synchronize()
    space.close()


def replay_graphs(rank: int, backend: str) -> None:
    """Replays of many calls in a row, whose inputs change, under skew."""
    space = distributed.Workspace()
    sizes = [int(2 ** (i * 0.6)) + i % 2 for i in range(33)]
    every = torch.stack(
        [
            torch.randint(0, 17, (sum(sizes),), generator=torch.Generator().manual_seed(r))
            for r in range(dist.get_world_size())
        ]
    )
    every = every.cuda().bfloat16()
    wrong = torch.zeros((), device="cuda", dtype=torch.int64)

    def step() -> None:
        every.add_(1).remainder_(17)
        begin = 0
        for i, size in enumerate(sizes):
            part = every[:, begin : begin + size]
            if (7 * i + 3 * rank) % 11 == 0:
                torch.cuda._sleep(3000)
            result = distributed.all_reduce(part[rank], backend=backend)
            wrong.add_((result != part.float().sum(0).bfloat16()).sum())
            distributed.barrier(backend=backend)
            begin += size

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(300):
        graph.replay()
    space.synchronize()
    assert int(wrong) == 0
    space.close()


def lose_a_peer(rank: int, backend: str) -> None:
    """The call ends, the next one raises, and another workspace works. A late rank is no fault."""
    space = distributed.Workspace(timeout=30.0)
    x = torch.ones(1000, device="cuda")
    time.sleep(2.0 * rank)
    assert (distributed.all_reduce(x, backend=backend) == 2).all()
    torch.cuda.synchronize()
    if rank == 0:
        assert distributed.all_reduce(x, backend=backend, timeout=0.3).isnan().all()
        with pytest.raises(RuntimeError, match=r"rank 1 did not come in time\. Rank 0 waited"):
            distributed.all_reduce(x, backend=backend)
    dist.barrier()
    space.close()
    space = distributed.Workspace()
    assert (distributed.all_reduce(x, backend=backend) == 2).all()
    space.synchronize()
    space.close()


def use_two_streams(rank: int, backend: str) -> None:
    """Two groups at once, called in another order on each rank, do not wait for each other."""
    groups = [dist.new_group() for _ in range(2)]
    spaces = [distributed.Workspace(group, most_staged=64 * MB, timeout=10.0) for group in groups]
    streams = [torch.cuda.Stream() for _ in range(2)]
    xs = [torch.full((8 * MB,), float(rank + i), device="cuda") for i in range(2)]
    torch.cuda.synchronize()
    results = [xs[0], xs[1]]
    for turn in range(20):
        for i in (0, 1) if (turn + rank) % 2 else (1, 0):
            with torch.cuda.stream(streams[i]):
                results[i] = distributed.all_reduce(xs[i], group=groups[i], backend=backend)
    for i, space in enumerate(spaces):
        space.synchronize()
        assert (results[i] == 1 + 2 * i).all()
        space.close()


def train_with_hook(rank: int, backend: str) -> None:
    """Weights of both ranks have the same bits, and are those of NCCL's averages."""

    def train(hook: object) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(1024, 1024) for _ in range(6)]
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers).cuda(), device_ids=[rank], bucket_cap_mb=5
        )
        if hook is not None:
            model.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for _ in range(20):
            model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in model.parameters()]

    space = distributed.Workspace()
    made, expected = train(distributed.ddp_hook(backend=backend)), train(None)
    space.synchronize()
    for one, right in zip(made, expected, strict=True):
        assert all(torch.equal(one, other) for other in gathered(one))
        torch.testing.assert_close(one, right, rtol=1e-3, atol=1e-5)
    space.close()


WORKS = (
    reduce_random_tensors,
    exchange_random_tensors,
    replay_graphs,
    lose_a_peer,
    use_two_streams,
    train_with_hook,
)


def _run(rank: int, port: int, work: Callable[[int, str], None], backend: str) -> None:
    with group_of_gpus(rank, 2, port):
        work(rank, backend)


# Alone: where other processes use a GPU too, ranks wait for each other's time on it.
@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_two_gpus(backend, work):
    torch.multiprocessing.spawn(_run, (free_port(), work, backend), nprocs=2)
