"""L2 persistence: what it asks of CUDA and when, on a driver that only notes it."""

from __future__ import annotations

import contextlib
import threading
import types
from pathlib import Path

import pytest
import torch
from scripts import run_here

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
        ({"largest": 0}, "cannot set cache aside"),
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
    """Its kernels get the window; a scope around a replay sets cache aside."""
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
    status, output = run_here(EXAMPLE, "--help")
    assert status == 0 and "--hot-mb" in output


def test_it_is_part_of_the_package():
    assert diglot.l2 is l2
