"""The ring that Python drives: any chunking gives what the whole gives, and each wait is needed."""

from __future__ import annotations

import dataclasses
import math
import threading
import time

import pytest
import torch
from backends import HAS_CUDA
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import LazyRuntime

import diglot
from diglot import stream_map
from diglot.pipeline.copier import PythonCopier, copier_for, library
from diglot.pipeline.host import HostArray
from diglot.pipeline.job import Job, Sink
from diglot.pipeline.pinned import pinned_cache
from diglot.pipeline.planner import plan
from diglot.pipeline.ring import Ring

CPU = torch.device("cpu")


COPIERS = [
    lambda threads, arrays: PythonCopier(threads),
    pytest.param(
        copier_for,
        marks=pytest.mark.skipif(library() is None, reason="there is no library with threads"),
    ),
]


def stream(fn, x, chunk_rows, num_slots, seed, ring=Ring, shares_compute=True, copier=COPIERS[0]):
    """fn of x by a ring whose streams are as lazy as can be."""
    row = x[0].numel() * x.element_size()
    cut = plan(len(x), [row], [], chunk_rows * row, num_slots)
    out = torch.full((len(x), *fn(x[:1]).shape[1:]), -7.0)
    arrays = [HostArray(out, is_output=True)]
    job = Job(CPU, cut, 0, [HostArray(x)], lambda *a: (fn(*a),), Sink(lambda _: arrays))
    job.shares_compute, job.copy_threads, job.copier = shares_compute, 2, copier
    job.runtime = lambda _, *of: LazyRuntime(*of, seed)
    ring(job).run()
    return out, job


def double(x):
    return x * 2 + 1


@pytest.mark.parametrize("copier", COPIERS)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    chunk_rows=st.integers(1, 45),
    num_slots=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    shares_compute=st.booleans(),
)
def test_any_chunking_and_any_order_give_the_same(
    copier, rows, chunk_rows, num_slots, seed, shares_compute
):
    x = torch.randn(rows, 3)
    out, job = stream(double, x, chunk_rows, num_slots, seed, Ring, shares_compute, copier)
    assert torch.equal(out, double(x))
    assert job.control.valid_rows == rows
    assert len(job.timeline) == job.plan.chunks


class NoWaitForCopy(Ring):
    """Compute does not wait for its chunk."""

    def run(self):
        for stream in self.runtime.computing:
            stream.wait = lambda event: None
        super().run()


class NoWaitForCompute(Ring):
    """Results are copied while they may still be computed."""

    def run(self):
        self.runtime.storing.wait = lambda event: None
        super().run()


class NoWaitForSlot(Ring):
    """A chunk is copied to where the one before may still be needed."""

    def run(self):
        self.runtime.loading.wait = lambda event: None
        super().run()


class OneSlot(Ring):
    """A slot's buffers are used by all."""

    def run(self):
        feed = self.feed

        def feed_one(chunk):
            self.inputs = [self.inputs[0]] * len(self.inputs)
            feed(chunk)

        self.feed = feed_one
        super().run()


class NoWaitForPinned(Ring):
    """Pinned buffers are filled again while they may still be copied from."""

    def is_loaded(self, passage, waits):
        return True


class NoWaitForStored(Ring):
    """Results are taken out of pinned buffers before they are there."""

    def drain(self, chunks):
        while self.fed:
            self.empty(self.fed.popleft())
            self.span_of_first(self.emptying)


class NoWaitForEmpty(Ring):
    """Pinned buffers are copied to while they may still be emptied, which takes a while."""

    def copier(self, direction, arrays):
        copier = super().copier(direction, arrays)
        copier.copy = lambda pieces: time.sleep(1e-3) or PythonCopier.copy(copier, pieces)
        return copier

    def drain(self, chunks):
        super().drain(chunks if chunks == self.plan.chunks else 0)


class NoTail(Ring):
    """The last rows are left out."""

    def __init__(self, job):
        super().__init__(job)
        plan = job.plan
        rows = plan.rows // plan.chunk_rows * plan.chunk_rows
        self.plan = dataclasses.replace(plan, rows=rows)


@pytest.mark.parametrize(
    "fault",
    [
        NoWaitForCopy,
        NoWaitForCompute,
        NoWaitForSlot,
        OneSlot,
        NoWaitForPinned,
        NoWaitForStored,
        NoWaitForEmpty,
        NoTail,
        Ring,
    ],
)
def test_every_wait_is_needed(fault):
    """What lacks one is wrong with a few of the seeds, and the ring as it is with none."""
    x, wrong, few = torch.randn(31, 3), 0, 4
    for seed in range(40):
        wrong += not torch.equal(stream(double, x, 2, 3, seed, fault)[0], double(x))
        if wrong == few:
            break
    assert wrong == (0 if fault is Ring else few)


class OneWriteFails(HostArray):
    """A chunk's rows cannot be written, those after it can."""

    def write(self, begin, end, source):
        if begin == 4:
            raise OSError("no room")
        super().write(begin, end, source)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_valid_ends_before_a_chunk_that_cannot_be_written(seed):
    x = torch.randn(26, 3)
    out = OneWriteFails(torch.zeros_like(x), is_output=True)
    cut = plan(len(x), [12], [], 4 * 12, 3)
    job = Job(CPU, cut, 0, [HostArray(x)], lambda a: (double(a),), Sink(lambda _: [out]))
    job.copier, job.runtime = COPIERS[0], lambda _, *of: LazyRuntime(*of, seed)
    with pytest.raises(OSError, match="no room"):
        Ring(job).run()
    assert job.control.chunk == 1
    assert job.control.valid_rows <= 4


def timed(timeline):
    """The chunks whose times on the device are known."""
    return [i for i, times in enumerate(timeline) if not all(map(math.isnan, times[2:8]))]


@pytest.mark.parametrize("chunks", [3, 16, 17, 40])
def test_which_chunks_are_timed(chunks):
    """And no event is asked for a time that it does not keep."""
    x = torch.randn(chunks, 3)
    _, job = stream(double, x, 1, 3, seed=0)
    expected = [chunk for chunk in range(chunks) if job.plan.is_timed(chunk)]
    assert timed(job.timeline) == expected
    if HAS_CUDA:
        out = torch.empty_like(x)
        stream_map(diglot.gelu, x, out=out, chunk_bytes=12, backend="cuda")
        report = diglot.last_stream_report()
        assert (report.engine, timed(report.timelines[0])) == ("native", expected)


class ClosedOnly(PythonCopier):
    """What it is to copy is under way until it is closed."""

    def __init__(self, threads):
        super().__init__(threads)
        self.is_closed = False
        self.end = threading.Event()

    def copy(self, pieces):
        self.end.wait(10)
        return super().copy(pieces)

    def close(self):
        self.end.set()
        super().close()
        self.is_closed = True


def test_buffers_are_given_back_when_nobody_copies(monkeypatch):
    copiers, back = [], []
    original = type(pinned_cache).give_back

    def give_back(cache, buffer):
        back.append(all(copier.is_closed for copier in copiers))
        original(cache, buffer)

    monkeypatch.setattr(type(pinned_cache), "give_back", give_back)
    x = torch.randn(26, 3)
    cut = plan(len(x), [12], [], 4 * 12, 3)
    outs = [HostArray(torch.zeros_like(x), is_output=True)]
    job = Job(CPU, cut, 0, [HostArray(x)], lambda a: (a,), Sink(lambda _: outs))
    job.runtime = lambda _, *of: LazyRuntime(*of, 0)
    job.copier = lambda count, arrays: copiers.append(ClosedOnly(count)) or copiers[-1]

    class Stopped(Ring):
        def span_of_first(self, queue):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stopped(job).run()
    assert copiers and back and all(back)
