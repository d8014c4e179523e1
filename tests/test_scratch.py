"""Scratch of launches: a call's, a stream's, a graph's, and how much is held."""

from __future__ import annotations

import collections
import contextlib
import gc
import multiprocessing
import threading
import weakref

import pytest
import torch
from backends import DEVICE
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import diglot
from diglot.backends import runs
from diglot.backends import scratch as module
from diglot.backends.plans import BARRIER_BYTES, CALL, STREAM, Scratch
from diglot.backends.scratch import (
    held_bytes,
    keep_with_capture,
    keep_with_stream,
    kept_with_capture,
    kept_with_stream,
    provide,
)

GPU = torch.device("cuda", 0)


class FakeDriver:
    """A driver that knows user objects alone. `destroy` ends a graph as CUDA does."""

    def __init__(self):
        self.semaphores = {}
        self.made = None

    def cuUserObjectCreate(self, owner, semaphore, post, count, flags):
        self.made = semaphore
        return 0

    def cuGraphRetainUserObject(self, graph, owner, count, flags):
        self.semaphores.setdefault(graph.value, []).append(self.made)
        return 0

    def destroy(self, graph):
        for semaphore in self.semaphores.pop(graph):
            module._c_library().sem_post(semaphore)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU as far as scratch goes, whose memory is the CPU's. `stream` and `graph` may be set."""

    class Gpu:
        driver = FakeDriver()
        stream = 7
        graph: int | None = None
        life = 1  # a stream destroyed and made again has the handle of its former life
        is_idle = False

        class Event:
            def record(self, stream):
                pass

            def query(self):
                return state.is_idle

    state = Gpu()
    for name in ("_streams", "_retired", "_graphs", "_spare", "_values"):
        monkeypatch.setattr(module, name, collections.OrderedDict())
    monkeypatch.setattr(module, "relaxed_capture", contextlib.nullcontext)
    monkeypatch.setattr(module, "stream_number", lambda index: 100 * state.life + state.stream)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: state.Event())
    monkeypatch.setattr(module, "_thread_streams", module._ThreadStreams())
    monkeypatch.setattr(module, "driver", lambda: state.driver)
    monkeypatch.setattr(module, "is_captured", lambda device: state.graph is not None)
    monkeypatch.setattr(module, "beside_captures", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(module, "current_capture", lambda index: (10 * state.graph, state.graph))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: state.stream,
                        raising=False)  # fmt: skip
    with_zeros = module._with_zeros

    def on_cpu(count, zeroed, device):
        made = with_zeros(count, zeroed, torch.device("cpu"))
        made[zeroed:] = 0xFF
        return made

    monkeypatch.setattr(module, "_with_zeros", on_cpu)
    return state


