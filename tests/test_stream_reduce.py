"""stream_reduce: partial results are folded in order, as what they were when computed."""

from __future__ import annotations

import functools
import operator
import time

import pytest
import torch
from backends import DEVICE
from streams import assert_bits

from diglot import StreamError, last_stream_report, stream_map, stream_reduce

np = pytest.importorskip("numpy")

X = torch.randn(31, 4)
ROW = 16
TWO = ["cpu:0", "cpu:1"]


def affine(a, b):
    """The composition of x -> s x + t with another: in another order it is another."""
    return a[0] * b[0], a[1] * b[0] + b[1]


@pytest.mark.parametrize("devices", [["cpu"], ["cpu:0", "cpu:1", "cpu:2"]], ids=len)
@pytest.mark.parametrize("num_slots", [1, 2, 3, 9])
def test_partial_results_are_folded_in_order(num_slots, devices):
    x = torch.randint(-3, 4, (40, 2), dtype=torch.int64)

    def compose(chunk):
        time.sleep(1e-3 * (int(chunk.sum()) % 3))
        folded = chunk[0].unbind()
        for row in chunk[1:]:
            folded = affine(folded, row.unbind())
        return folded

    folded = stream_reduce(
        compose, affine, x, chunk_bytes=3 * 16, num_slots=num_slots, devices=devices
    )
    assert folded == tuple(compose(x))


@pytest.mark.parametrize("num_slots", [1, 3, 20])
def test_views_of_chunks_are_folded(num_slots):
    """They are of memory that the next chunks are copied to."""

    def slowly(a, b):
        time.sleep(2e-3)
        return torch.cat([a, b])

    last = stream_reduce(lambda x: x[-1:], slowly, X, chunk_bytes=32, num_slots=num_slots)
    assert_bits(last, torch.cat([X[1::2], X[-1:]]))
    if DEVICE == "cpu":
        assert_bits(stream_reduce(lambda x: x, slowly, X, chunk_bytes=32), X)


def test_what_is_folded_may_change_in_place():
    total = stream_reduce(lambda x: x.double().sum(0), lambda a, b: a.add_(b), X, chunk_bytes=32)
    parts = [X[i : i + 2].double().sum(0) for i in range(0, 31, 2)]
    assert_bits(total, functools.reduce(operator.add, parts))


def test_one_chunk_is_not_combined():
    def combine(a, b):
        raise AssertionError

    assert stream_reduce(torch.sum, combine, X).shape == ()


def test_report_of_a_fold():
    stream_reduce(lambda x: x.sum(0), operator.add, X, chunk_bytes=64)
    report = last_stream_report()
    assert (report.bytes_in, report.bytes_out, report.chunks) == (31 * 16, 16, 8)
    assert "d2h" not in report.stages()


# Refusals, and failures on the way.


def test_a_fold_is_refused():
    with pytest.raises(TypeError, match="combine must be callable"):
        stream_reduce(torch.neg, 3, X)
    with pytest.raises(ValueError, match="stream_reduce: there are no rows to reduce"):
        stream_reduce(torch.neg, operator.add, X[:0])
    with pytest.raises(ValueError, match="stream_reduce: a row has 16 bytes"):
        stream_reduce(torch.neg, operator.add, X, chunk_bytes=8)


@pytest.mark.parametrize("call", [1, 2, 7, 8, 15])
@pytest.mark.parametrize("devices", [["cpu"], TWO], ids=len)
def test_a_combine_that_fails(call, devices):
    calls = []

    def combine(a, b):
        calls.append(b)
        time.sleep(1e-3)
        if len(calls) == call:
            raise KeyError("my key")
        return a + b

    def sums(x):
        return x.sum(0)

    with pytest.raises(StreamError, match=r"stream_reduce: chunk .*KeyError: 'my key'") as failed:
        stream_reduce(sums, combine, X, chunk_bytes=2 * ROW, devices=devices)
    assert (failed.value.chunk, failed.value.rows) == (call, 2 * call)
    assert isinstance(failed.value.__cause__, KeyError)
    assert len(calls) == call  # it is not called again


def test_a_function_that_fails_in_a_fold():
    folded = []

    def sums(x):
        if torch.equal(x.cpu(), X[10:12]):
            raise KeyError
        return x.sum(0)

    def combine(a, b):
        folded.append(b)
        return a + b

    with pytest.raises(StreamError, match="stream_reduce: chunk 5") as failed:
        stream_reduce(sums, combine, X, chunk_bytes=2 * 16)
    assert (failed.value.chunk, failed.value.rows) == (5, 10)
    assert len(folded) == 4


def test_too_little_memory_in_a_fold():
    calls = []

    def fn(x):
        calls.append(len(x))
        if len(calls) == 3:
            raise torch.OutOfMemoryError
        return x.sum(0)

    x = X.round()  # so that sums are exact
    total = stream_reduce(fn, operator.add, x, chunk_bytes=8 * ROW)
    assert torch.equal(total, x.sum(0))


def test_combine_that_returns_no_tensor():
    with pytest.raises(StreamError, match="combine must return tensors, not a float") as failed:
        stream_reduce(torch.sum, lambda a, b: float(a + b), torch.ones(6, 2), chunk_bytes=8)
    assert failed.value.chunk == 1


def test_what_combine_returns_is_given():
    """One tensor or several, whatever fn returns."""
    pair = stream_reduce(lambda c: c.sum(0), lambda a, b: (b, b), X, chunk_bytes=3 * ROW)
    assert isinstance(pair, tuple) and len(pair) == 2
    one = stream_reduce(lambda c: (c.sum(), c.max()), lambda a, b: b[0], X, chunk_bytes=len(X) * 8)
    assert isinstance(one, torch.Tensor)


def test_arrays_of_what_combine_returns():
    x = np.array([1 + 2j, 3 - 1j])
    found = stream_reduce(lambda c: c, lambda a, b: b.conj(), x, chunk_bytes=16)
    assert np.array_equal(found, [3 + 1j])
    with pytest.raises(TypeError, match=r"combine returns torch\.bfloat16, which NumPy lacks"):
        stream_reduce(torch.clone, lambda a, b: b.real.bfloat16(), x, chunk_bytes=16)


def test_chunks_of_a_fold_are_the_same_for_any_devices():
    x = torch.ones(1 << 22, 8)  # 128 MiB; a map cuts smaller chunks for more devices

    def chunks(call, *arguments):
        found = []
        for devices in (["cpu"], TWO):
            call(*arguments, x, devices=devices)
            found.append(last_stream_report().chunk_rows)
        return found

    one, two = chunks(stream_reduce, torch.clone, lambda a, b: a)
    assert one == two
    one, two = chunks(stream_map, torch.neg)
    assert one > two
