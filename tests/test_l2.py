"""L2 persistence: what it asks of CUDA and when, on a driver that only notes it; and on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch

import diglot
from diglot import l2
from diglot.l2 import Window, persist

MB = 1 << 20
SIZE, LARGEST, WINDOW = 60 * MB, 40 * MB, 128 * MB  # of the driver below
EXAMPLE = Path(__file__).parent.parent / "examples/l2_persistence.py"


class Driver:
    """Stands in for diglot._C: its functions, on one device whose work ends when it is told to."""

    def __init__(self):
        self.set_aside = 0
        self.windows = {}  # by the stream
        self.resets = 0
        self.events = []
        self.failing = set()
        self.mps = 0
        self.largest = LARGEST

    def _may_fail(self, name):
        if name in self.failing:
            raise RuntimeError(f"{name} fails")

    def l2_size(self, device):
        return SIZE

    def l2_largest_set_aside(self, device):
        return self.largest

    def l2_largest_window(self, device):
        return WINDOW

    def l2_is_under_mps(self, device):
        return self.mps

    def l2_set_aside(self, device):
        return self.set_aside

    def l2_set_set_aside(self, device, size):
        self._may_fail("set_aside")
        self.set_aside = size

    def l2_set_window(self, device, stream, address, size, ratio):
        self._may_fail("window")
        self.windows[stream] = Window(address, size, ratio) if size else None

    def l2_record(self, device, stream):
        self._may_fail("record")
        self.events.append(threading.Event())
        return len(self.events) - 1

    def l2_await(self, device, event):
        assert self.events[event].wait(30)
        self._may_fail("await")

    def l2_reset_lines(self, device):
        self.resets += 1

    def finish_work(self):
        for event in self.events:
            event.set()
        all_resets_done()


def all_resets_done():
    """Returns when the thread that resets has nothing more to do."""
    l2._waiter().submit(lambda: None).result(30)


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU, and has no memory."""

    __torch_dispatch__ = None

    @staticmethod
    def __new__(cls, *size, strides=None, dtype=torch.float32):
        return torch.Tensor._make_wrapper_subclass(
            cls, size, strides=strides, dtype=dtype, device="cuda:0"
        )

    def data_ptr(self):
        return 4096


@pytest.fixture
def driver(monkeypatch):
    """A machine with one GPU, as far as diglot.l2 looks; `driver.stream` is the current stream."""
    driver = Driver()
    driver.stream = 7
    driver.capturing = False
    driver.name, driver.capability = "NVIDIA H200", (9, 0)
    monkeypatch.setattr(l2, "load_extension", lambda: (driver, ""))
    monkeypatch.setattr(l2, "_scopes", {})
    for name, stand_in in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_name": lambda device: driver.name,
        "get_device_capability": lambda device: driver.capability,
        "is_current_stream_capturing": lambda: driver.capturing,
        "current_stream": lambda device: types.SimpleNamespace(cuda_stream=driver.stream),
        "device": lambda device: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return driver


TABLE = OnGpu(1024, 1024)
TABLE_WINDOW = Window(4096, 4 * MB, 1.0)


def test_a_scope(driver):
    with persist(TABLE) as window:
        assert window == TABLE_WINDOW == driver.windows[7]
        assert driver.set_aside == 4 * MB == l2.info().set_aside
        assert driver.events == []
    # At once; the rest is for when the work is done.
    assert driver.windows[7] is None
    assert (driver.set_aside, driver.resets) == (4 * MB, 0)
    driver.finish_work()
    assert (driver.set_aside, driver.resets) == (0, 1)


def test_an_exception(driver):
    with pytest.raises(KeyError, match="mine"), persist(TABLE):
        raise KeyError("mine")
    assert driver.windows[7] is None
    driver.finish_work()
    assert (driver.set_aside, driver.resets) == (0, 1)


