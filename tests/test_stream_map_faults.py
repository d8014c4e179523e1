"""stream_map and stream_reduce: what is refused, what fails on the way, and that nothing is lost or
left behind."""

from __future__ import annotations

import functools
import gc
import operator
import signal
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from backends import CUDA, DEVICE

import diglot
from diglot import StreamError, StreamInterrupted, last_stream_report, stream_map, stream_reduce
from diglot.pipeline.pinned import PAGES, PinnedCache, pinned_cache

np = pytest.importorskip("numpy")

X = torch.arange(120.0).reshape(40, 3)
ROW = 12
TWO = ["cpu:0", "cpu:1"]


class Refused:
    """A function that must not be called."""

    def __call__(self, *chunks):
        raise AssertionError("work has started")


NO = Refused()
MEMORY = torch.zeros(80, 3)
BOTH = torch.zeros(40, 6)

# What is called, how, and what is said.
REFUSED = {
    "no function": (TypeError, "fn must be callable, not a int", (3, X), {}),
    "no input": (TypeError, "at least one input", (NO,), {}),
    "a list": (
        TypeError,
        "input 0 must be a CPU tensor or a NumPy array, not a list",
        (NO, [1.0]),
        {},
    ),
    "other lengths": (
        ValueError,
        "same number of rows; input 0 has 40, and input 2 has 39",
        (NO, X, X, X[1:]),
        {},
    ),
    "a number": (ValueError, "input 1 has no dimension 0", (NO, X, torch.tensor(3.0)), {}),
    "an array's number": (ValueError, "input 0 has no dimension 0", (NO, np.array(3.0)), {}),
    "strings": (TypeError, "input 0 has a dtype that tensors lack", (NO, np.array(["a"])), {}),
    "backwards": (ValueError, "input 0 has a negative stride", (NO, X.numpy()[::-1]), {}),
    "sparse": (TypeError, "input 0 must be dense", (NO, X.to_sparse()), {}),
    "meta": (ValueError, "input 0 must be in host memory, not on meta", (NO, X.to("meta")), {}),
    "gradient": (ValueError, "input 0 requires grad", (NO, X.clone().requires_grad_()), {}),
    "gradient of out": (
        ValueError,
        "out requires grad",
        (NO, X),
        {"out": torch.zeros(40, 3).requires_grad_()},
    ),
    "a long row": (
        ValueError,
        "a row has 12 bytes, and a chunk takes 11: rows are not cut",
        (NO, X),
        {"chunk_bytes": 11},
    ),
    "a long row of out": (
        ValueError,
        "a row has 24 bytes, and a chunk takes 12",
        (NO, X),
        {"chunk_bytes": 12, "out": torch.zeros(40, 6)},
    ),
    "no chunk": (ValueError, "chunk_bytes must be positive", (NO, X), {"chunk_bytes": 0}),
    "no slots": (ValueError, "num_slots must be at least 1, but is 0", (NO, X), {"num_slots": 0}),
    "half a slot": (TypeError, "num_slots must be an int, not 2.5", (NO, X), {"num_slots": 2.5}),
    "a true slot": (TypeError, "num_slots must be an int, not True", (NO, X), {"num_slots": True}),
    "a text": (TypeError, "chunk_bytes must be an int, not '9'", (NO, X), {"chunk_bytes": "9"}),
    "a backend": (ValueError, "backend must be one of", (NO, X), {"backend": "opencl"}),
    "no devices": (ValueError, "devices must name at least one", (NO, X), {"devices": []}),
    "twice": (ValueError, "a device is named twice", (NO, X), {"devices": ["cpu", "cpu"]}),
    "no such GPU": (ValueError, "there is no cuda:99", (NO, X), {"devices": [99]}),
    "below zero": (ValueError, "-1 is no device", (NO, X), {"devices": [-1]}),
    "no name": (ValueError, "'banana' is no device", (NO, X), {"devices": ["banana"]}),
    "half a device": (ValueError, "1.5 is no device", (NO, X), {"devices": [1.5]}),
    "on meta": (ValueError, "devices are GPUs, or the CPU, not meta", (NO, X), {"devices": "meta"}),
    "out's length": (
        ValueError,
        "out must have a row for each of the inputs' 40, not 39",
        (NO, X),
        {"out": torch.zeros(39, 3)},
    ),
    "out in columns": (
        ValueError,
        "out must be contiguous",
        (NO, X),
        {"out": torch.zeros(3, 40).T},
    ),
    "out apart": (ValueError, "out must be contiguous", (NO, X), {"out": MEMORY[::2]}),
    "out on itself": (
        ValueError,
        "out must be contiguous",
        (NO, X),
        {"out": torch.zeros(3).expand(40, 3)},
    ),
    "out conjugated": (
        ValueError,
        "out must be contiguous",
        (NO, X),
        {"out": torch.zeros(40, 3, dtype=torch.complex64).conj()},
    ),
    "in place": (ValueError, "out shares memory with input 0", (NO, X), {"out": X}),
    "beside": (
        ValueError,
        "out shares memory with input 1",
        (NO, X, MEMORY[:40]),
        {"out": MEMORY[39:79]},
    ),
    "between": (
        ValueError,
        "out shares memory",
        (NO, BOTH.as_strided((40, 3), (6, 1))),
        {"out": BOTH},
    ),
    "of one array": (
        ValueError,
        "out shares memory with input 0",
        (NO, MEMORY.numpy()[:40]),
        {"out": MEMORY[:40]},
    ),
    "outs": (
        ValueError,
        "out 1 shares memory with out 0",
        (NO, X),
        {"out": (MEMORY[:40], MEMORY[20:60])},
    ),
    "a list as out": (TypeError, "out must be a CPU tensor", (NO, X), {"out": ["a"]}),
    # By the ops themselves.
    "std": (ValueError, "std must be", (functools.partial(diglot.gaussian_pdf, std=0.0), X), {}),
    "terms": (
        ValueError,
        "terms must be",
        (functools.partial(diglot.gaussian_pdf, terms=0), X),
        {},
    ),
    "approximate": (
        ValueError,
        "approximate",
        (functools.partial(diglot.gelu, approximate="x"), X),
        {},
    ),
    "out of an op": (
        ValueError,
        "out must have the result's shape and dtype",
        (diglot.gelu, X),
        {"out": torch.zeros(40, 3, dtype=torch.float64)},
    ),
    "outs of an op": (
        ValueError,
        "fn returns 1 tensors, and out has 2",
        (diglot.gelu, X),
        {"out": (MEMORY[:40], MEMORY[40:])},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_work_starts(monkeypatch, name):
    kind, message, arguments, options = REFUSED[name]
    from diglot.pipeline import stream

    def run(*_):
        raise AssertionError("work has started")

    monkeypatch.setattr(stream, "Run", run)
    if len(arguments) < 2 and kind is TypeError:
        with pytest.raises(kind, match=message):
            stream_map(*arguments, **options)
        return
    backends = ["torch", "triton"] if name in ("std", "terms", "out of an op") else [None]
    if callable(arguments[0]) and not isinstance(arguments[0], Refused):
        backends += ["cuda"] if CUDA.marks == () and backends != [None] else []
    for backend in backends:
        choice = {} if backend is None else {"backend": backend}
        with pytest.raises(kind, match=message):
            stream_map(*arguments, **{**choice, **options})


def test_a_fold_is_refused():
    with pytest.raises(TypeError, match="combine must be callable"):
        stream_reduce(NO, 3, X)
    with pytest.raises(ValueError, match="stream_reduce: there are no rows to reduce"):
        stream_reduce(NO, operator.add, X[:0])
    with pytest.raises(ValueError, match="stream_reduce: a row has 12 bytes"):
        stream_reduce(NO, operator.add, X, chunk_bytes=8)


def test_a_backend_that_cannot_run(refused_cuda):
    with pytest.raises(diglot.BackendUnavailable, match=refused_cuda):
        stream_map(diglot.gelu, X, backend="cuda")


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
    "leaves": (raises(SystemExit(3)), "SystemExit: 3"),
    "fewer rows": (
        lambda x: x[1:],
        r"as many rows as it is given, 2, not a tensor of shape \(1, 3\)",
    ),
    "more rows": (lambda x: torch.cat([x, x]), "as many rows as it is given"),
    "a number": (lambda x: x.sum(), r"as many rows as it is given, 2, not a tensor of shape \(\)"),
    "nothing": (lambda x: None, "fn must return tensors, not a NoneType"),
    "none": (lambda x: (), "a tensor or several, not none"),
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
    """Asserts what is told of a failure at a chunk, and what is in out."""
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
    with pytest.raises(StreamError, match="torch.bfloat16, which NumPy lacks"):
        stream_map(torch.Tensor.bfloat16, X.numpy())
    out = torch.zeros(40, 3, dtype=torch.bfloat16)
    assert stream_map(torch.Tensor.bfloat16, X.numpy(), out=out) is out
    assert torch.equal(out, X.bfloat16())


@pytest.mark.parametrize("call", [1, 2, 10, 19])
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

    if len(devices) == 1 or call < 10:
        with pytest.raises(StreamError, match="KeyError: 'my key'") as failed:
            stream_reduce(sums, combine, X, chunk_bytes=2 * ROW, devices=devices)
        assert failed.value.chunk == call
    else:  # the second device's are folded at the end
        with pytest.raises((StreamError, KeyError), match="my key"):
            stream_reduce(sums, combine, X, chunk_bytes=2 * ROW, devices=devices)
    assert len(calls) == call  # it is not called again


def test_a_function_that_fails_in_a_fold():
    folded = []

    def combine(a, b):
        folded.append(b)
        return a + b

    with pytest.raises(StreamError, match="stream_reduce: chunk 5") as failed:
        stream_reduce(at(5, raises(KeyError()), lambda x: x.sum(0)), combine, X, chunk_bytes=24)
    assert (failed.value.chunk, failed.value.rows) == (5, 10)
    assert len(folded) == 4


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
    with pytest.raises(StreamInterrupted, match="was interrupted; rows of out") as stopped:
        stream_map(interrupted, X, out=out, chunk_bytes=2 * ROW, devices=devices)
    assert time.perf_counter() - began[0] < 1
    count, kept = len(calls), out.clone()
    assert isinstance(stopped.value, KeyboardInterrupt)
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
    assert "cpu had no memory for 3 chunks of 8 rows of 12 bytes" in note
    assert "from row 16 on chunks had 2" in note
    assert last_stream_report().chunks == 2 + 12


def test_too_little_memory_in_a_fold():
    calls = []

    def fn(x):
        calls.append(len(x))
        if len(calls) == 3:
            raise torch.OutOfMemoryError
        return x.sum(0)

    total = stream_reduce(fn, operator.add, X, chunk_bytes=8 * ROW)
    assert torch.equal(total, X.sum(0))


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
        pinned_cache.bytes_in_use,
        threading.active_count(),
        len(list(Path("/proc/self/fd").iterdir())),
        torch.cuda.memory_allocated() if DEVICE == "cuda" else 0,
    )


@pytest.mark.parametrize("backend", [CUDA, "torch", None])
def test_200_failures_leave_nothing_behind(tmp_path, backend):
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
                fn = at(chunk % 20, raises(KeyError()), hold)
                stream_map(fn, x, out=out, chunk_bytes=2 * ROW)
            else:
                stream_map(diglot.gelu, short, out=out, chunk_bytes=20 * ROW, backend=backend)

    fail()
    before = counts()
    gc.disable()
    try:
        for chunk in range(200):
            fail(chunk)
            assert not any(ref() for ref in held)
    finally:
        gc.enable()
    assert counts() == before


def test_no_thread_can_be_had(monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("diglot-drain"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(StreamError, match="can't start new thread"):
        stream_map(torch.neg, X)
    assert pinned_cache.bytes_in_use == 0


def test_what_fails_when_a_chunk_is_out(monkeypatch):
    """It ends the run: whoever waits for that chunk does not wait for good."""
    from diglot.pipeline.ring import Passage

    def times(passage):
        raise RuntimeError("no time")

    monkeypatch.setattr(Passage, "times", times)
    with pytest.raises(StreamError, match="no time"):
        stream_map(torch.neg, X, chunk_bytes=ROW)


# Pinned buffers.


def test_the_cache_of_pinned_buffers():
    cache = PinnedCache()
    first = cache.take(PAGES + 1)
    assert (first.bytes, cache.bytes, cache.bytes_in_use) == (2 * PAGES, 0, 2 * PAGES)
    cache.give_back(first)
    assert (cache.bytes, cache.bytes_in_use) == (2 * PAGES, 0)
    assert cache.take(PAGES + 2) is first  # the one that was used last
    other = cache.take(10 * PAGES)
    cache.give_back(other)
    assert cache.take(PAGES) is not other  # most of it would lie idle
    cache.give_back(first)
    assert cache.bytes == 12 * PAGES
    cache.limit(11 * PAGES)
    assert cache.bytes == 2 * PAGES  # what was used longest ago goes
    cache.limit(0)
    assert cache.bytes == 0
    with pytest.raises(ValueError, match="bytes must not be negative, but is -1"):
        cache.limit(-1)


def test_sizes_waste_nothing():
    """Whole pages, no powers of two."""
    cache = PinnedCache()
    for pages in (1, 3, 5, 9):
        assert cache.take(pages * PAGES).bytes == pages * PAGES


def test_calls_share_buffers(monkeypatch):
    cache = diglot.pinned_cache
    cache.clear()
    assert cache.bytes == 0
    stream_map(torch.neg, X, chunk_bytes=2 * ROW)
    kept = cache.bytes
    assert kept > 0
    stream_map(torch.neg, X, chunk_bytes=2 * ROW)
    assert cache.bytes == kept
    cache.clear()
    assert (cache.bytes, cache.bytes_in_use) == (0, 0)
    try:
        cache.limit(0)
        stream_map(torch.neg, X, chunk_bytes=2 * ROW)
        assert cache.bytes == 0
    finally:
        cache.limit(1 << 30)
