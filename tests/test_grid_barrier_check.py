"""The grid barrier, run: every block sees what all others wrote, whatever else the GPU does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest
import torch
import triton
from backends import BACKENDS, CUDA, DEVICE, KERNELS
from planted.library import KERNELS as PLANTED
from planted.library import build_for_gpu, find_nvcc
from triton.runtime.errors import InterpreterError

import diglot
from diglot.backends.plans import BARRIER_BYTES, STREAM, Scratch
from diglot.backends.runs import run
from diglot.backends.scratch import provide, release_streams
from diglot.triton_ops.lib.sync import grid_barrier

gpu = pytest.mark.gpu


def blocks_at_once():
    if DEVICE == "cpu":
        return 8
    return torch.cuda.get_device_properties(0).multi_processor_count


def start(backend, slots, mismatches, what="check", barrier="diglot"):
    """Runs the launcher; the scratch that it was given, and others on this stream are."""
    name = "grid_barrier_check"
    run(backend, name, name, slots, barrier, what, mismatches)
    return provide(Scratch(BARRIER_BYTES, BARRIER_BYTES, STREAM), slots.device)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_block_sees_what_others_wrote(backend):
    for blocks in (None, 1, 5, 2):  # one barrier's state serves all of them, without a reset
        found = diglot.grid_barrier_check(20, blocks, backend=backend)
        assert found.mismatches.dtype == torch.int32
        assert found.mismatches.device.type == DEVICE
        assert torch.equal(found.mismatches.cpu(), torch.zeros(20, dtype=torch.int32))
        assert found.microseconds > 0
        assert diglot.last_run().launcher == "grid_barrier_check"
        assert diglot.last_run().backend == backend


@pytest.mark.parametrize("backend", KERNELS)
def test_it_counts_what_is_not_there(backend):
    """A barrier that let a block through too early would be seen."""
    slots = torch.zeros((2, 3, 8), dtype=torch.int32, device=DEVICE)
    mismatches = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    start(backend, slots, mismatches, "read")
    assert (mismatches == 3 * 3 * 8).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_phases(backend):
    found = diglot.grid_barrier_check(0, 3, backend=backend)
    assert found.mismatches.shape == (0,)
    assert found.microseconds == 0


def test_other_devices():
    with pytest.raises(ValueError, match="device must be a CUDA device or the CPU, not meta"):
        diglot.grid_barrier_check(3, device="meta")


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_arguments(backend):
    with pytest.raises(ValueError, match="phases must be 0 or more, not -1"):
        diglot.grid_barrier_check(-1, backend=backend)
    for blocks in (0, -3):
        with pytest.raises(ValueError, match=f"blocks must be positive, not {blocks}"):
            diglot.grid_barrier_check(3, blocks, backend=backend)


# Triton's interpreter has no such limit.
@pytest.mark.parametrize("backend", [CUDA, pytest.param("triton", marks=gpu)])
def test_a_grid_that_is_too_big(backend):
    """An error with the numbers in it, not a hang; nothing of it lasts."""
    with pytest.raises(ValueError, match=r"grid_barrier_phases.*100000.* \d+.* at once"):
        diglot.grid_barrier_check(3, 100_000, backend=backend)
    assert not diglot.grid_barrier_check(3, 2, backend=backend).mismatches.any()


def most_at_once(backend):
    """The number of blocks that an error speaks of."""
    with pytest.raises(ValueError, match="at once") as refused:
        diglot.grid_barrier_check(3, 100_000, backend=backend)
    return int(str(refused.value).split()[-3])


@gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_as_many_blocks_as_run_at_once(backend):
    most = most_at_once(backend)
    assert most % blocks_at_once() == 0
    assert not diglot.grid_barrier_check(1000, most, backend=backend).mismatches.any()
    with pytest.raises(ValueError, match="at once"):
        diglot.grid_barrier_check(3, most + 1, backend=backend)


@triton.jit
def bare_barrier(word):
    grid_barrier.sync(word)


@pytest.mark.skipif(DEVICE == "cuda", reason="Triton's interpreter is for machines without a GPU")
def test_a_bare_barrier_under_triton_interpreter():
    with pytest.raises(InterpreterError, match="no program can wait"):
        bare_barrier[(2,)](torch.zeros(1, dtype=torch.int32))


class Competition(threading.Thread):
    """Keeps two other streams busy with short and long kernels while its scope lasts."""

    def __init__(self):
        super().__init__()
        self.rounds = 0
        self.is_over = threading.Event()

    def __enter__(self):
        self.start()
        while self.rounds == 0:
            assert self.is_alive()  # otherwise it failed, and no round will come
            time.sleep(0.001)
        return self

    def __exit__(self, *error):
        self.is_over.set()
        self.join()

    def run(self):
        matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        while not self.is_over.is_set():
            for stream in streams:
                with torch.cuda.stream(stream):
                    for _ in range(20):
                        matrix @ matrix
                        matrix[0] + 1
            for stream in streams:
                stream.synchronize()
            self.rounds += 1


@gpu
@pytest.mark.slow
@pytest.mark.parametrize("competing", [False, True])
@pytest.mark.parametrize("backend", KERNELS)
def test_a_million_barriers(backend, competing):
    diglot.grid_barrier_check(1, backend=backend)
    with Competition() if competing else contextlib.nullcontext() as competition:
        before = competition.rounds if competing else 0
        found = diglot.grid_barrier_check(1_000_000, backend=backend)
        assert not competing or competition.rounds > before + 10
    assert found.mismatches.shape == (1_000_000,)
    assert not found.mismatches.any()


def buffers(blocks, phases=2000):
    slots = torch.zeros((2, blocks, 8), dtype=torch.int32, device="cuda")
    return slots, torch.zeros(phases, dtype=torch.int32, device="cuda")


@gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_two_streams_at_once(backend):
    """Each fills the GPU by itself. They neither share a word nor wait for each other."""
    most = most_at_once(backend)
    streams = [torch.cuda.Stream() for _ in range(2)]
    of_streams, words = [], set()
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                slots, mismatches = buffers(most)
                words.add(start(backend, slots, mismatches).data_ptr())
                of_streams.append(mismatches)
    torch.cuda.synchronize()
    assert len(words) == 2
    assert not any(m.any() for m in of_streams)


@gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_graphs(backend):
    """A captured launch has a word of its own, beside the graph; replays on two streams."""
    release_streams()  # a buffer that an earlier graph left has the state that its barriers left
    slots, mismatches = buffers(blocks_at_once())
    words, graphs = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        own_slots, own_mismatches = slots.clone(), mismatches.clone()
        with torch.cuda.graph(graph):
            words.append(start(backend, own_slots, own_mismatches))
        graphs.append((graph, own_mismatches, own_slots))
    words.append(start(backend, slots, mismatches))
    assert len({word.data_ptr() for word in words}) == 3
    # Zeroed, though nothing has been replayed.
    assert not any(word[:BARRIER_BYTES].any() for word in words[:2])
    streams = [torch.cuda.Stream() for _ in range(2)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for _ in range(20):
        for (graph, *_), stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        start(backend, slots, mismatches)
    torch.cuda.synchronize()
    assert not mismatches.any()
    assert not any(own.any() for _, own, _ in graphs)


def test_there_is_no_other_barrier_in_triton():
    slots = torch.zeros((2, 3, 8), dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match=r"Triton has no grid\.sync"):
        start("triton", slots, slots[0, 0], barrier="grid.sync")


@gpu
def test_nothing_is_timed_in_a_capture():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="cannot measure time"):
        diglot.grid_barrier_check(3)


DROPPED = """
import sys
import torch, triton, triton.language as tl
from diglot.triton_ops.lib.sync import grid_barrier