def test_a_calls_scratch_is_its_own():
    need = Scratch(1000, 100, CALL)
    first, second = (provide(need, torch.device(DEVICE)) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    assert first.dtype == torch.uint8 and first.numel() == 1000 and not first[:100].any()


def test_launches_on_one_stream_share_a_buffer_that_grows(gpu):
    need = Scratch(100, BARRIER_BYTES, STREAM)
    first = provide(need, GPU)
    assert provide(need, GPU) is first and not first[:BARRIER_BYTES].any()
    first[:BARRIER_BYTES] = 3  # a launch leaves the barrier as the next one wants it
    assert provide(Scratch(first.numel(), 16, STREAM), GPU)[0] == 3
    larger = provide(Scratch(first.numel() + 1, 16, STREAM), GPU)
    assert larger is not first and larger.numel() > first.numel()
    assert not larger[:BARRIER_BYTES].any() and provide(need, GPU) is larger
    gpu.stream = 8
    assert provide(need, GPU) is not larger
    assert held_bytes()["streams"] == held_bytes(0)["streams"] > larger.numel()
    assert held_bytes(1)["streams"] == 0
    module.release_streams()
    assert held_bytes()["streams"] == 0


@pytest.mark.parametrize("stream", [7, module.PER_THREAD_STREAM])
@pytest.mark.parametrize("graph", [None, 1])
def test_launches_that_count_share_no_buffer_with_those_that_do_not(gpu, graph, stream):
    """One has zeros where others have whatever they left."""
    gpu.graph, gpu.stream = graph, stream
    of_barrier = provide(Scratch(500, BARRIER_BYTES, STREAM), GPU)
    counted = provide(Scratch(500, 400, STREAM), GPU)
    assert counted.data_ptr() != of_barrier.data_ptr() and not counted[:400].any()
    assert provide(Scratch(600, 400, STREAM), GPU) is counted
    assert held_bytes()["graphs" if graph else "streams"] == counted.numel() + of_barrier.numel()
    module.release_streams()


def test_a_stream_of_another_ones_handle_has_another_buffer(gpu):
    need = Scratch(100, 16, STREAM)
    first = provide(need, GPU)
    gpu.life = 2
    second = provide(need, GPU)
    assert second is not first and provide(need, GPU) is second
    assert held_bytes()["streams"] == second.numel()


def test_threads_share_no_buffer_of_their_own_streams(gpu):
    """cudaStreamPerThread has one handle and is a stream of each thread."""
    need, seen = Scratch(100, 16, STREAM), []

    def take():
        seen.append(provide(need, GPU).data_ptr())

    def take_in_thread():
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()

    take()
    take_in_thread()
    assert seen[0] == seen[1]  # of one ordinary stream
    gpu.stream = module.PER_THREAD_STREAM
    take()
    take_in_thread()
    take_in_thread()  # the launches of the thread before may still run
    assert len(set(seen)) == 4
    assert held_bytes()["spare"] == 2 * module.SMALLEST
    gpu.is_idle = True
    take_in_thread()
    assert seen[-1] in seen[3:5]
    module.release_streams()
    assert held_bytes() == {"streams": 0, "graphs": 0, "spare": 0}


def test_what_a_thread_outgrew_is_kept_until_its_launches_have_ended(gpu):
    gpu.stream = module.PER_THREAD_STREAM
    first = provide(Scratch(100, 16, STREAM), GPU)
    larger = provide(Scratch(first.numel() + 1, 16, STREAM), GPU)
    assert larger is not first and held_bytes()["spare"] == first.numel()
    module.release_streams()


def test_a_child_process_takes_no_lock_of_its_parents_threads():
    """A thread that held one is not there to let go of it."""
    held, ended = threading.Event(), threading.Event()

    def hold():  # on another thread: the one that forks may take a re-entrant lock again
        with module._lock, runs._lock:
            held.set()
            ended.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    child = multiprocessing.get_context("fork").Process(target=_take_locks)
    child.start()
    child.join(60)
    ended.set()
    thread.join()
    assert child.exitcode == 0


def _take_locks():
    for kept in (module, runs):
        assert kept._lock.acquire(timeout=5)


def test_a_graphs_scratch_lives_as_long_as_the_graph(gpu):
    need = Scratch(100, 16, STREAM)
    of_stream = provide(need, GPU)
    gpu.graph = 1
    first = provide(need, GPU)
    assert first is not of_stream and not first[:BARRIER_BYTES].any()
    assert provide(need, GPU) is first  # launches captured on one stream follow each other
    gpu.stream = 8
    fork = provide(need, GPU)
    assert fork is not first  # but those of two streams of a graph may run at once
    gpu.graph = 2
    other = provide(need, GPU)
    assert len({t.data_ptr() for t in (of_stream, first, fork, other)}) == 4
    assert held_bytes()["graphs"] == first.numel() * 3
    gpu.driver.destroy(1)
    assert held_bytes() == {
        "streams": of_stream.numel(),
        "graphs": other.numel(),
        "spare": 2 * first.numel(),
    }
    gpu.graph = 3
    again = provide(need, GPU)
    assert again.data_ptr() in (first.data_ptr(), fork.data_ptr())
    assert held_bytes()["spare"] == first.numel()
    module.release_streams()
    assert held_bytes() == {"streams": 0, "graphs": 2 * first.numel(), "spare": 0}


def test_a_graph_gets_the_smallest_spare_buffer_that_fits(gpu):
    sizes = (8 * module.SMALLEST, module.SMALLEST)
    for gpu.graph in (1, 2):
        provide(Scratch(sizes[gpu.graph - 1], 16, STREAM), GPU)
    gpu.driver.destroy(1)
    gpu.driver.destroy(2)
    gpu.graph = 3
    assert provide(Scratch(100, 16, STREAM), GPU).numel() == module.SMALLEST


def test_what_captured_launches_outgrew_stays_theirs(gpu):
    gpu.graph = 1
    first = provide(Scratch(100, 16, STREAM), GPU)
    reference = weakref.ref(first)
    larger = provide(Scratch(first.numel() + 1, 16, STREAM), GPU)
    assert larger.numel() > first.numel()
    del first
    gc.collect()
    assert reference() is not None
    gpu.driver.destroy(1)
    assert held_bytes()["graphs"] == 0
    gc.collect()
    assert reference() is None


def test_values_are_kept_with_a_capture(gpu):
    gpu.graph = 1
    table = torch.zeros(8, dtype=torch.uint8)
    assert kept_with_capture(GPU, "table") is None
    assert keep_with_capture(GPU, "table", table) is table
    assert keep_with_capture(GPU, "table", torch.ones(8)) is table
    assert kept_with_capture(GPU, "table") is table and held_bytes()["graphs"] == 8
    gpu.graph = 2
    assert kept_with_capture(GPU, "table") is None
    gpu.driver.destroy(1)
    assert held_bytes()["graphs"] == 0


def test_values_are_kept_with_a_stream(gpu):
    table = torch.zeros(8, dtype=torch.uint8)
    assert kept_with_stream(GPU, "table") is None
    assert keep_with_stream(GPU, "table", (table, 3)) == (table, 3)
    assert kept_with_stream(GPU, "table")[0] is table and held_bytes(0)["streams"] == 8
    gpu.life = 2  # another stream of the same handle
    assert kept_with_stream(GPU, "table") is None
    module.release_streams()
    assert held_bytes()["streams"] == 0


def test_modes_have_no_part_in_what_is_kept(gpu):
    with FakeTensorMode(), torch.inference_mode():
        scratch = provide(Scratch(100, 16, STREAM), GPU)
    assert not isinstance(scratch, FakeTensor) and not scratch.is_inference()


def test_interpreted_launches_share_nothing():
    """Threads of the CPU may interpret kernels at once."""
    need = Scratch(100, 16, STREAM)
    first, second = (provide(need, torch.device("cpu")) for _ in range(2))
    assert first.data_ptr() != second.data_ptr() and not first[:BARRIER_BYTES].any()


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_graphs_have_scratch_of_their_own_and_free_it(backend):
    x = torch.randn(300_000, device="cuda")
    expected = diglot.global_softmax(x, backend=backend)
    before = held_bytes()["graphs"]
    graphs = []
    for _ in range(5):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = diglot.global_softmax(x, backend=backend)
        graphs.append((graph, result))
    assert held_bytes()["graphs"] > before
    torch.cuda.empty_cache()
    rest = [torch.full((64,), -1, dtype=torch.int32, device="cuda") for _ in range(100)]
    for _ in range(3):
        for graph, result in graphs:
            result.zero_()
            graph.replay()
            assert torch.equal(result, expected)
    assert all((t == -1).all() for t in rest)
    del graph, result
    graphs.clear()
    torch.cuda.synchronize()
    gc.collect()
    assert held_bytes()["graphs"] == before
    assert held_bytes()["spare"] > 0
