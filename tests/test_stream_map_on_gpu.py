"""stream_map on GPUs: what it holds of their memory, which streams it waits for, several GPUs."""

from __future__ import annotations

import functools
import gc
import json
import operator

import pytest
import torch
from backends import KERNELS

import diglot
from diglot import StreamError, last_stream_report, stream_map, stream_reduce
from diglot.pipeline import host
from diglot.pipeline.runtime import runtime_of

pytestmark = pytest.mark.gpu

MIB = 1 << 20
ROWS, COLUMNS = 4096, 1024  # 16 MiB
CHUNK = MIB // 2

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def pinned(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, pin_memory=True)


def memory():
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("is_pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("backend", KERNELS)
def test_the_result(backend, is_pinned):
    x = torch.randn(ROWS, COLUMNS)
    out = torch.empty_like(x)
    if is_pinned:
        x, out = x.pin_memory(), out.pin_memory()
    stream_map(diglot.gelu, x, out=out, backend=backend, chunk_bytes=CHUNK + 5 * 4096)
    assert torch.equal(out, diglot.gelu(x.cuda(), backend=backend).cpu())
    report = last_stream_report()
    assert report.engine == "native"
    staged = {"read", "write"} & set(report.stages())
    assert staged == (set() if is_pinned else {"read", "write"})


@pytest.mark.parametrize("num_slots", [1, 2, 4])
@pytest.mark.parametrize("backend", KERNELS)
def test_device_memory_is_bounded(backend, num_slots):
    x, out = torch.randn(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS)
    options = {"backend": backend, "chunk_bytes": CHUNK, "num_slots": num_slots, "out": out}
    stream_map(diglot.gelu, x, **options)
    before = memory()
    torch.cuda.reset_peak_memory_stats()
    stream_map(diglot.gelu, x, **options)
    peak = torch.cuda.max_memory_allocated() - before
    bound = num_slots * 2 * CHUNK
    assert last_stream_report().device_bytes == bound
    assert peak <= bound + 4 * COLUMNS * 4  # and a row, which is looked at before
    assert memory() == before


def test_device_memory_of_a_callable_is_bounded():
    x = torch.randn(ROWS, COLUMNS)

    def fn(c):
        return torch.cat([c, c.neg()], 1)  # 2 chunks, and one between

    stream_map(fn, x, chunk_bytes=CHUNK)
    before = memory()
    torch.cuda.reset_peak_memory_stats()
    stream_map(fn, x, chunk_bytes=CHUNK)
    bound = 3 * (CHUNK + 2 * CHUNK)
    assert last_stream_report().device_bytes == bound
    assert torch.cuda.max_memory_allocated() - before <= bound + 2 * (2 + 1) * CHUNK
    assert memory() == before


@pytest.mark.parametrize("backend", [*KERNELS, None])
def test_failures_leave_nothing_on_the_device(backend):
    x = torch.randn(64, COLUMNS)

    def fn(c):
        if backend is None:
            raise KeyError
        diglot.gelu(c, backend=backend)
        raise KeyError

    gc.collect()
    gc.disable()
    try:
        before = None
        for _ in range(200):
            with pytest.raises(StreamError):
                stream_map(fn, x, chunk_bytes=8 * 4096)
            before = before if before is not None else torch.cuda.memory_allocated()
        assert torch.cuda.memory_allocated() == before
        assert diglot.pinned_cache.bytes_in_use == 0
    finally:
        gc.enable()


def test_results_elsewhere_are_refused():
    with pytest.raises(StreamError, match="on the chunk's device, cuda:0, not on cpu"):
        stream_map(torch.Tensor.cpu, torch.randn(4, 3))


def test_out_of_memory_falls_back():
    """Chunks that do not fit beside what fn allocates."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    x = torch.randn(ROWS, COLUMNS)

    def fn(c):
        # A chunk of all rows needs more than there is, one of a quarter does not.
        torch.empty(150 * MIB * len(c) // ROWS, dtype=torch.uint8, device="cuda")
        return c + 1

    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 110 * MIB) / total)
    try:
        out = stream_map(fn, x, chunk_bytes=x.numel() * 4)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(out, x + 1)
    assert any("had no memory" in note for note in last_stream_report().notes)


def busy():
    """Work of some 20 ms on the current stream."""
    torch.cuda._sleep(40_000_000)


@pytest.mark.parametrize("on_side_stream", [False, True])
@pytest.mark.parametrize("backend", [*KERNELS, None])
def test_the_current_stream_is_waited_for(backend, on_side_stream):
    """Inputs, weights and output that work on it still writes and reads."""
    stream = torch.cuda.Stream() if on_side_stream else torch.cuda.default_stream()
    fn = functools.partial(diglot.add, backend=backend) if backend else torch.add
    values = torch.randn(ROWS, COLUMNS, device="cuda")
    x, weight = pinned(ROWS, COLUMNS).zero_(), torch.zeros(COLUMNS, device="cuda")
    out, copy = pinned(ROWS, COLUMNS).fill_(3), torch.empty_like(values)
    stream_map(fn, x, torch.zeros_like(x), chunk_bytes=CHUNK)  # compiled, buffers made
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        busy()
        x.copy_(values, non_blocking=True)
        weight.fill_(2)
        copy.copy_(out, non_blocking=True)
        stream_map(functools.partial(fn, other=weight), x, out=out, chunk_bytes=CHUNK)
    torch.cuda.synchronize()
    assert torch.equal(out, (values + 2).cpu())
    assert (copy == 3).all()


def test_a_strided_input_is_read_after_the_current_stream():
    """It is read by threads, not by a stream."""
    values, x = torch.randn(ROWS, COLUMNS, device="cuda"), pinned(ROWS, COLUMNS).zero_()
    stream_map(torch.neg, x[:, ::2], chunk_bytes=CHUNK)  # so that the next call looks at no row
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        busy()
        x.copy_(values, non_blocking=True)
        out = stream_map(torch.neg, x[:, ::2], chunk_bytes=CHUNK)
    torch.cuda.synchronize()
    assert torch.equal(out, -values[:, ::2].cpu())


def test_views_of_chunks_are_folded():
    x = torch.randn(ROWS, COLUMNS)
    parts = stream_reduce(lambda c: c[-1:], lambda a, b: torch.cat([a, b]), x, chunk_bytes=CHUNK)
    step = CHUNK // (4 * COLUMNS)
    assert torch.equal(parts, x[step - 1 :: step])


def test_fn_runs_on_streams_of_its_own():
    seen = set()

    def fn(c):
        seen.add((torch.cuda.current_stream().cuda_stream, torch.cuda.current_device()))
        return c

    stream_map(fn, torch.randn(64, COLUMNS), chunk_bytes=8 * 4096)
    assert len(seen) == 1
    assert seen != {(torch.cuda.current_stream().cuda_stream, 0)}


def test_streams_keep_their_roles():
    """Also after a run that took more of them: PyTorch's allocator keeps memory by stream."""

    def roles():
        runtime = runtime_of(torch.device("cuda", torch.cuda.current_device()), 3, False, True)
        try:
            streams = (runtime.loading, runtime.storing, *runtime.computing)
            return [of.stream.cuda_stream for of in streams]
        finally:
            runtime.close()

    x = pinned(ROWS, COLUMNS).normal_()
    stream_map(torch.sin, x, chunk_bytes=CHUNK, num_slots=9)
    stream_map(diglot.gelu, x, chunk_bytes=CHUNK, num_slots=9, backend="triton")
    assert roles() == roles()


def test_autocast():
    weight = torch.randn(COLUMNS, COLUMNS, device="cuda")
    x = torch.randn(64, COLUMNS)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = stream_map(lambda c: c @ weight, x, chunk_bytes=16 * 4096)
    assert out.dtype == torch.bfloat16


def test_inference_mode():
    with torch.inference_mode():
        x, out = torch.randn(64, COLUMNS).pin_memory(), pinned(64, COLUMNS)
        stream_map(torch.neg, x, out=out, chunk_bytes=8 * 4096)
        stream_map(diglot.gelu, x, out=out, chunk_bytes=8 * 4096)
    assert torch.equal(out, diglot.gelu(x.cuda()).cpu())


def test_the_trace_shows_copies_in_both_directions_at_once(tmp_path):
    x, out = pinned(16 * ROWS, COLUMNS).normal_(), pinned(16 * ROWS, COLUMNS)
    stream_map(diglot.gelu, x, out=out, backend="cuda")
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    for fn in (functools.partial(diglot.gelu, backend="cuda"), torch.neg):
        with torch.profiler.profile(activities=activities) as profile:
            stream_map(fn, x, out=out)
            torch.cuda.synchronize()
        profile.export_chrome_trace(str(tmp_path / "trace.json"))
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        (tmp_path / "trace.json").unlink()

        def spans(direction, events=events):
            found = [e for e in events if direction in e.get("name", "") and "dur" in e]
            return [(e["ts"], e["ts"] + e["dur"]) for e in found]

        of_in, of_out = spans("HtoD"), spans("DtoH")
        assert min(len(of_in), len(of_out)) >= last_stream_report().chunks
        both = sum(max(0, min(end, e) - max(begin, b)) for begin, end in of_in for b, e in of_out)
        # Other tests use the GPU meanwhile; one copy after the other would have none.
        assert both > 0.2 * sum(end - begin for begin, end in of_out)


@pytest.mark.parametrize("engine", [*KERNELS, None])
def test_what_is_pinned_is_not_staged(monkeypatch, engine):
    def no(*_):
        raise AssertionError

    monkeypatch.setattr(host.HostArray, "read", no)
    monkeypatch.setattr(host.HostArray, "write", no)
    diglot.pinned_cache.clear()
    x, out = pinned(64, COLUMNS).normal_(), pinned(65, COLUMNS).fill_(7)
    fn = torch.neg if engine is None else functools.partial(diglot.gelu, backend=engine)
    stream_map(fn, x[3:], out=out[1:62], chunk_bytes=8 * 4096)
    assert torch.equal(out[1:62], fn(x[3:].cuda()).cpu())
    assert (out[0] == 7).all()
    assert (out[62:] == 7).all()
    assert diglot.pinned_cache.bytes == 0


@pytest.mark.parametrize("engine", [*KERNELS, None])
def test_the_current_device_is_the_default(engine):
    fn = torch.neg if engine is None else functools.partial(diglot.gelu, backend=engine)
    last = torch.cuda.device_count() - 1
    with torch.cuda.device(last):
        stream_map(fn, torch.randn(64, COLUMNS))
    assert last_stream_report().devices == (f"cuda:{last}",)
    assert torch.cuda.current_device() == 0


@two_gpus
@pytest.mark.parametrize("is_pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("engine", [*KERNELS, None])
def test_two_devices(engine, is_pinned):
    fn = torch.neg if engine is None else functools.partial(diglot.gelu, backend=engine)
    x = torch.randn(ROWS, COLUMNS)
    out = torch.full_like(x, 7)
    if is_pinned:
        x, out = x.pin_memory(), out.pin_memory()
    for _ in range(3):
        stream_map(fn, x, out=out.fill_(7), devices=[0, 1], chunk_bytes=CHUNK)
        assert torch.equal(out, fn(x.cuda()).cpu())
        report = last_stream_report()
        assert report.devices == ("cuda:0", "cuda:1")
        assert report.engine == ("python" if engine is None else "native")
        assert [len(timeline) for timeline in report.timelines] == [16, 16]
    stream_map(fn, x, out=out.fill_(7), devices=["cuda:1"], chunk_bytes=CHUNK)
    assert torch.equal(out, fn(x.cuda()).cpu())


@two_gpus
def test_the_last_device_is_waited_for():
    x = torch.randn(ROWS, COLUMNS).pin_memory()

    def slow(c):
        if c.device.index == 1:
            busy()
        return c + 1

    out = pinned(ROWS, COLUMNS).fill_(7)
    stream_map(slow, x, out=out, devices=[0, 1], chunk_bytes=CHUNK)
    assert torch.equal(out, x + 1)


@two_gpus
def test_two_devices_fold_in_order():
    x = torch.randint(-9, 9, (ROWS, 4), dtype=torch.float64)
    parts = stream_reduce(
        lambda c: c[:1], lambda a, b: torch.cat([a, b]), x, devices=[1, 0], chunk_bytes=32 * 64
    )
    assert torch.equal(parts, x[::64])
    total = stream_reduce(lambda c: c.sum(0), operator.add, x, devices=[0, 1], chunk_bytes=32 * 64)
    assert torch.equal(total, x.sum(0))
