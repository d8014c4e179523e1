"""stream_map and stream_reduce: for any chunks what the whole gives, bit by bit, from any host
memory to any other."""

from __future__ import annotations

import functools
import math
import operator
import threading
import time

import pytest
import torch
from backends import BACKENDS, CUDA, DEVICE, FLOATING, draw, examples, needs_cuda
from hypothesis import given, settings
from hypothesis import strategies as st

import diglot
from diglot import last_stream_report, stream_map, stream_reduce
from diglot.backends.registry import cuda_module

np = pytest.importorskip("numpy")

COLUMNS = 5
WEIGHT, BIAS = torch.randn(2, COLUMNS, dtype=torch.float64)

# Ops whose rows are independent: how many inputs, the options, whether CUDA's is one launch of them
# and of nothing else: layer_norm's has statistics, too.
OPS = {
    "gelu": (1, {}, True),
    "gelu tanh": (1, {"approximate": "tanh"}, True),
    "add": (2, {"alpha": 0.5}, True),
    "add number": (1, {"other": 2.5}, True),
    "softmax": (1, {"dim": -1}, True),
    "layer_norm": (1, {"normalized_shape": (COLUMNS,), "weight": WEIGHT, "bias": BIAS}, False),
    "gaussian_pdf": (1, {"mean": 0.25, "std": 1.5, "terms": 5}, True),
}


def op_of(name, dtype):
    """An op with its options, and how many inputs it has."""
    count, options, _ = OPS[name]
    launcher = f"{name.split()[0]}_forward"
    if DEVICE == "cpu" and not hasattr(cuda_module()[0], launcher):
        pytest.skip(f"the interpreter was built without {launcher}")
    cast = {
        key: value.to(DEVICE, dtype) if isinstance(value, torch.Tensor) else value
        for key, value in options.items()
    }
    return functools.partial(getattr(diglot, name.split()[0]), **cast), count


def assert_bits(result, expected):
    assert (result.shape, result.dtype, result.device) == (
        expected.shape,
        expected.dtype,
        expected.device,
    )
    as_bytes = [t.contiguous().reshape(-1).view(torch.uint8) for t in (result, expected)]
    assert torch.equal(*as_bytes)


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
    out = stream_map(
        fn,
        *inputs,
        chunk_bytes=data.draw(st.integers(row, 45 * row), "chunk_bytes"),
        num_slots=data.draw(st.integers(1, 5), "num_slots"),
        backend=backend,
    )
    expected = whole(fn, *inputs, backend=backend)
    if backend == "torch":  # it may compute the last elements otherwise than those before
        torch.testing.assert_close(out, expected)
    else:
        assert_bits(out, expected)
    report = last_stream_report()
    assert (report.backend, report.op, report.rows) == (backend, name.split()[0], rows)
    is_native = backend == "cuda" and OPS[name][2] and rows > 0
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
    assert torch.equal(X, kept)  # what is done in place is done to chunks
    out = torch.full_like(expected, 7, memory_format=torch.contiguous_format)
    widest = max(16, out[:1].numel() * out.element_size())
    assert stream_map(fn, X, out=out, chunk_bytes=widest * chunk_rows) is out
    assert_bits(out, expected)


def test_the_same_memory_each_time():
    assert_bits(stream_map(static_buffer(), X, chunk_bytes=48), X * 2)
    parts = stream_reduce(static_buffer(), lambda a, b: torch.cat([a, b]), X, chunk_bytes=48)
    assert_bits(parts, X * 2)


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


# Folding.


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


# What fn sees of the thread that calls.


@pytest.mark.parametrize("devices", [["cpu"], ["cpu:0", "cpu:1"]], ids=len)
def test_what_fn_sees(devices):
    seen = []

    def fn(x):
        seen.append(
            (
                torch.is_autocast_enabled("cpu"),
                torch.get_autocast_dtype("cpu"),
                torch.is_grad_enabled(),
                diglot.gelu(x.detach()) is not None and diglot.last_run().backend,
                threading.current_thread() is threading.main_thread(),
            )
        )
        return x

    with torch.autocast("cpu", dtype=torch.float16), diglot.use_backend("triton"):
        stream_map(fn, X[:4], chunk_bytes=16, devices=devices)
    assert set(seen) == {(True, torch.float16, False, "triton", False)}
    assert len(seen) == 4
    stream_map(fn, X[:1])
    assert seen[-1][0] is False
    assert seen[-1][3] == "torch"


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
        assert_bits(stream_map(diglot.gelu, X, backend="torch"), diglot.gelu(X, backend="torch"))


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


def test_report_of_a_fold():
    stream_reduce(lambda x: x.sum(0), operator.add, X, chunk_bytes=64)
    report = last_stream_report()
    assert (report.bytes_in, report.bytes_out, report.chunks) == (31 * 16, 16, 8)
    assert "d2h" not in report.stages()


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


def test_the_last_device_is_waited_for():
    """Also when it is much slower than the others."""

    def slow(x):
        if x[0, 0] >= 30:
            time.sleep(0.05)
        return x + 1

    x = torch.arange(40.0)[:, None]
    for _ in range(3):
        out = torch.zeros(40, 1)
        stream_map(slow, x, out=out, chunk_bytes=16, devices=["cpu:0", "cpu:1"])
        assert_bits(out, x + 1)


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
