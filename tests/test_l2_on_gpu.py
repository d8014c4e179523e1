"""L2 persistence on a GPU: the driver's word on streams, graphs and the size set aside."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from diglot import l2
from diglot.l2 import persist

pytestmark = pytest.mark.gpu

MB = 1 << 20
EXAMPLE = Path(__file__).parent.parent / "examples/l2_persistence.py"


def all_resets_done():
    """Returns when the thread that resets has nothing more to do."""
    l2._waiter().submit(lambda: None).result(30)


class Attribute(ctypes.Structure):
    """cudaAccessPolicyWindow; a cudaLaunchAttributeValue is as large as its padding makes it."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("num_bytes", ctypes.c_size_t),
        ("hit_ratio", ctypes.c_float),
        ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
        ("padding", ctypes.c_char * 32),
    )


def ask(function, *arguments):
    """Calls a function of PyTorch's own CUDA runtime, the extension's being another copy."""
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    (library,) = {path for path in loaded if "libcudart.so" in path}
    assert getattr(ctypes.CDLL(library), function)(*arguments) == 0


def window_of(stream):
    attribute = Attribute()
    ask("cudaStreamGetAttribute", ctypes.c_void_p(stream.cuda_stream), 1, ctypes.byref(attribute))
    return attribute


def windows_of(graph):
    """Bytes of the window of each kernel of a captured graph."""
    raw = ctypes.c_void_p(graph.raw_cuda_graph())
    count = ctypes.c_size_t()
    ask("cudaGraphGetNodes", raw, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    ask("cudaGraphGetNodes", raw, nodes, ctypes.byref(count))
    sizes = []
    for node in nodes:
        kind, attribute = ctypes.c_int(), Attribute()
        ask("cudaGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        if kind.value == 0:  # a kernel
            to = (ctypes.c_void_p(node), 1, ctypes.byref(attribute))
            ask("cudaGraphKernelNodeGetAttribute", *to)
            sizes.append(attribute.num_bytes)
    return sizes


def settled():
    """Waits for the GPU, and for the work of persist after it; the size set aside then."""
    torch.cuda.synchronize()
    all_resets_done()
    return l2.info().set_aside


@pytest.fixture
def table():
    """24 MB, more than the driver sets aside by itself."""
    table = torch.randn(6144, 1024, device="cuda")
    table.sum()  # its kernel is loaded
    before = settled()
    assert before < table.nbytes
    yield table
    assert settled() == before
    assert window_of(torch.cuda.current_stream()).num_bytes == 0


def test_info(table):
    info = l2.info()
    assert info.refusal is None
    assert info.size == torch.cuda.get_device_properties(0).L2_cache_size
    assert info.set_aside <= info.largest_set_aside <= 3 * info.size // 4
    assert info.largest_window >= info.largest_set_aside
    assert info == l2.info(0) == l2.info("cuda:0") == l2.info(torch.device("cuda"))


@pytest.mark.parametrize("kind", ["default", "side"])
def test_the_window_is_the_streams(table, kind):
    stream = torch.cuda.default_stream() if kind == "default" else torch.cuda.Stream()
    other = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        with persist(table[:, :512], hit_ratio=0.5):
            found = window_of(stream)
            assert (found.address, found.num_bytes) == (table.data_ptr(), 24 * MB - 2048)
            assert (found.hit_ratio, found.hit, found.miss) == (0.5, 2, 0)
            assert window_of(other).num_bytes == 0
            assert 12 * MB - 1024 <= l2.info().set_aside < 24 * MB
        assert window_of(stream).num_bytes == 0


def test_results_are_the_same(table):
    index = torch.randint(0, len(table), (10_000,), device="cuda")
    expected = table[index].sum(0)
    for ratio in (None, 0.25, 1.0):
        with persist(table, ratio):
            assert torch.equal(table[index].sum(0), expected)


def test_the_exit_does_not_wait(table):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        with persist(table):
            torch.cuda._sleep(1_000_000_000)  # half a second
            table.sum()
            began = time.perf_counter()
        took = time.perf_counter() - began
        assert not stream.query() and took < 0.1, took
        assert window_of(stream).num_bytes == 0
    assert l2.info().set_aside >= table.nbytes


def test_what_is_set_aside_already_needs_no_wait(table):
    with persist(table):
        torch.cuda._sleep(1_000_000_000)
        small = table[: 6144 // 24]
        began = time.perf_counter()
        for _ in range(3):  # the size set aside was rounded up, by more than these need
            with persist(small, 2**-10):
                small.sum()
        took = time.perf_counter() - began
        assert not torch.cuda.current_stream().query() and took < 0.1, took


def test_an_exception_on_a_gpu(table):
    with pytest.raises(KeyError), persist(table):
        raise KeyError


def test_nested_on_a_gpu(table):
    with persist(table):
        with persist(table[3072:], 0.25):
            assert window_of(torch.cuda.current_stream()).num_bytes == 12 * MB
        assert window_of(torch.cuda.current_stream()).num_bytes == 24 * MB


def test_threads_on_streams_of_their_own(table):
    expected = table.sum(1)
    wrong = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                with persist(table):
                    if not torch.equal(table.sum(1), expected):
                        wrong.append(1)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_captured_kernels_have_the_window(table):
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    expected = table * 2 + 1
    before = settled()
    with torch.cuda.graph(graph):
        with persist(table):
            doubled = table * 2
        result = doubled + 1
    assert windows_of(graph) == [table.nbytes, 0]
    assert settled() == before
    with persist(table):
        graph.replay()
        assert l2.info().set_aside >= table.nbytes
    assert torch.equal(result, expected)


def test_a_reset_does_not_disturb_a_capture(table):
    """Nor does an exit: the capture is of another thread's stream, in CUDA's strictest mode."""
    graph = torch.cuda.CUDAGraph()
    side, capturing = torch.cuda.Stream(), torch.cuda.Stream()
    doubled = table * 2
    with torch.cuda.stream(side), persist(table):
        torch.cuda._sleep(200_000_000)  # a tenth of a second
    with torch.cuda.stream(capturing):
        graph.capture_begin(capture_error_mode="global")
        doubled.add_(table)
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            pass
        doubled.add_(table)
        graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(doubled, table * 4)


PENDING = """
import torch, diglot
table = torch.ones(6144, 1024, device="cuda")
with diglot.l2.persist(table):
    torch.cuda._sleep(400_000_000)
print("left", flush=True)
"""


def test_a_process_ends_with_work_pending():
    answer = subprocess.run(
        [sys.executable, "-c", PENDING], capture_output=True, text=True, timeout=120
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "left\n", "")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_another_device_than_the_current():
    table = torch.ones(6144, 1024, device="cuda:1")
    before = l2.info(1).set_aside
    with persist(table):
        assert l2.info(1).set_aside >= table.nbytes > l2.info(0).set_aside
        with torch.cuda.device(1):  # whose the default stream's handle means
            assert window_of(torch.cuda.current_stream()).num_bytes == table.nbytes
        assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    all_resets_done()
    assert l2.info(1).set_aside == before


def test_the_example():
    command = [sys.executable, str(EXAMPLE), "--hot-mb", "16", "--hit-ratio", "1", "--rounds", "2"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "16 MB          1" in answer.stdout, answer.stdout