@triton.jit
def kernel(word):
    if tl.program_id(0) != 3:
        grid_barrier.sync(word)

kernel[(8,)](torch.zeros(1, dtype=torch.int32, device="cuda"), launch_cooperative_grid=True)
torch.cuda.synchronize()
"""


@gpu
@pytest.mark.slow
def test_a_dropped_arrival_ends_in_triton_checked_build(tmp_path):
    """The checked build says who is missing, and traps; it does not hang."""
    script = tmp_path / "dropped.py"
    script.write_text(DROPPED)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "DIGLOT_CHECKED": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "a program has waited 10 s" in said
    assert "arrived: 7" in said
    assert "CUDA error" in said


@gpu
@pytest.mark.slow
def test_a_dropped_arrival_ends_in_cuda_checked_build(tmp_path):
    if find_nvcc() is None:
        pytest.skip("no nvcc")
    library = build_for_gpu(tmp_path, ["-DDIGLOT_CHECKED"])
    script = PLANTED.with_name("library.py")
    done = subprocess.run(
        [sys.executable, str(script), str(library), "drop_arrival"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stdout + done.stderr
    assert "grid barrier: block (" in said
    assert "has waited 10 s in phase 19; 3 of 4 blocks have arrived, the first of them too" in said
    assert "running: " in said  # CUDA's error


def test_a_device_without_cooperative_launch():
    """What Triton's launch helper is told; CUDA's asks the runtime, which is not to be replaced."""
    from diglot.triton_ops.launch.handles import occupancy
    from diglot.triton_ops.launch.plan import Device

    with pytest.raises(RuntimeError, match="launches no kernel co-operatively"):
        occupancy(None, Device(90, 0, 0, False))
