"""Failures while stream_map runs: the message, the output's content, and that nothing is left
behind.
"""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from backends import CUDA, DEVICE, needs_cuda

import diglot
from diglot import StreamError, StreamInterrupted, last_stream_report, stream_map
from diglot.backends import runs
from diglot.pipeline import arguments, copier, shares
from diglot.pipeline.pinned import pinned_cache
from diglot.pipeline.ring import Passage, Ring

np = pytest.importorskip("numpy")

X = torch.arange(120.0).reshape(40, 3)
ROW = 12
TWO = ["cpu:0", "cpu:1"]


# What fails on the way.


def at(chunk, fault, fn=torch.neg):
    """fn, but a fault where a chunk of two rows of X has this number."""

    def with_fault(x):
        return fault(x) if float(x[0, 0]) == 6 * chunk else fn(x)

    return with_fault


def raises(error):
    def fault(x):
        raise error

    return fault


WRONG = {
    "raises": (raises(KeyError("my key")), "KeyError: 'my key'"),
    "fewer rows": (
        lambda x: x[1:],
        r"as many rows as its chunk has, 2, not a tensor of shape \(1, 3\)",
    ),
    "more rows": (lambda x: torch.cat([x, x]), "as many rows as its chunk has"),
    "a number": (
        lambda x: x.sum(),
        r"as many rows as its chunk has, 2, not a tensor of shape \(\)",
    ),
    "nothing": (lambda x: None, "fn must return tensors, not a NoneType"),
    "none": (lambda x: (), "at least one tensor"),
    "a dict": (lambda x: {"a": x}, "fn must return tensors, not a dict"),
    "an array": (lambda x: x.cpu().numpy(), "fn must return tensors, not a ndarray"),
    "a list of numbers": (lambda x: [1, 2], "fn must return tensors, not a int"),
    "elsewhere": (lambda x: x.to("meta"), "on the chunk's device, .*, not on meta"),
}
CHANGED = {
    "a dtype": (lambda x: x.double(), "torch.float64, and before of"),
    "a shape": (lambda x: x[:, :2], r"fn returned rows of \(2,\)"),
    "a number of results": (lambda x: (x, x), "fn returned 2 tensors, and 1 before"),
}


def assert_fails(chunk, message, fn, **options):
    """Asserts the message of a failure at a chunk, and the content of out."""
    out = torch.full_like(X, 7)
    with pytest.raises(StreamError, match=message) as failed:
        stream_map(fn, X, out=out, chunk_bytes=2 * ROW, **options)
    error = failed.value
    assert error.chunk == chunk
    assert f"chunk {chunk} (rows {2 * chunk} to {2 * chunk + 2})" in str(error)
    covered = torch.zeros(40, dtype=torch.bool)
    for begin, end in error.valid:
        assert torch.equal(out[begin:end], -X[begin:end])
        covered[begin:end] = True
    assert error.rows == (40 if covered.all() else int((~covered).nonzero()[0]))
    assert not covered[2 * chunk : 2 * chunk + 2].any()
    assert pinned_cache.bytes_in_use == 0
    return error, out


@pytest.mark.parametrize("chunk", [0, 1, 7, 19])
@pytest.mark.parametrize("name", WRONG)
def test_a_function_that_fails(name, chunk):
    fault, message = WRONG[name]
    error, out = assert_fails(chunk, message, at(chunk, fault))
    assert error.rows == 2 * chunk  # all before, and nothing after
    assert (out[2 * chunk :] == 7).all()
    assert error.__cause__ is not None


@pytest.mark.parametrize("devices", [None, TWO])
def test_a_function_that_leaves(devices):
    out = torch.full_like(X, 7)
    with pytest.raises(SystemExit) as left:
        stream_map(at(13, raises(SystemExit(3))), X, out=out, chunk_bytes=2 * ROW, devices=devices)
    assert left.value.code == 3
    assert (out[26:] == 7).all() and torch.equal(out[20:26], -X[20:26])
    assert pinned_cache.bytes_in_use == 0


def test_a_signal_that_leaves():
    """As a service does when it is told to end."""

    def leave(*_):
        raise SystemExit(4)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit) as left:
            stream_map(at(5, lambda x: signal.raise_signal(signal.SIGTERM)), X, chunk_bytes=2 * ROW)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 4
    assert pinned_cache.bytes_in_use == 0


