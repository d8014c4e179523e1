"""stream_map: for any chunks what the whole gives, bit by bit, from any host memory."""

from __future__ import annotations

import functools
import math
import operator
import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from backends import BACKENDS, CUDA, DEVICE, FLOATING, HAS_CUDA, draw, examples, needs_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import assert_bits

import diglot
from diglot import last_stream_report, stream_map, stream_reduce
from diglot.backends.registry import cuda_module
from diglot.backends.runs import plan
from diglot.pipeline.host import HostArray
from diglot.pipeline.pinned import pinned_cache
from diglot.pipeline.shares import Run

np = pytest.importorskip("numpy")

COLUMNS = 5
WEIGHT, BIAS = torch.randn(2, COLUMNS, dtype=torch.float64)

# Ops whose rows are independent: how many inputs, and the options. They are one launch each, and
# the native engine drives it.
OPS = {
    "gelu": (1, {}),
    "gelu tanh": (1, {"approximate": "tanh"}),
    "add": (2, {"alpha": 0.5}),
    "add number": (1, {"other": 2.5}),
    "softmax": (1, {"dim": -1}),
    "layer_norm": (1, {"normalized_shape": (COLUMNS,), "weight": WEIGHT, "bias": BIAS}),
    "gaussian_pdf": (1, {"mean": 0.25, "std": 1.5, "terms": 5}),
}


def op_of(name, dtype):
    """An op with its options, and how many inputs it has."""
    count, options = OPS[name]
    launcher = f"{name.split()[0]}_forward"
    if DEVICE == "cpu" and not hasattr(cuda_module()[0], launcher):
        pytest.skip(f"the interpreter was built without {launcher}")
    cast = {
        key: value.to(DEVICE, dtype) if isinstance(value, torch.Tensor) else value
        for key, value in options.items()
    }
    return functools.partial(getattr(diglot, name.split()[0]), **cast), count


def whole(fn, *inputs, **options):
    """fn of all at once."""
    return fn(*(x.to(DEVICE) for x in inputs), **options).cpu()


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=examples(45))
@given(data=st.data())
def test_ops_in_any_chunks(backend, name, data):
    dtype = data.draw(st.sampled_from(FLOATING), "dtype")
    fn, count = op_of(name, dtype)
    rows = data.draw(st.integers(0, 12 if backend == "triton" else 40), "rows")
    inputs = [draw((rows, COLUMNS), dtype).cpu() for _ in range(count)]
    row = COLUMNS * inputs[0].element_size()
    chunks = {
        "chunk_bytes": data.draw(st.integers(row, 45 * row), "chunk_bytes"),
        "num_slots": data.draw(st.integers(1, 5), "num_slots"),
    }
    mode = data.draw(st.sampled_from(["model", "invariant"]), "plans")
    with diglot.use_plans(mode):
        out = stream_map(fn, *inputs, **chunks, backend=backend)
        expected = whole(fn, *inputs, backend=backend)
    # PyTorch may compute the last elements otherwise than those before. In what order a norm adds
    # up a row depends on where the row begins, which a chunk changes. The invariant mode is the
    # exception.
    if backend == "torch" or (name == "layer_norm" and mode == "model"):
        torch.testing.assert_close(out, expected)
    else:
        assert_bits(out, expected)
    report = last_stream_report()
    assert (report.backend, report.op, report.rows) == (backend, name.split()[0], rows)
    is_native = backend != "torch" and HAS_CUDA and rows > 0 and mode == "model"
    assert report.engine == ("native" if is_native else "python")


@settings(max_examples=examples(150))
@given(
    rows=st.integers(0, 60),
    chunk_rows=st.integers(1, 65),
    num_slots=st.integers(1, 6),
    shape=st.sampled_from([(), (1,), (3,), (2, 5), (0,), (4, 0, 2)]),
    dtype=st.sampled_from([*FLOATING, torch.int8, torch.int64, torch.bool, torch.complex64]),
)
def test_callables_in_any_chunks(rows, chunk_rows, num_slots, shape, dtype):
    x = torch.randint(0, 2, (rows, *shape)).to(dtype)
    row = math.prod(shape) * x.element_size()
    out = stream_map(lambda c: c + c, x, chunk_bytes=max(chunk_rows * row, 1), num_slots=num_slots)
    assert_bits(out, x + x)


X = torch.randn(31, 4)


def static_buffer():
    """A function that returns the same memory each time."""
    buffer = torch.empty(100, 4, device=DEVICE)

    def double(x):
        return torch.mul(x, 2, out=buffer[: len(x)])

    return double


