"""How diglot.graphs calls PyTorch's allocator and CUDA's driver, which are pretended here."""

from __future__ import annotations

import contextlib
import ctypes

import pytest
import torch

from diglot.backends import driver
from diglot.graphs import device as module
from diglot.graphs import nodes

CUDA = torch.device("cuda", 0)


class Graph:
    """In CUDAGraph's place. Its capture may be broken, so that it cannot end."""

    is_broken = False
    calls: list[str] = []  # noqa: RUF012

    def __init__(self, keep_graph=False):
        self.keep_graph = keep_graph

    def capture_begin(self, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.calls.append("begin")

    def capture_end(self):
        self.calls.append("end")
        if self.keep_graph and Graph.is_broken:
            raise RuntimeError("operation failed due to a previous error during capture")

    def instantiate(self):
        self.calls.append("instantiate")

    def reset(self):
        self.calls.append("reset")


class Stream:
    cuda_stream = 9


@pytest.fixture
def calls(monkeypatch):
    """What a device does, in order."""
    made = Graph.calls = []
    Graph.is_broken = False

    @contextlib.contextmanager
    def stream(which):
        made.append("enter")
        yield
        made.append("exit")

    cuda = {
        "CUDAGraph": Graph,
        "graph_pool_handle": lambda: (0, 1),
        "device": lambda which: contextlib.nullcontext(),
        "stream": stream,
        "synchronize": lambda which: None,
        "reset_peak_memory_stats": lambda which: None,
        "memory_allocated": lambda which: 100,
        "max_memory_allocated": lambda which: 170,
    }
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *sizes, device: zeros(*sizes))
    monkeypatch.setattr(module, "own_stream", lambda device, use: Stream())
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(module, "replace_broken_capture", lambda stream: made.append("replace"))
    return made


def test_a_capture(calls):
    gpu = module.CudaDevice(CUDA)
    pool = gpu.new_pool()
    del calls[:]
    capture = gpu.capture(lambda: "result", pool)
    assert capture.result == "result" and capture.needed_bytes == 70
    assert calls == ["enter", "begin", "end", "instantiate", "exit"]


def raises():
    raise KeyError("of the function")


@pytest.mark.parametrize("function", [raises, lambda: None])
def test_a_capture_that_breaks(calls, function):
    """An empty capture takes its place and ends, and so does another; all are told of both."""
    gpu = module.CudaDevice(CUDA)
    pool = gpu.new_pool()
    del calls[:]
    Graph.is_broken = True
    with pytest.raises(KeyError if function is raises else RuntimeError):
        gpu.capture(function, pool)
    ended = [] if function is raises else ["end"]
    assert calls[: 5 + len(ended)] == ["enter", "begin", *ended, "replace", "end", "reset"]
    assert calls[5 + len(ended) :] == ["enter", "begin", "end", "exit"]


def test_a_function_that_raises(calls):
    """The capture ends as PyTorch's do."""
    gpu = module.CudaDevice(CUDA)
    pool = gpu.new_pool()
    del calls[:]
    with pytest.raises(KeyError):
        gpu.capture(raises, pool)
    assert calls[:5] == ["enter", "begin", "replace", "end", "reset"]


@pytest.mark.parametrize("is_native", [True, False])
def test_the_stream_of_a_call(calls, monkeypatch, is_native):
    """A call in a capture has no free stream."""
    now = {"handle": 7, "is_captured": False}

    class Library:
        def free_stream(self, index):
            assert index == CUDA.index
            return None if now["is_captured"] else now["handle"]

    monkeypatch.setattr(module, "library", Library if is_native else lambda: None)
    monkeypatch.setattr(module, "is_captured", lambda device: now["is_captured"])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: now["handle"])
    gpu = module.CudaDevice(CUDA)
    assert gpu.free_stream() == 7
    now["is_captured"] = True
    assert gpu.free_stream() is None


class Driver:
    """Two kernels, the second after the first, then a copy: what the driver says of them."""

    handles = (11, 12, 13)
    names = {1: b"first", 2: b"_ZN6diglot6secondIfEEvi"}  # noqa: RUF012

    def cuGraphGetNodes(self, graph, found, count):
        assert graph.value == 5
        count._obj.value = 3
        if found is not None:
            found[:] = self.handles
        return 0

    def cuGraphGetEdges_v2(self, graph, begins, ends, data, count):
        count._obj.value = 2
        if begins is not None:
            begins[:], ends[:] = (11, 12), (12, 13)
        return 0

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = 1 if node.value == 13 else 0
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node, params):
        into = params._obj
        into.func, into.kern = (1, None) if node.value == 11 else (None, 2)
        into.grid[:], into.block[:], into.shared_bytes = (4, 2, 1), (128, 1, 1), 1024
        return 0

    def cuFuncGetName(self, text, function):
        text._obj.value = self.names[function.value]
        return 0

    cuKernelGetName = cuFuncGetName

    def cuGraphMemcpyNodeGetParams(self, node, params):
        into = params._obj
        into.source.memory_type, into.target.memory_type = 1, 2
        into.width_bytes, into.height, into.depth = 64, 2, 1
        return 0


def test_nodes_that_the_driver_tells(monkeypatch):
    monkeypatch.setattr(nodes, "driver", Driver)
    handles = nodes.node_handles(5)
    assert nodes.read_edges(5, handles) == [(0, 1), (1, 2)]
    first, second, copy = map(nodes.read_node, handles)
    assert (first.kind, first.name, first.grid, first.num_bytes) == (
        "kernel",
        "first",
        (4, 2, 1),
        1024,
    )
    assert second.name == "second<float>"
    assert (copy.kind, copy.name, copy.num_bytes) == ("memcpy", "host to device", 128)


def test_structures_are_the_driver_s():
    """Sizes and places of fields, as cuda.h of CUDA 13.0 has them."""
    sizes = [nodes._KernelParams, nodes._MemcpyParams, nodes._MemsetParams, nodes._EdgeData]
    assert list(map(ctypes.sizeof, sizes)) == [72, 200, 40, 8]
    assert (nodes._KernelParams.shared_bytes.offset, nodes._KernelParams.kern.offset) == (32, 56)
    assert nodes._MemcpyParams.target.offset == 88


class _Driver:
    """Answers as a stream whose capture has a status."""

    def __init__(self, status: int) -> None:
        self.status, self.called = status, []

    def cuStreamIsCapturing(self, stream, status):
        status._obj.value = self.status
        return 0

    def cuStreamEndCapture(self, stream, graph):
        self.called.append("end")
        return 901  # the capture was invalidated

    def cuStreamBeginCapture_v2(self, stream, mode):
        self.called.append("begin")
        return 0


@pytest.mark.parametrize(
    ("status", "called"), [("none", ["begin"]), ("active", []), ("broken", ["end", "begin"])]
)
def test_an_empty_capture_replaces_a_broken_one(status, called, monkeypatch):
    fake = _Driver(["none", "active", "broken"].index(status))
    monkeypatch.setattr(driver, "driver", lambda: fake)
    driver.replace_broken_capture(7)
    assert fake.called == called
