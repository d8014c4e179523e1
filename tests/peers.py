"""Ranks: their groups, and without GPUs their workspaces in shared memory of this machine.

The CUDA kernels of all ranks run in one process, where the interpreter sees the races between them:
a thread for each rank. Triton's interpreter has global state, so there each rank is a process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed

from diglot.backends.registry import BACKENDS
from diglot.distributed.layout import REPORT_WORDS, Layout, prepare, rounded
from diglot.distributed.operators import as_integers

SECOND = 1_000_000_000
# Numbers of ranks. Three and four run the same code: `make test` has three, with uneven parts.
COUNTS = [1, 2, 3, pytest.param(4, marks=pytest.mark.slow), 8]


class Ranks:
    """The workspaces of all ranks, in memory that processes share."""

    def __init__(
        self, ranks: int, most_pushed: int = 4096, most_staged: int = 8192, symmetric: int = 0
    ):
        self.layout = Layout(ranks, most_pushed, most_staged, symmetric)
        words = self.layout.bytes // 8
        self.spaces = [torch.zeros(words, dtype=torch.int64).share_memory_() for _ in range(ranks)]
        self.reports = [
            torch.zeros(REPORT_WORDS, dtype=torch.int64).share_memory_() for _ in range(ranks)
        ]

    def prepare(self, rank: int) -> None:
        """Writes this process's addresses."""
        prepare(self.spaces[rank], [s.data_ptr() for s in self.spaces], self.reports[rank])

    def run(
        self,
        backend: str,
        rank: int,
        what: str,
        inputs: tuple[torch.Tensor | None, ...],
        outputs: tuple[Any, ...],
        words: tuple[str, ...] = (),
        protocol: str = "push",
        blocks: int = 0,
        source: int = 0,
        patience: int = 60 * SECOND,
        call: int = 7,
    ) -> None:
        """Runs a launcher: as `diglot.distributed.operators.exchange` does."""
        at = self.layout
        launcher = getattr(BACKENDS[backend].module(f"distributed.{what}"), what)
        launcher(
            [*self.spaces, *self.reports], self.spaces[rank], *inputs, "", *words, protocol, rank,
            at.ranks, at.packets, at.most_pushed, at.staging, at.most_staged, blocks, call, source,
            patience, *outputs, None,
        )  # fmt: skip

    def reduce(
        self, backend: str, rank: int, x: torch.Tensor, op: str = "sum", protocol: str = "push",
        is_kept: bool = False, **options: int,
    ) -> torch.Tensor:  # fmt: skip
        """The reduction. is_kept: it overwrites x. That of direct shots lies in the workspace."""
        out = x if is_kept else torch.empty_like(x)
        if protocol == "direct shots" and not is_kept:  # at the end of the workspace
            bytes = rounded(x.numel() * x.element_size())
            room = self.spaces[rank].view(torch.uint8)[-bytes:].view(x.dtype)
            out = room[: x.numel()].view(x.shape)
        self.run(backend, rank, "all_reduce", (x,), (out,), (op,), protocol, **options)
        return out.clone()

    def scatter(
        self, backend: str, rank: int, x: torch.Tensor, op: str = "sum", protocol: str = "push",
        **options: int,
    ) -> torch.Tensor:  # fmt: skip
        """The rank's part of a vector's reduction."""
        out = x.new_empty(x.numel() // self.layout.ranks)
        self.run(backend, rank, "reduce_scatter", (x,), (out,), (op,), protocol, **options)
        return out

    def gather(
        self, backend: str, rank: int, x: torch.Tensor, protocol: str = "push", skipped: int = 0,
        **options: int,
    ) -> torch.Tensor:  # fmt: skip
        """All ranks' vectors, in memory that begins `skipped` elements later."""
        out = x.new_empty(x.numel() * self.layout.ranks + skipped)[skipped:]
        bits = as_integers(x), as_integers(out)
        self.run(backend, rank, "all_gather", bits[:1], bits[1:], (), protocol, **options)
        return out

    def add_norm(
        self, backend: str, rank: int, x: torch.Tensor, residual: torch.Tensor,
        weight: torch.Tensor | None, eps: float = 1e-6, protocol: str = "pull", **options: int,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """The norm, the new residual and the statistics."""
        statistics = torch.empty(x.shape[0])
        total, out = torch.empty_like(x), torch.empty_like(x)
        self.run(
            backend, rank, "all_reduce_add_rms_norm", (x, residual, weight),
            (eps, statistics, total, out), (), protocol, **options,
        )  # fmt: skip
        return out, total, statistics

    def barrier(self, backend: str, rank: int, patience: int = 60 * SECOND) -> None:
        BACKENDS[backend].module("distributed.barrier").barrier(
            [*self.spaces, *self.reports],
            "",
            rank,
            self.layout.ranks,
            patience,
            self.spaces[rank],
            None,
        )


Work = Callable[[Ranks, str, int], Any]


def in_threads(ranks: Ranks, work: Work) -> list[Any]:
    """work(ranks, "cuda", rank) of every rank, at once."""
    results: list[Any] = [None] * ranks.layout.ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ranks, "cuda", rank)
        except BaseException as error:
            errors.append(error)

    for rank in range(ranks.layout.ranks):
        ranks.prepare(rank)
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks.layout.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def at_once(backend: str, ranks: Ranks, work: Work) -> list[Any]:
    """work(ranks, backend, rank) of every rank, where the backend's ranks run."""
    return in_threads(ranks, work) if backend == "cuda" else in_processes(ranks, work)


def read_late() -> None:
    """Makes Triton's kernels of this process pause before each read of what peers have written."""
    signal = importlib.import_module("diglot.triton_ops.lib.sync.signal")

    def late(function: Callable[..., Any], before: float, after: float) -> Callable[..., Any]:
        def paused(*arguments: Any) -> Any:
            time.sleep(before)
            result = function(*arguments)
            time.sleep(after)
            return result

        return paused

    signal.meet = late(signal.meet, 0, 0.05)
    signal.await_packets = late(signal.await_packets, 0.05, 0)


def _run_process(rank: int, work: Callable[[int], Any], results: Any) -> None:
    torch.set_num_threads(1)
    results[rank] = work(rank)


def fork(count: int, work: Callable[[int], Any]) -> list[Any]:
    """work(rank) of every rank, each in a process."""
    context = torch.multiprocessing.get_context("fork")
    with context.Manager() as manager:
        results = manager.dict()
        processes = [
            context.Process(target=_run_process, args=(rank, work, results))
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(300)
        for process in processes:
            if process.is_alive():
                process.kill()
        assert [p.exitcode for p in processes] == [0] * count
        return [results[rank] for rank in range(count)]


def in_processes(ranks: Ranks, work: Work) -> list[Any]:
    """work(ranks, "triton", rank) of every rank, at once."""

    def run(rank: int) -> Any:
        ranks.prepare(rank)
        return work(ranks, "triton", rank)

    return fork(ranks.layout.ranks, run)


def in_group(count: int, work: Callable[[int], Any]) -> list[Any]:
    """work(rank) of every rank, each in a process of a group of torch.distributed."""
    with tempfile.TemporaryDirectory() as folder:

        def run(rank: int) -> Any:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count
            )
            result = work(rank)
            torch.distributed.destroy_process_group()
            return result

        return fork(count, run)


def free_port() -> int:
    """A port at which ranks of this machine can meet."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def group_of_gpus(rank: int, ranks: int, port: int) -> Iterator[torch.device]:
    """Context manager: a group of NCCL with a GPU for each rank, without NVLink multicast."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NCCL_NVLS_ENABLE": "0",
    }
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=ranks, device_id=device)
    try:
        yield device
    finally:
        torch.distributed.destroy_process_group()