CALLABLES = {
    "another row shape": lambda x: x[:, :, None] * x[:, None, :],
    "a number a row": lambda x: x.square().amax(1),
    "no element a row": lambda x: x[:, :0],
    "another dtype": lambda x: (x > 0).to(torch.int16),
    "wider rows": lambda x: x.double().repeat(1, 10),
    "identity": lambda x: x,
    "a view": lambda x: x[:, 1:3],
    "expanded": lambda x: x[:, :1].expand(-1, 7),
    "transposed": lambda x: x.T.contiguous().T,
    "in place": lambda x: x.mul_(3).add_(1),
    "conjugated": lambda x: torch.complex(x, x).conj(),
    "a module": torch.nn.Softmax(1),
}


@pytest.mark.parametrize("name", CALLABLES)
@pytest.mark.parametrize("chunk_rows", [1, 4, 31])
def test_callables(name, chunk_rows):
    fn, kept = CALLABLES[name], X.clone()
    expected = whole(fn, X.clone()).resolve_conj()
    assert_bits(stream_map(fn, X, chunk_bytes=16 * chunk_rows if name != "a" else None), expected)
    assert torch.equal(X, kept)  # an op in place changes chunks
    out = torch.full_like(expected, 7, memory_format=torch.contiguous_format)
    widest = max(16, out[:1].numel() * out.element_size())
    assert stream_map(fn, X, out=out, chunk_bytes=widest * chunk_rows) is out
    assert_bits(out, expected)


def test_the_same_memory_each_time():
    assert_bits(stream_map(static_buffer(), X, chunk_bytes=48), X * 2)
    parts = stream_reduce(static_buffer(), lambda a, b: torch.cat([a, b]), X, chunk_bytes=48)
    assert_bits(parts, X * 2)  # which are folded


def test_several_results():
    def split(x, y):
        return x + y[:, None], [*(y > 0).unbind(0)] and y > 0, x.sum(1, dtype=torch.float64)

    y = torch.randn(31)
    results = stream_map(split, X, y, chunk_bytes=48)
    assert isinstance(results, tuple)
    for result, expected in zip(results, split(X, y), strict=True):
        assert_bits(result, expected)
    outs = tuple(torch.zeros_like(result) for result in results)
    assert stream_map(split, X, y, out=outs, chunk_bytes=48) is outs
    for out, result in zip(outs, results, strict=True):
        assert_bits(out, result)
    (one,) = stream_map(lambda x: [x + 1], X)
    assert_bits(one, X + 1)


def test_arrays_for_arrays():
    result = stream_map(lambda x: x * 2, X.numpy(), chunk_bytes=48)
    assert type(result) is np.ndarray
    assert np.array_equal(result, X.numpy() * 2)
    both = stream_map(lambda x, y: (x + y, x - y), X.numpy(), X)
    assert all(type(one) is np.ndarray for one in both)
    assert isinstance(stream_map(torch.add, X, X.numpy()), torch.Tensor)
    out = np.zeros((31, 4), np.float32)
    assert stream_map(lambda x: x * 2, X, out=out) is out
    assert np.array_equal(out, result)
    total = stream_reduce(lambda x: x.sum(0), operator.add, X.numpy())
    assert type(total) is np.ndarray


LAYOUTS = {
    "every other row": lambda x: x[::2],
    "every other column": lambda x: x[:, ::2],
    "transposed": lambda x: x.T,
    "expanded": lambda x: x[:1].expand(9, -1),
    "in the middle": lambda x: x[3:20],
    "not aligned": lambda x: x.reshape(-1)[1:],
    "conjugated": lambda x: torch.complex(x, x).conj(),
    "negated": lambda x: torch.complex(x, x).conj().imag,
    "negated in one piece": torch._neg_view,
}


@pytest.mark.parametrize("backend", [None, CUDA])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_inputs(layout, backend):
    x = LAYOUTS[layout](torch.randn(30, 6))
    fn = torch.neg if backend is None or x.is_complex() else diglot.gelu
    options = {} if fn is torch.neg else {"backend": backend}
    out = stream_map(fn, x, chunk_bytes=5 * 8 * 30, **options)
    assert_bits(out, whole(fn, x.clone(), **options).resolve_conj())


def test_arrays_that_are_no_maps_of_their_own():
    array = np.arange(60, dtype=np.int16).reshape(20, 3)
    array.flags.writeable = False  # an input may be
    assert np.array_equal(stream_map(lambda x: x + 1, array[2::3], chunk_bytes=12), array[2::3] + 1)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("backend", [*BACKENDS, None])
