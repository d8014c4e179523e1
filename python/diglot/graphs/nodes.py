"""The nodes and the edges of a CUDA graph, read through the CUDA driver."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from diglot.backends.driver import check_driver, driver
from diglot.backends.runs import LastRun, mark_runs, observe_runs
from diglot.instruments import instrument

KINDS = {
    0: "kernel",
    1: "memcpy",
    2: "memset",
    3: "host function",
    4: "child graph",
    5: "empty",
    6: "wait for event",
    7: "record event",
    8: "signal semaphore",
    9: "wait for semaphore",
    10: "allocation",
    11: "free",
    12: "memory operations",
    13: "conditional",
}


@dataclass(frozen=True)
class Node:
    """A node.

    Attributes:
        handle: what the driver calls it.
        kind: such as "kernel", "memcpy", "memset", "host function", "child graph".
        name: a kernel's, as its compiler has it; of another node what it is about.
        grid, block: a kernel's.
        num_bytes: dynamic shared memory of a kernel; bytes that are copied or set; None if unknown.
        run: the launcher of diglot's that launched it, if one did.
    """

    handle: int
    kind: str
    name: str = ""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    num_bytes: int | None = None
    run: LastRun | None = None


Edge = tuple[int, int]  # the places of two nodes in a list


@dataclass(frozen=True)
class NotedRun:
    """A launch of one of diglot's ops in a capture, and the nodes that it made."""

    run: LastRun
    handles: frozenset[int]


@contextlib.contextmanager
def noted_runs(captured: Callable[[], list[int]]) -> Iterator[list[NotedRun]]:
    """Context manager: the launches of diglot's ops in it, with the nodes that each made.

    Args:
        captured: the handles of the nodes that the current stream's capture has; none where it is
            not captured.
    """
    noted: list[NotedRun] = []
    before: dict[int, set[int]] = {}  # by thread: autograd has its own, and others capture nothing

    @contextlib.contextmanager
    def mark(label: str) -> Iterator[None]:
        before[threading.get_ident()] = set(captured())
        yield

    def observe(run: LastRun, arguments: tuple[Any, ...]) -> None:
        handles = set(captured()) - before.pop(threading.get_ident(), set())
        if handles:
            noted.append(NotedRun(run, frozenset(handles)))

    with mark_runs(mark), observe_runs(observe):
        yield noted


def node_handles(graph: int) -> list[int]:
    """The handles of a graph's nodes, in the order in which the driver has them."""
    count = ctypes.c_size_t()
    library = driver()
    check_driver(
        library.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)),
        "counting a graph's nodes",
    )
    found = (ctypes.c_void_p * count.value)()
    if count.value:
        check_driver(
            library.cuGraphGetNodes(ctypes.c_void_p(graph), found, ctypes.byref(count)),
            "listing a graph's nodes",
        )
    return [handle or 0 for handle in found]


def read_edges(graph: int, handles: list[int]) -> list[Edge]:
    """A graph's edges, as places in the list of its nodes."""
    count = ctypes.c_size_t()
    library, pointer = driver(), ctypes.c_void_p(graph)
    ask = library.cuGraphGetEdges_v2  # the first version knows nothing of programmatic launches
    check_driver(ask(pointer, None, None, None, ctypes.byref(count)), "counting a graph's edges")
    begins, ends = ((ctypes.c_void_p * count.value)() for _ in range(2))
    data = (_EdgeData * count.value)()
    if count.value:
        status = ask(pointer, begins, ends, data, ctypes.byref(count))
        check_driver(status, "listing a graph's edges")
    place = {handle: i for i, handle in enumerate(handles)}
    return [(place[begin or 0], place[end or 0]) for begin, end in zip(begins, ends, strict=True)]


def read_node(handle: int) -> Node:
    """What the driver says of a node."""
    kind = ctypes.c_int()
    library, pointer = driver(), ctypes.c_void_p(handle)
    check_driver(
        library.cuGraphNodeGetType(pointer, ctypes.byref(kind)), "asking for a node's type"
    )
    name = KINDS.get(kind.value, f"type {kind.value}")
    reader = _READERS.get(name)
    return Node(handle, name) if reader is None else reader(handle, name)


def _read_kernel(handle: int, kind: str) -> Node:
    params = _KernelParams()
    library = driver()
    status = library.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(handle), ctypes.byref(params))
    check_driver(status, "asking for a kernel node's parameters")
    text = ctypes.c_char_p()
    if params.func:
        library.cuFuncGetName(ctypes.byref(text), ctypes.c_void_p(params.func))
    elif params.kern:
        library.cuKernelGetName(ctypes.byref(text), ctypes.c_void_p(params.kern))
    name = "a kernel without a name"
    if text.value:
        name = instrument("machine_code").demangle(text.value.decode())
    return Node(handle, kind, name, tuple(params.grid), tuple(params.block), params.shared_bytes)


def _read_memcpy(handle: int, kind: str) -> Node:
    params = _MemcpyParams()
    status = driver().cuGraphMemcpyNodeGetParams(ctypes.c_void_p(handle), ctypes.byref(params))
    if status != 0:  # one that CUDA keeps in a form of its own
        return Node(handle, kind)
    ends = [_MEMORY.get(end.memory_type, "memory") for end in (params.source, params.target)]
    moved = params.width_bytes * max(params.height, 1) * max(params.depth, 1)
    return Node(handle, kind, " to ".join(ends), num_bytes=moved)


def _read_memset(handle: int, kind: str) -> Node:
    params = _MemsetParams()
    status = driver().cuGraphMemsetNodeGetParams(ctypes.c_void_p(handle), ctypes.byref(params))
    if status != 0:
        return Node(handle, kind)
    written = params.element_bytes * params.width * max(params.height, 1)
    return Node(handle, kind, f"value {params.value}", num_bytes=written)


def _read_child(handle: int, kind: str) -> Node:
    graph = ctypes.c_void_p()
    status = driver().cuGraphChildGraphNodeGetGraph(ctypes.c_void_p(handle), ctypes.byref(graph))
    if status != 0 or graph.value is None:
        return Node(handle, kind)
    return Node(handle, kind, f"of {len(node_handles(graph.value))} nodes")


_READERS: dict[str, Callable[[int, str], Node]] = {
    "kernel": _read_kernel,
    "memcpy": _read_memcpy,
    "memset": _read_memset,
    "child graph": _read_child,
}
_MEMORY = {1: "host", 2: "device", 3: "array", 4: "memory"}  # CUmemorytype


# --- structures of cuda.h ------------------------------------------------------------------------


class _EdgeData(ctypes.Structure):  # CUgraphEdgeData
    _fields_ = (("bytes", ctypes.c_ubyte * 8),)


class _KernelParams(ctypes.Structure):  # CUDA_KERNEL_NODE_PARAMS_v2
    _fields_ = (
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("kernel_params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class _MemcpyEnd(ctypes.Structure):
    _fields_ = (
        ("x_bytes", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("z", ctypes.c_size_t),
        ("level", ctypes.c_size_t),
        ("memory_type", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("device", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class _MemcpyParams(ctypes.Structure):  # CUDA_MEMCPY3D
    _fields_ = (
        ("source", _MemcpyEnd),
        ("target", _MemcpyEnd),
        ("width_bytes", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    )


class _MemsetParams(ctypes.Structure):  # CUDA_MEMSET_NODE_PARAMS
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element_bytes", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )
