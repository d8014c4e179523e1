"""A table of chunks is copied to the device on one stream, and read by launches on no other."""

from __future__ import annotations

import importlib

import pytest
import torch
from backends import KERNELS
from clipping import clip, copies, draw

from diglot.backends import chunk_table, scratch
from diglot.backends.chunk_table import DenseTensors, find_table, make_table

TENSORS = DenseTensors((1 << 20,), (300,), (torch.float32,))


class Rows:
    """A table's rows that are on their way to a device."""

    def pin_memory(self):
        return self

    def to(self, device, non_blocking=False):
        return self


@pytest.fixture
def streams(monkeypatch):
    """A device with a current stream for each index: streams[0] = 7 changes it."""
    current = {0: 7, 1: 7}
    monkeypatch.setattr(scratch, "stream_number", current.get)
    monkeypatch.setattr(chunk_table, "is_captured", lambda device: False)
    monkeypatch.setattr(chunk_table, "build_rows", lambda tensors: Rows())
    scratch._values.clear()
    yield current
    scratch._values.clear()


def test_each_stream_has_its_own(streams):
    """Its copy is ordered by nothing but the stream that it is made on."""
    device = torch.device("cuda", 0)
    first = make_table(device, TENSORS)
    assert find_table(device, TENSORS) is first
    streams[0] = 8
    assert find_table(device, TENSORS) is None
    second = make_table(device, TENSORS)
    assert second is not first and second.rows is not first.rows
    for stream, table in ((7, first), (8, second)):
        streams[0] = stream
        assert find_table(device, TENSORS) is table


def test_each_device_has_its_own(streams):
    """Also where their streams have one number, as default streams do."""
    make_table(torch.device("cuda", 0), TENSORS)
    assert find_table(torch.device("cuda", 1), TENSORS) is None


def test_the_table_that_was_not_used_for_longest_is_forgotten(streams):
    device = torch.device("cuda", 0)
    several = [TENSORS._replace(sizes=(size,)) for size in range(scratch.MOST_VALUES + 1)]
    for tensors in several[:-1]:
        make_table(device, tensors)
    assert find_table(device, several[0]) is not None
    make_table(device, several[-1])
    forgotten = [tensors.sizes for tensors in several if find_table(device, tensors) is None]
    assert forgotten == [several[1].sizes]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_a_late_stream(backend):
    """The first stream has not copied its table when another one wants the same."""
    grads = draw([5000, 300, 70_001])
    expected = clip(copies(grads), float("inf"), backend=backend)  # and loads the kernel
    late, other = torch.cuda.Stream(), torch.cuda.Stream()
    describe = importlib.import_module("diglot.ops.clip_grad_norm_")._describe
    rows = chunk_table.build_rows(describe(grads)).shape
    torch.cuda.synchronize()
    with torch.cuda.stream(late):
        # What the table's memory holds until then: rows without elements, as safe as wrong.
        for memory in [torch.zeros(rows, dtype=torch.int64, device="cuda") for _ in range(4)]:
            del memory
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        first = clip(grads, float("inf"), backend=backend)  # scales nothing
        behind = torch.cuda.Event()
        behind.record()
    with torch.cuda.stream(other):
        second = clip(grads, float("inf"), backend=backend)
        other.synchronize()
        assert not behind.query(), "the first stream was not late"
    torch.cuda.synchronize()
    assert first == second == expected