def test_no_rows_and_one(rows, backend):
    x = torch.randn(rows, 3)
    fn = torch.exp if backend is None else diglot.gelu
    options = {} if backend is None else {"backend": backend}
    assert_bits(stream_map(fn, x, **options), whole(fn, x, **options))
    assert last_stream_report().chunks == rows
    out = torch.empty(rows, 3)
    assert stream_map(fn, x, out=out, **options) is out


# What fn sees of the thread that calls.


@pytest.mark.parametrize("devices", [None, ["cpu:0", "cpu:1"]])
def test_what_fn_sees(devices):
    kind = "cpu" if devices else DEVICE
    is_own = devices is None  # one device's thread is that which calls
    backend = "torch" if devices else "triton"  # whose interpreter is of one thread
    seen = []

    def fn(x):
        diglot.gelu(x)
        seen.append(
            (
                torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
                torch.is_grad_enabled(),
                diglot.last_run().backend,
                threading.current_thread() is threading.main_thread(),
            )
        )
        return x

    with torch.autocast(kind, dtype=torch.float16), diglot.use_backend(backend):
        stream_map(fn, X[:4], chunk_bytes=16, devices=devices)
    assert seen == [(torch.float16, False, backend, is_own)] * 4
    stream_map(fn, X[:1])
    assert seen[-1][0] is None


@needs_cuda
def test_launches_with_scratch():
    fn = functools.partial(diglot.softmax, dim=1, backend="cuda")
    x = torch.randn(3, 20000, 2)
    first = x[:1].to(DEVICE)
    planned = plan("cuda", "softmax", "softmax_forward", first, 1, torch.empty_like(first))
    assert planned.scratch is not None
    out = stream_map(fn, x, chunk_bytes=2 * x[0].nbytes)  # the last chunk has one row
    assert last_stream_report().engine == "native"
    chunks = x.to(DEVICE).split(2)  # their plans sum in another order than the whole's
    assert_bits(out, torch.cat([fn(chunk) for chunk in chunks]).cpu())


@needs_cuda
def test_an_op_under_autocast():
    x = torch.randn(20, 4)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        fn = functools.partial(diglot.softmax, dim=-1, backend="cuda")
        out = stream_map(fn, x.bfloat16(), chunk_bytes=16)
        expected = whole(fn, x.bfloat16())
    assert_bits(out, expected)