def test_what_is_set_aside_already(driver):
    """It comes back, and is left alone where it is enough: CUDA waits to change it."""
    driver.set_aside = 3 * MB
    with persist(TABLE):
        assert driver.set_aside == 4 * MB
        with persist(TABLE, 0.25):  # what scopes need adds up
            assert driver.set_aside == 5 * MB
        with persist(OnGpu(80 * MB)):
            assert driver.set_aside == LARGEST
    driver.finish_work()
    assert driver.set_aside == 3 * MB
    driver.set_aside = 5 * MB
    driver.failing = {"set_aside"}
    with persist(TABLE):
        assert driver.set_aside == 5 * MB
    driver.finish_work()
    assert (driver.set_aside, driver.resets) == (5 * MB, 2)


def test_nested_scopes(driver):
    other = OnGpu(256, 1024)
    with persist(TABLE):
        with persist(other, 0.5):
            assert driver.windows[7] == Window(4096, MB, 0.5)
        assert driver.windows[7] == TABLE_WINDOW
        driver.finish_work()
        assert (driver.set_aside, driver.resets) == (4 * MB + MB // 2, 0)
    assert driver.windows[7] is None
    driver.finish_work()
    assert (driver.set_aside, driver.resets) == (0, 1)


def test_scopes_of_several_streams_end_in_any_order(driver):
    first, second = persist(TABLE), persist(TABLE, 0.25)
    first.__enter__()
    driver.stream = 8
    second.__enter__()
    assert driver.windows == {7: TABLE_WINDOW, 8: Window(4096, 4 * MB, 0.25)}
    # The stream is that of the entry, whichever is current on exit.
    first.__exit__(None, None, None)
    assert driver.windows == {7: None, 8: Window(4096, 4 * MB, 0.25)}
    driver.finish_work()
    assert (driver.set_aside, driver.resets) == (5 * MB, 0)
    second.__exit__(None, None, None)
    driver.finish_work()
    assert (driver.set_aside, driver.resets) == (0, 1)


def test_a_scope_that_begins_before_the_work_of_another_is_done(driver):
    with persist(TABLE):
        pass
    with persist(TABLE):
        driver.events[0].set()
        all_resets_done()
        assert (driver.set_aside, driver.resets) == (8 * MB, 0)
    driver.finish_work()
    assert (driver.set_aside, driver.resets) == (0, 1)


def test_scopes_of_many_threads(driver):
    def enter_and_leave():
        for _ in range(50):
            with persist(TABLE):
                assert driver.set_aside >= 4 * MB

    threads = [threading.Thread(target=enter_and_leave) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.events) == 400 and driver.windows[7] is None
    driver.finish_work()
    assert driver.set_aside == 0


@pytest.mark.parametrize("call", ["set_aside", "window"])
def test_a_failing_entry(driver, call):
    driver.failing = {call}
    with pytest.raises(RuntimeError, match=f"{call} fails"), persist(TABLE):
        pytest.fail("it was entered")
    driver.failing = set()
    assert driver.set_aside == 0
    with persist(TABLE):  # nothing is left of the first
        assert driver.windows[7] == TABLE_WINDOW
    assert driver.windows[7] is None
    driver.finish_work()
    assert driver.set_aside == 0


@pytest.mark.parametrize("call", ["window", "record"])
def test_a_failing_exit(driver, call):
    """Where the body failed before, its exception is the one that is seen."""
    with pytest.raises(RuntimeError, match=f"{call} fails"), persist(TABLE):
        driver.failing = {call}
    assert (driver.set_aside, driver.resets) == (0, 1)
    driver.failing = set()
    with pytest.raises(KeyError, match="mine"), persist(TABLE):
        driver.failing = {call}
        raise KeyError("mine")
    assert (driver.set_aside, driver.resets) == (0, 2)


def test_work_that_fails(driver):
    with persist(TABLE):
        pass
    driver.failing = {"await"}
    driver.finish_work()
    assert (driver.set_aside, driver.resets) == (0, 1)


def test_the_default_hit_ratio_fills_what_is_set_aside(driver):
    with persist(OnGpu(80 * MB // 4)) as window:
        assert window == Window(4096, 80 * MB, 0.5)
    with persist(OnGpu(30 * MB // 4)) as window:
        assert window == Window(4096, 30 * MB, 1.0)
    # Clipped to the largest window.
    with persist(OnGpu(200 * MB // 4)) as window:
        assert window == Window(4096, WINDOW, LARGEST / WINDOW)
    driver.largest = 55 * MB
    assert l2.info().largest_set_aside == 45 * MB == 3 * SIZE // 4
    driver.finish_work()


@pytest.mark.parametrize(
    ("size", "strides", "elements"),
    [
        ((), (), 1),
        ((3, 4), (4, 1), 12),
        ((3, 4), (1, 3), 12),
        ((3, 4), (10, 2), 27),
        ((3, 4), (0, 1), 4),
        ((5, 1, 2), (6, 1000, 3), 28),
    ],
)
def test_the_window_of_a_strided_tensor(driver, size, strides, elements):
    with persist(OnGpu(*size, strides=strides, dtype=torch.float64)) as window:
        assert window.num_bytes == elements * 8
    driver.finish_work()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"capability": (7, 5), "name": "T4"},
            r"T4 has compute capability 7\.5; the least is 8\.0",
        ),
        ({"name": "NVIDIA A100 MIG 1g.5gb"}, r"A100 MIG 1g\.5gb is a part of a GPU in MIG mode"),
        ({"mps": 1}, "used through MPS.*CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE"),
        ({"largest": 0}, "nothing can be set aside"),
    ],
)
def test_where_it_has_no_effect(driver, change, reason):
    for name, value in change.items():
        setattr(driver, name, value)
    warns = pytest.warns(RuntimeWarning, match=rf"l2\.persist has no effect: .*{reason}")
    with warns as warned, persist(TABLE) as window:
        assert window is None and driver.windows == {} and driver.set_aside == 0
    assert warned[0].filename == __file__
    assert driver.windows == {} and driver.events == []
    assert l2.info().refusal in str(warned[0].message)


def test_no_refusal(driver):
    assert l2.info("cuda:0") == l2.Info(SIZE, 0, LARGEST, WINDOW, None)


def test_a_capture(driver):
    """Its kernels get the window; what is set aside is the business of a scope around a replay."""
    driver.capturing = True
    with persist(TABLE):
        assert driver.windows[7] == TABLE_WINDOW
    assert driver.windows[7] is None
    assert driver.set_aside == 0 and driver.events == []
    for call in ("set_aside", "record"):
        driver.failing = {call}
        with persist(TABLE):
            pass
    driver.failing = {"window"}
    with pytest.raises(RuntimeError, match="window fails"):
        persist(TABLE).__enter__()
    assert driver.resets == 0


@pytest.mark.parametrize("ratio", [0, 0.0, -0.5, 1.0001, float("nan"), float("inf")])
def test_hit_ratios_out_of_range(driver, ratio):
    with pytest.raises(ValueError, match="hit_ratio must be greater than 0 and at most 1, not"):
        persist(TABLE, hit_ratio=ratio).__enter__()


@pytest.mark.parametrize(
    ("tensor", "options", "error", "message"),
    [
        (torch.ones(3), {}, ValueError, "must be on a CUDA device, not on cpu"),
        (torch.ones(3, device="meta"), {}, ValueError, "must be on a CUDA device, not on meta"),
        ([1.0], {}, TypeError, "tensor must be a torch.Tensor, not list"),
        (torch.eye(3).to_sparse(), {}, TypeError, "must be a dense tensor"),
        (torch.ones(3), {"hit_ratio": "0.5"}, TypeError, "hit_ratio must be a real number"),
        (OnGpu(3, 0), {}, ValueError, "tensor has no elements"),
    ],
)
def test_errors(tensor, options, error, message):
    with pytest.raises(error, match=f"l2.persist: .*{message}"):
        persist(tensor, **options).__enter__()


def test_without_the_extension(monkeypatch):
    monkeypatch.setattr(l2, "load_extension", lambda: (None, "it is not built"))
    with pytest.raises(RuntimeError, match=r"l2\.persist: it is not built"):
        persist(TABLE).__enter__()
    with pytest.raises(RuntimeError, match=r"l2\.info: it is not built"):
        l2.info()


def test_info_of_what_is_no_gpu():
    with pytest.raises(ValueError, match="must be a CUDA device, not cpu"):
        l2.info("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_info_without_a_gpu():
    with pytest.raises(RuntimeError, match=r"l2.info: .*(no CUDA GPU|CUDA extension)"):
        l2.info()


def test_the_example_explains_itself():
    command = [sys.executable, str(EXAMPLE), "--help"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0 and "--hot-mb" in answer.stdout, answer.stderr


# --- on a GPU ------------------------------------------------------------------------------------


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
    """Waits for the GPU, and for what persist does afterwards; what is set aside then."""
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


@pytest.mark.gpu
def test_info(table):
    info = l2.info()
    assert info.refusal is None
    assert info.size == torch.cuda.get_device_properties(0).L2_cache_size
    assert info.set_aside <= info.largest_set_aside <= 3 * info.size // 4
    assert info.largest_window >= info.largest_set_aside
    assert info == l2.info(0) == l2.info("cuda:0") == l2.info(torch.device("cuda"))


@pytest.mark.gpu
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


@pytest.mark.gpu
def test_results_are_the_same(table):
    index = torch.randint(0, len(table), (10_000,), device="cuda")
    expected = table[index].sum(0)
    for ratio in (None, 0.25, 1.0):
        with persist(table, ratio):
            assert torch.equal(table[index].sum(0), expected)


@pytest.mark.gpu
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


@pytest.mark.gpu
def test_what_is_set_aside_already_needs_no_wait(table):
    with persist(table):
        torch.cuda._sleep(1_000_000_000)
        small = table[: 6144 // 24]
        began = time.perf_counter()
        for _ in range(3):  # what is set aside was rounded up, by more than these need
            with persist(small, 2**-10):
                small.sum()
        took = time.perf_counter() - began
        assert not torch.cuda.current_stream().query() and took < 0.1, took


@pytest.mark.gpu
def test_an_exception_on_a_gpu(table):
    with pytest.raises(KeyError), persist(table):
        raise KeyError


@pytest.mark.gpu
def test_nested_on_a_gpu(table):
    with persist(table):
        with persist(table[3072:], 0.25):
            assert window_of(torch.cuda.current_stream()).num_bytes == 12 * MB
        assert window_of(torch.cuda.current_stream()).num_bytes == 24 * MB


@pytest.mark.gpu
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


@pytest.mark.gpu
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


@pytest.mark.gpu
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


@pytest.mark.gpu
def test_a_process_ends_with_work_pending():
    answer = subprocess.run(
        [sys.executable, "-c", PENDING], capture_output=True, text=True, timeout=120
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "left\n", "")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_another_device_than_the_current():
    table = torch.ones(6144, 1024, device="cuda:1")
    before = l2.info(1).set_aside
    with persist(table):
        assert l2.info(1).set_aside >= table.nbytes > l2.info(0).set_aside
        assert window_of(torch.cuda.current_stream(1)).num_bytes == table.nbytes
        assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    all_resets_done()
    assert l2.info(1).set_aside == before


@pytest.mark.gpu
def test_the_example():
    command = [sys.executable, str(EXAMPLE), "--hot-mb", "16", "--hit-ratio", "1", "--rounds", "2"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "16 MB          1" in answer.stdout, answer.stdout


def test_it_is_part_of_the_package():
    assert diglot.l2 is l2
