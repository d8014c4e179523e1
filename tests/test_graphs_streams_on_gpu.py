"""Graphs on several streams and in several threads, and copies into their inputs, on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time

import pytest
import torch
from torch import nn

from diglot.backends.driver import check_driver, driver
from diglot.graphs import Pool, capture
from diglot.graphs.watch import library

pytestmark = pytest.mark.gpu


def model_of(width):
    layers = [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width)]
    return nn.Sequential(*layers).cuda()


@contextlib.contextmanager
def held(stream):
    """Work that the stream gets now waits for the end of the context, or for 20 seconds."""
    gate = torch.zeros(1, dtype=torch.int32).pin_memory()
    status = driver().cuStreamWaitValue32_v2(
        ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(gate.data_ptr()), ctypes.c_uint32(1), 0
    )
    check_driver(status, "having a stream wait")
    timer = threading.Timer(20, gate.fill_, (1,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        gate.fill_(1)
        torch.cuda.synchronize()


def test_replays_of_a_pool_do_not_overlap():
    """On another stream a replay waits for the pool's last one, and for no other pool's.

    GPUs have few queues, so some streams wait for each other without a reason: there are many here.
    """
    x, pool = torch.ones(1 << 16, device="cuda"), Pool("cuda")
    first, *others = [torch.cuda.Stream() for _ in range(21)]
    one, other = (capture(lambda x, by=by: x * by, x, pool=pool) for by in (3, 7))
    apart = [capture(lambda x: x * 7, x) for _ in others[4:]]
    for graphed in (one, other, *apart):  # what first calls alone do is done
        graphed(x)
    torch.cuda.synchronize()

    def replayed(graphed, stream):
        with torch.cuda.stream(stream):
            graphed(x)
            return stream.record_event()

    with held(first):
        replayed(one, first)
        waiting = [replayed(other, stream) for stream in others[:4]]
        free = [replayed(*each) for each in zip(apart, others[4:], strict=True)]
        deadline = time.monotonic() + 10
        while not any(event.query() for event in free) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert any(event.query() for event in free)
        assert not any(event.query() for event in waiting)
    assert other(x).eq(7).all()


def test_threads_capture_and_replay():
    """Random numbers are the CPU's: while a thread captures, no other may draw on the GPU."""
    errors = []

    def work(seed):
        try:
            generator = torch.Generator().manual_seed(seed)
            model = models[seed]
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                graphed = capture(model, torch.ones(4, 64, device="cuda"), clone=True)
                for _ in range(50):
                    x = torch.randn(4, 64, generator=generator).cuda()
                    torch.testing.assert_close(graphed(x), model(x))
        except BaseException as error:
            errors.append(error)

    models = [model_of(64) for _ in range(4)]
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_backward_passes_beside_a_capture():
    """PyTorch has one thread for them. It may wait for a pool whose capture has one, too."""
    pool, models = Pool("cuda"), [model_of(64) for _ in range(2)]
    x = torch.randn(4, 64, device="cuda", requires_grad=True)
    replayed = capture(models[0], x, pool=pool)
    expected = torch.autograd.grad(models[0](x).square().sum(), x)
    done, errors = threading.Event(), []

    def work(repeat):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                repeat()
        except BaseException as error:
            errors.append(error)

    def replays():
        while not done.is_set():
            found = torch.autograd.grad(replayed(x).square().sum(), x)
            torch.testing.assert_close(found, expected)

    def captures():
        for _ in range(10):
            capture(models[1], x, pool=pool)
        done.set()

    torch.cuda.synchronize()
    threads = [
        threading.Thread(target=work, args=(repeat,), daemon=True) for repeat in (replays, captures)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    done.set()
    assert not errors and not any(thread.is_alive() for thread in threads)


@pytest.mark.skipif(library() is None, reason="there is no library that copies")
def test_native_copies():
    """On the current stream, whatever layout: rows with gaps, and what only PyTorch copies."""
    graphed = capture(
        lambda x, y: (x * 1, y * 1),
        (torch.zeros(8, 64, device="cuda"), torch.zeros(8, 64, device="cuda", dtype=torch.int64)),
        dims=({0: "n", 1: "k"}, {0: "n", 1: "k"}),
        buckets={"n": (8,), "k": (32, 64)},
        max_padding=1e9,
        clone=True,
    )
    (family,) = graphed._families.values()
    taken, natively = [], family.inputs._copy_natively
    family.inputs._copy_natively = lambda *args: taken.append(natively(*args)) or taken[-1]
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    wide = torch.randn(200, 200, device="cuda")
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            for n, k in ((8, 64), (3, 50), (8, 20), (1, 1)):
                y = torch.randint(1000, (n, k), device="cuda")
                for x, is_native in (
                    (wide[:n, :k], True),
                    (wide[:n, :k].contiguous(), True),
                    (wide.t()[:n, :k], n == k == 1),
                    (wide[:n, :1].expand(n, k), n == k == 1),
                ):
                    found = graphed(x, y)
                    assert torch.equal(found[0], x) and torch.equal(found[1], y)
                    assert taken.pop() == is_native
        stream.synchronize()