def test_whatever_the_default_device_is():
    with torch.device("meta"):
        assert_bits(stream_map(lambda x: x * 2, X, chunk_bytes=48), X * 2)
        out = stream_map(diglot.gelu, X, backend="torch")
    assert_bits(out, whole(diglot.gelu, X, backend="torch"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_use_backend_chooses(backend):
    with diglot.use_backend(backend):
        out = stream_map(diglot.gelu, X)
    assert last_stream_report().backend == backend
    assert_bits(out, whole(diglot.gelu, X, backend=backend))
    stream_map(functools.partial(diglot.gelu, backend=backend), X)
    assert last_stream_report().backend == backend


def test_random_ops_run():
    """They are not looked at before, which would change the generator."""
    before = torch.random.get_rng_state()
    out = stream_map(functools.partial(diglot.dropout, p=0.5), X, backend="torch", chunk_bytes=64)
    assert ((out == 0) | (out == 2 * X)).all()
    torch.random.set_rng_state(before)


# Reports.


def test_a_report():
    out = stream_map(lambda x: x.repeat(1, 3).double(), X, chunk_bytes=4 * 16, num_slots=2)
    report = last_stream_report()
    assert (report.rows, report.chunk_rows, report.chunks, report.num_slots) == (31, 4, 8, 2)
    assert (report.bytes_in, report.bytes_out) == (31 * 16, out.numel() * 8)
    assert report.device_bytes == 2 * 4 * (16 + 96)
    assert (report.backend, report.engine) == ("callable", "python")
    assert (len(report.timelines), len(report.timelines[0])) == (1, 8)
    assert set(report.stages()) == {"read", "h2d", "compute", "d2h", "write"}
    assert 0 < report.seconds < 60


def test_the_last_report_is_of_this_thread():
    stream_map(torch.exp, X)
    report = last_stream_report()
    reports = []

    def other():
        reports.append(last_stream_report())
        stream_map(torch.sin, X)
        reports.append(last_stream_report().op)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert reports == [None, "sin"]
    assert last_stream_report() is report


def test_several_devices():
    out = stream_map(
        torch.neg, X, chunk_bytes=64, devices=["cpu:0", "cpu:1", torch.device("cpu", 2)]
    )
    assert_bits(out, -X)
    report = last_stream_report()
    assert report.devices == ("cpu:0", "cpu:1", "cpu:2")
    assert [len(timeline) for timeline in report.timelines] == [2, 3, 3]
    assert report.device_bytes == (2 + 3 + 3) * 4 * 32
    stream_map(torch.neg, X[:1], devices=["cpu:0", "cpu:1"])  # more devices than chunks
    assert len(last_stream_report().devices) == 1


def slow_at_the_end(x):
    if x[0, 0] >= 30:
        time.sleep(0.05)
    return x + 1


class Forgetful(Run):
    """The last device is not waited for."""

    def work(self, share, place, ended):
        if share is self.shares[-1]:
            ended.set()
        super().work(share, place, ended)


@pytest.mark.parametrize("run", [Run, Forgetful])
def test_the_last_device_is_waited_for(monkeypatch, run):
    """Also when it is much slower than the others."""
    monkeypatch.setattr("diglot.pipeline.stream_call.Run", run)
    x = torch.arange(40.0)[:, None]
    out = torch.zeros(40, 1)
    stream_map(slow_at_the_end, x, out=out, chunk_bytes=16, devices=["cpu:0", "cpu:1"])
    assert torch.equal(out, x + 1) == (run is Run)
    while pinned_cache.bytes_in_use:  # by chunks that were not waited for
        time.sleep(1e-3)


@pytest.mark.parametrize("name", CALLABLES)
def test_memory_that_is_copied_in_place(monkeypatch, name):
    """As pinned memory is on a GPU; of inference mode, too."""
    monkeypatch.setattr(HostArray, "is_staged", False)
    with torch.inference_mode():
        x = X.clone()
        expected = CALLABLES[name](x.clone()).resolve_conj()
        out = torch.full_like(expected, 7, memory_format=torch.contiguous_format)
        stream_map(CALLABLES[name], x, out=out, chunk_bytes=700, devices=["cpu"])
    assert_bits(out, expected)
    assert_bits(x, X)


def test_calls_within_calls_and_beside_each_other():
    def inner(x):
        return stream_map(lambda c: c + 1, x.cpu(), chunk_bytes=16).to(x.device)

    results = {}

    def outer(number):
        results[number] = stream_map(inner, X + number, chunk_bytes=64)

    threads = [threading.Thread(target=outer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert_bits(results[number], X + number + 1)


@pytest.mark.parametrize("fn", [torch.neg, functools.partial(diglot.gelu, backend="torch")])
def test_progress(capsys, fn):
    pytest.importorskip("rich")
    out = stream_map(fn, X, chunk_bytes=16, progress=True)
    assert_bits(out, whole(fn, X))
    shown = capsys.readouterr()
    assert "stream_map" in shown.err
    assert shown.out == ""


FORKED = """
import os, torch, diglot
from diglot import pinned_cache, stream_map
x = torch.randn(50, 3)
stream_map(torch.neg, x, chunk_bytes=120)
kept = pinned_cache.bytes
child = os.fork()
if child == 0:
    right = torch.equal(stream_map(torch.neg, x, chunk_bytes=120), -x)
    os._exit(0 if right and pinned_cache.bytes <= kept else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(stream_map(torch.neg, x, chunk_bytes=120), -x)
"""


FORKED_WITHIN = """
import os, sys, torch, diglot
calls = []
def fn(x):
    calls.append(0)
    if len(calls) == AT and os.fork() == 0:
        sys.exit(3)
    return -x
x = torch.randn(64, 1024)
assert torch.equal(diglot.stream_map(fn, x, chunk_bytes=1 << 14), -x)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("at", [1, 6])
def test_a_child_that_is_forked_by_fn_can_leave(at):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    code = FORKED_WITHIN.replace("AT", str(at))
    done = subprocess.run([sys.executable, "-c", code], timeout=60, env=environment)
    assert done.returncode == 3


def test_after_a_fork():
    """A child has neither the threads nor the pinned memory."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # CUDA itself cannot be forked
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60, env=environment)


def test_what_is_no_op():
    """A function that looks like one, and one without a module."""
    x = torch.randn(10, 3)

    @functools.wraps(diglot.gelu)
    def wrapped(chunk):
        return -chunk

    assert_bits(stream_map(wrapped, x, devices=["cpu"]), -x)
    assert_bits(stream_map(torch.tensor(2.0).mul, x, devices=["cpu"]), x * 2)


def test_the_report_of_nothing(tmp_path):
    stream_map(torch.neg, torch.empty(0, 3))
    last_stream_report().trace(tmp_path / "trace.json")
    assert str(last_stream_report())