@pytest.mark.parametrize("name", CHANGED)
def test_a_function_whose_results_change(name):
    fault, message = CHANGED[name]
    error, out = assert_fails(5, message, at(5, fault))
    assert error.rows == 10
    assert (out[10:] == 7).all()


@pytest.mark.parametrize("chunk", [0, 9, 10, 19])
def test_one_of_two_devices_fails(chunk):
    error, _ = assert_fails(chunk, "KeyError", at(chunk, WRONG["raises"][0]), devices=TWO)
    assert [begin for begin, _ in error.valid] == [0, 20]
    assert error.valid[chunk // 10][1] == 2 * chunk
    assert f"on cpu:{chunk // 10}" in str(error)


def test_out_that_does_not_fit_a_callable():
    for out, message in [
        (torch.zeros(40, 3, dtype=torch.float64), "shape and dtype"),
        (torch.zeros(40, 4), r"\(40, 3\) and torch.float32, not \(40, 4\)"),
    ]:
        with pytest.raises(StreamError, match=message) as failed:
            stream_map(torch.neg, X, out=out)
        assert (failed.value.chunk, failed.value.rows) == (0, 0)
        assert (out == 0).all()


def test_arrays_that_numpy_lacks():
    with pytest.raises(StreamError, match=r"torch\.bfloat16, which NumPy lacks"):
        stream_map(torch.Tensor.bfloat16, X.numpy())
    with pytest.raises(StreamError, match=r"chunk 0 .* torch\.float8_e4m3fn, which NumPy lacks"):
        stream_map(lambda x: x.to(torch.float8_e4m3fn), X.numpy())
    out = torch.zeros(40, 3, dtype=torch.bfloat16)
    assert stream_map(torch.Tensor.bfloat16, X.numpy(), out=out) is out
    assert torch.equal(out, X.bfloat16())


def test_arrays_whatever_the_default_device_is():
    arguments.numpy_dtype.cache_clear()
    with torch.device("meta"):
        assert np.array_equal(stream_map(torch.neg, X.numpy(), devices=["cpu"]), -X.numpy())


def test_errors_go_from_process_to_process():
    failed = StreamError("chunk 3: no", 3, [(0, 6), (20, 26)])
    stopped = StreamInterrupted("stopped", [(0, 6)])
    for error in (failed, stopped):
        error.more = "said"
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is type(error) and str(again) == str(error)
            assert (again.valid, again.rows) == (error.valid, 6)
            assert again.more == "said"
    assert pickle.loads(pickle.dumps(failed)).chunk == 3


def test_autograd_knows_that_out_was_written():
    weight = torch.ones(3, requires_grad=True)
    out = torch.zeros(40, 3)
    loss = (weight * out).sum()
    with pytest.raises(ValueError, match="out must have the result's shape"):
        stream_map(diglot.gelu, X[:, :2].contiguous(), out=out, backend="torch")
    loss.backward(retain_graph=True)  # nothing was written
    stream_map(torch.neg, X, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# A function that calls stream_map itself.


def test_more_nested_runs_than_threads(monkeypatch):
    """Each waits for threads, and none for those that wait for it."""
    monkeypatch.setattr(shares, "THREADS", ThreadPoolExecutor(2))
    all_there = threading.Barrier(2, timeout=20)

    def nested(x):
        all_there.wait()
        return stream_map(torch.neg, x, devices=TWO, chunk_bytes=ROW)

    results = []

    def call():
        results.append(stream_map(nested, X, devices=["cpu"], progress=True))

    pytest.importorskip("rich")
    threads = [threading.Thread(target=call, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 2 and all(torch.equal(result, -X) for result in results)


@pytest.mark.parametrize("devices", [["cpu"], TWO], ids=len)
def test_ctrl_c_of_nested_runs(devices):
    began, calls = [], []

    def slow(x):
        if not began:
            began.append(time.perf_counter())
            signal.raise_signal(signal.SIGINT)
        calls.append(x)
        time.sleep(0.05)
        return -x

    def nested(x):
        return stream_map(slow, x, chunk_bytes=ROW, devices=devices)

    handler = signal.getsignal(signal.SIGINT)
    out = torch.full_like(X, 7)
    with pytest.raises(StreamInterrupted, match="was interrupted") as stopped:
        stream_map(nested, X, out=out, chunk_bytes=20 * ROW, devices=["cpu"])
    assert time.perf_counter() - began[0] < 1 and len(calls) < 12
    assert stopped.value.rows == 0 and (out == 7).all()
    assert signal.getsignal(signal.SIGINT) is handler
    assert torch.equal(stream_map(nested, X, chunk_bytes=20 * ROW, devices=["cpu"]), -X)


def test_ctrl_c_before_a_nested_run():
    calls = []

    def slow(x):
        calls.append(x)
        time.sleep(0.05)
        return -x

    def nested(x):
        signal.raise_signal(signal.SIGINT)
        return stream_map(slow, x, chunk_bytes=ROW, devices=["cpu"])

    with pytest.raises(StreamInterrupted):
        stream_map(nested, X, chunk_bytes=20 * ROW, devices=["cpu"])
    assert len(calls) <= 1


def test_a_users_handler_of_ctrl_c_stops_nested_runs():
    calls = []

    def handler(*_):
        raise KeyboardInterrupt

    def slow(x):
        calls.append(x)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)
        return -x

    def nested(x):
        return stream_map(slow, x, chunk_bytes=ROW, devices=["cpu"])

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            stream_map(nested, X, chunk_bytes=20 * ROW, devices=["cpu"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(calls) < 12


# Ctrl-C.


@pytest.mark.parametrize("devices", [["cpu"], TWO], ids=len)
@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c(devices, times):
    began, calls = [], []

    def interrupted(x):
        if float(x[0, 0]) == 24:  # of rows 8 and 9
            began.append(time.perf_counter())
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
                time.sleep(0.02)
        time.sleep(0.05)
        calls.append(x)
        return -x

    out = torch.full_like(X, 7)
    with pytest.raises(KeyboardInterrupt, match="was interrupted; rows that are done") as stopped:
        stream_map(interrupted, X, out=out, chunk_bytes=2 * ROW, devices=devices)
    assert time.perf_counter() - began[0] < 1
    count, kept = len(calls), out.clone()
    assert isinstance(stopped.value, StreamInterrupted)  # another would end all tests
    assert 8 <= stopped.value.rows < 40
    for begin, end in stopped.value.valid:
        assert torch.equal(out[begin:end], -X[begin:end])
    assert (out[-2:] == 7).all()
    assert pinned_cache.bytes_in_use == 0
    time.sleep(0.1)
    assert len(calls) == count  # no thread goes on
    assert torch.equal(out, kept)


@pytest.mark.parametrize("backend", [CUDA])
def test_ctrl_c_of_the_native_engine(backend):
    x = torch.randn(20_000, 3)
    out = torch.full_like(x, 77)
    stream_map(diglot.gelu, x[:10], backend=backend)  # the first call loads libraries
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    began = time.perf_counter()
    with pytest.raises(StreamInterrupted) as stopped:
        timer.start()
        for _ in range(1000):
            stream_map(diglot.gelu, x, out=out.fill_(77), chunk_bytes=ROW, backend=backend)
    timer.join()
    assert time.perf_counter() - began < 1.3
    rows = stopped.value.rows
    assert torch.equal(out[:rows], diglot.gelu(x[:rows].to(DEVICE), backend=backend).cpu())


# Launches of Triton's, which the native engine has Python start.


ADD_ONE = functools.partial(diglot.add, other=1, backend="triton")


def failing(monkeypatch, error, fails):
    """Launches of the native engine, by their numbers of rows. Some raise an error."""
    launched = []

    def run(*arguments):
        launched.append(len(arguments[-1]))
        if fails(launched):
            raise error
        runs.run(*arguments)

    monkeypatch.setattr("diglot.pipeline.native.run", run)
    return launched


@needs_cuda
@pytest.mark.parametrize("error", [ValueError("no such tile"), SystemExit(3)], ids=repr)
def test_a_launch_of_tritons_that_fails(monkeypatch, error):
    out = torch.full_like(X, 7)
    kind = SystemExit if isinstance(error, SystemExit) else StreamError
    failing(monkeypatch, error, lambda launched: launched[-1] == 4)  # the last chunk
    with pytest.raises(kind) as failed:
        stream_map(ADD_ONE, X[:36], out=out[:36], chunk_bytes=16 * ROW)
    assert pinned_cache.bytes_in_use == 0
    if kind is StreamError:
        assert failed.value.__cause__ is error
        assert "chunk 2 (rows 32 to 36)" in str(failed.value)
        assert failed.value.rows == 32
        assert torch.equal(out[:32], X[:32] + 1)


@needs_cuda
def test_a_launch_of_tritons_without_memory(monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory")
    launched = failing(monkeypatch, error, lambda launched: launched == [16])
    out = stream_map(ADD_ONE, X, chunk_bytes=16 * ROW)
    assert torch.equal(out, X + 1)
    assert launched[-1] == 4  # a quarter
    assert any("had no memory" in note for note in last_stream_report().notes)


# Out of memory.


def test_too_little_memory_once():
    sizes = []

    def fn(x):
        sizes.append(len(x))
        if len(x) == 8 and len(sizes) > 2:
            raise torch.OutOfMemoryError("no memory for 96 bytes")
        return -x

    out = stream_map(fn, X, chunk_bytes=8 * ROW)
    assert torch.equal(out, -X)
    assert sizes == [8, 8, 8] + [2] * 12
    (note,) = [note for note in last_stream_report().notes if "memory" in note]
    assert "had no memory for 3 chunks of 8 rows of 12 bytes" in note
    assert "from row 16 on chunks had 2" in note
    assert last_stream_report().chunks == 2 + 12


@pytest.mark.parametrize("chunk", [0, 3])
def test_too_little_memory_always(chunk):
    def fn(x):
        if float(x[-1, 0]) >= 24 * chunk:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return -x

    with pytest.raises(StreamError, match="CUDA out of memory") as failed:
        stream_map(fn, X, chunk_bytes=8 * ROW)
    assert "3 chunks of 2 rows of 12 bytes; give fewer num_slots or chunk_bytes" in str(
        failed.value
    )
    assert isinstance(failed.value.__cause__, torch.OutOfMemoryError)
    assert failed.value.rows == 8 * chunk
    begin, end = (
        int(word) for word in str(failed.value).split("rows ")[1].split(")")[0].split(" to ")
    )
    assert (begin, end) == (8 * chunk, 8 * chunk + 2)


def test_what_had_no_memory_is_free_when_less_is_tried():
    """Before the smaller chunks begin, and without the collector of cycles."""
    seen, alive = [], []

    def fn(x):
        if len(x) == 8:
            seen.append(weakref.ref(x))
            if len(seen) == 3:
                raise torch.OutOfMemoryError
        else:
            alive.append(sum(ref() is not None for ref in seen))
        return -x

    gc.disable()
    try:
        stream_map(fn, X, chunk_bytes=8 * ROW)
    finally:
        gc.enable()
    assert set(alive) == {0}


# Nothing is left behind.


def counts():
    return (
        sum(type(found) is Ring for found in gc.get_objects()),
        pinned_cache.bytes_in_use,
        threading.active_count(),
        len(list(Path("/proc/self/fd").iterdir())),
        torch.cuda.memory_allocated() if DEVICE == "cuda" else 0,
    )


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", [CUDA, "torch", None])
def test_failures_leave_nothing_behind(tmp_path, backend, count):
    np.save(tmp_path / "x.npy", X.numpy())
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float32, (40, 3))
    (tmp_path / "short").write_bytes(bytes(480))
    short = torch.from_file(str(tmp_path / "short"), True, 120).view(40, 3)
    (tmp_path / "short").write_bytes(bytes(300))  # 25 rows
    held = []

    def hold(c):
        held.append(weakref.ref(c))
        return -c

    def fail(chunk=0):
        with pytest.raises(StreamError):
            if backend is None:
                fn = at(chunk % 20, lambda c: {}[hold(c)], hold)
                stream_map(fn, x, out=out, chunk_bytes=2 * ROW)
            else:
                stream_map(diglot.gelu, short, out=out, chunk_bytes=2 * ROW, backend=backend)

    fail()
    gc.collect()  # other tests'
    before = counts()
    gc.disable()
    try:
        for chunk in range(count):
            fail(chunk)
            assert all(ref() is None for ref in held)
        assert counts() == before
    finally:
        gc.enable()


def test_no_thread_can_be_had(monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("diglot-copy"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(copier, "library", lambda: None)  # which goes on with fewer
    with pytest.raises(StreamError, match="can't start new thread"):
        stream_map(torch.neg, X)
    assert pinned_cache.bytes_in_use == 0


def test_what_fails_when_a_chunk_is_out(monkeypatch):
    """It ends the run: whoever waits for that chunk does not wait for good."""

    def times(passage, runtime):
        raise RuntimeError("no time")

    monkeypatch.setattr(Passage, "times", times)
    with pytest.raises(StreamError, match="no time"):
        stream_map(torch.neg, X, chunk_bytes=ROW)
