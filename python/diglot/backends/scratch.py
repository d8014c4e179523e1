"""Scratch memory of launches: who owns it, and for how long.

- A call's scratch belongs to the call: PyTorch's allocator has it back afterwards.
- A stream's scratch belongs to the stream: launches on one stream run one after the other, so they
  share one buffer, which grows to the largest need. Launches that find other numbers of zeroed
  bytes, and leave them so, share another. `release_streams` frees them. The buffer of a thread's
  own stream (cudaStreamPerThread) goes to another thread after its thread has ended.
- A captured launch's scratch belongs to the CUDA graph: it lives until the graph, and every
  executable made from it, is destroyed, and is then given to other captures. `keep_with_capture`
  keeps other objects as long.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch

from diglot.backends.capture import beside_captures, is_captured, ordinary_tensors
from diglot.backends.driver import (
    CAPTURE_ACTIVE,
    check_driver,
    driver,
    relaxed_capture,
    stream_number,
)
from diglot.backends.forks import renew_in_children
from diglot.backends.plans import CALL, Scratch

PER_THREAD_STREAM = 2  # cudaStreamPerThread: each thread's own, though of one handle
SMALLEST = 1 << 17  # bytes of a buffer that is kept: most needs fit, so that it seldom grows
MOVE_OWNERSHIP = 1  # CU_GRAPH_USER_OBJECT_MOVE
NO_DESTRUCTOR_SYNC = 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC


# The device of a buffer that is kept, and how many of its first bytes are zeroed.
_Place = tuple[int, int]


class _ThreadBuffers(dict[_Place, torch.Tensor]):
    """The buffers of one thread's own streams."""

    def __del__(self) -> None:
        for place, buffer in self.items():
            _retire(place, buffer)


class _ThreadStreams(threading.local):
    def __init__(self) -> None:
        self.buffers = _ThreadBuffers()


class _Retired(NamedTuple):
    """A buffer of a thread that has ended. It is free after the event; None: never."""

    buffer: torch.Tensor
    event: torch.cuda.Event | None


# By place and handle: a stream's number, which shows whether the handle now belongs to another
# stream.
_streams: dict[tuple[_Place, int], tuple[int, torch.Tensor]] = {}
_thread_streams = _ThreadStreams()
atexit.register(_thread_streams.buffers.clear)  # the main thread's have no use when Python ends
_retired: dict[_Place, list[_Retired]] = {}
# By stream and key: values that launches on the stream use again.
_values: OrderedDict[tuple[tuple[torch.device, int], Any], Any] = OrderedDict()
MOST_VALUES = 64
_lock = threading.RLock()  # its holder may free objects, and so a thread's buffers
renew_in_children(globals(), "_lock", threading.RLock)


def provide(need: Scratch, device: torch.device) -> torch.Tensor:
    """Memory for one launch on the device's current stream.

    Returns:
        uint8 [bytes or more].
    """
    if need.lifetime == CALL:
        if need.zeroed:
            return _with_zeros(need.bytes, need.zeroed, device)
        return torch.empty(need.bytes, dtype=torch.uint8, device=device)
    if device.type != "cuda":  # threads of the CPU may interpret kernels at once
        return _with_zeros(need.bytes, need.zeroed, device)
    index = torch.cuda.current_device() if device.index is None else device.index
    place = index, need.zeroed
    return (_of_capture if is_captured(device) else _of_stream)(need.bytes, place)


def _with_zeros(bytes: int, zeroed: int, device: torch.device) -> torch.Tensor:
    scratch = torch.empty(bytes, dtype=torch.uint8, device=device)
    scratch[:zeroed].zero_()
    return scratch


def _rounded(bytes: int) -> int:
    return max(SMALLEST, 1 << (bytes - 1).bit_length())


def _of_stream(bytes: int, place: _Place) -> torch.Tensor:
    handle = torch._C._cuda_getCurrentRawStream(place[0])
    if handle == PER_THREAD_STREAM:
        return _of_thread(bytes, place)
    number = stream_number(place[0])
    scratch = _kept(place, handle, number, bytes)
    if scratch is None:
        # Made on the stream that uses it. So the zeros are there before the first launch, and a
        # smaller buffer is not reused before the launches that use it have ended.
        made = _make(bytes, place)
        with _lock:
            scratch = _kept(place, handle, number, bytes)
            if scratch is None:
                scratch = made
                _streams[place, handle] = number, made
    return scratch


def _kept(place: _Place, handle: int, number: int, bytes: int) -> torch.Tensor | None:
    known, scratch = _streams.get((place, handle), (None, None))
    return scratch if scratch is not None and known == number and scratch.numel() >= bytes else None


def _of_thread(bytes: int, place: _Place) -> torch.Tensor:
    buffers = _thread_streams.buffers
    scratch = buffers.get(place)
    if scratch is None or scratch.numel() < bytes:
        if scratch is not None:
            _retire(place, scratch)
        scratch = _take_retired(bytes, place)
        if scratch is None:
            scratch = _make(bytes, place)
        buffers[place] = scratch
    return scratch


def keep_with_stream(device: torch.device, key: Any, value: Any) -> Any:
    """Keeps a value for later launches on the current stream, and returns it.

    It keeps the `MOST_VALUES` values that all streams together used last.
    """
    with _lock:
        _values[_stream_of(device), key] = value
        if len(_values) > MOST_VALUES:
            _values.popitem(last=False)
    return value


def kept_with_stream(device: torch.device, key: Any) -> Any:
    """The value that `keep_with_stream` keeps, or None."""
    place = (_stream_of(device), key)
    with _lock:
        value = _values.get(place)
        if value is not None:
            _values.move_to_end(place)
    return value


def _stream_of(device: torch.device) -> tuple[torch.device, int]:
    """The current stream's number, not its handle, which CUDA may give to another stream."""
    return device, stream_number(device.index) if device.type == "cuda" else 0


def _make(bytes: int, place: _Place) -> torch.Tensor:
    index, zeroed = place
    with ordinary_tensors():
        return _with_zeros(_rounded(bytes), zeroed, torch.device("cuda", index))


def _retire(place: _Place, buffer: torch.Tensor) -> None:
    """Keeps a buffer of this thread's own stream until the launches that use it have ended.

    PyTorch's allocator would give it to another thread's stream of the same handle at once.
    """
    event = None
    try:
        with relaxed_capture():
            event = torch.cuda.Event()
            event.record(torch.cuda.ExternalStream(PER_THREAD_STREAM, place[0]))
    except RuntimeError:  # CUDA is gone, as in a child process, so nothing uses the buffer again
        event = None
    with _lock:
        _retired.setdefault(place, []).append(_Retired(buffer, event))


def _take_retired(bytes: int, place: _Place) -> torch.Tensor | None:
    with _lock, relaxed_capture():
        retired = _retired.get(place, [])
        for i, (buffer, event) in enumerate(retired):
            if buffer.numel() >= bytes and event is not None and event.query():
                del retired[i]
                return buffer
    return None


def release_streams() -> None:
    """Frees the scratch of streams and of destroyed graphs.

    No launch that uses it may still run.
    """
    with _lock:
        _reclaim()
        for kept in (_streams, _values, _retired, _spare, _thread_streams.buffers):
            kept.clear()


# --- what a graph owns ---------------------------------------------------------------------------


class _Graph:
    """Memory and objects that belong to a graph, from its capture on.

    CUDA calls sem_post when the graph and every executable made from it are destroyed. That is a
    function of the C library, because the destroying thread may hold Python's lock.
    """

    def __init__(self, index: int, graph: int) -> None:
        self.index = index
        # By place, and the captured stream's handle.
        self.buffers: dict[tuple[_Place, int], torch.Tensor] = {}
        self.kept: dict[Any, Any] = {}
        # A graph may outlive this module when Python ends: the semaphore is not Python's to free.
        self._semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._semaphore))
        library = _c_library()
        if library.sem_init(self._semaphore, 0, 0) != 0:
            raise RuntimeError("sem_init failed")
        owner = ctypes.c_void_p()
        post = ctypes.cast(library.sem_post, ctypes.c_void_p)
        check_driver(
            driver().cuUserObjectCreate(
                ctypes.byref(owner), self._semaphore, post, 1, NO_DESTRUCTOR_SYNC
            ),
            "making a graph's user object",
        )
        check_driver(
            driver().cuGraphRetainUserObject(ctypes.c_void_p(graph), owner, 1, MOVE_OWNERSHIP),
            "giving a graph its user object",
        )

    def is_destroyed(self) -> bool:
        value = ctypes.c_int()
        _c_library().sem_getvalue(self._semaphore, ctypes.byref(value))
        return value.value > 0

    def forget(self) -> None:
        """Frees the semaphore of a graph that is gone."""
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._semaphore))


_SEMAPHORE_BYTES = 64  # more than any C library's sem_t has
_graphs: dict[tuple[int, int], _Graph] = {}  # by device and the capture's number
_spare: dict[_Place, list[torch.Tensor]] = {}  # buffers of graphs that are gone


@functools.cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def current_capture(index: int) -> tuple[int, int]:
    """The number and the graph of the current stream's capture."""
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    check_driver(
        driver().cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(index)),
            ctypes.byref(status),
            ctypes.byref(number),
            ctypes.byref(graph),
            None,
            None,
        ),
        "asking for a stream's capture",
    )
    if status.value != CAPTURE_ACTIVE or graph.value is None:
        raise RuntimeError("the stream's capture is not active")
    return number.value, graph.value


def _graph_of(index: int) -> _Graph:
    """The record of the graph that captures the current stream. The caller holds the lock."""
    number, graph = current_capture(index)
    owner = _graphs.get((index, number))
    if owner is None:
        owner = _graphs[index, number] = _Graph(index, graph)
    return owner


def _reclaim() -> None:
    """Takes back the memory of destroyed graphs. The caller holds the lock."""
    for key, owner in list(_graphs.items()):
        if owner.is_destroyed():
            for (place, _), buffer in owner.buffers.items():
                _spare.setdefault(place, []).append(buffer)
            owner.forget()
            del _graphs[key]


def _of_capture(bytes: int, place: _Place) -> torch.Tensor:
    # Launches captured on one stream run one after the other, in each replay too: a buffer for each
    # stream of a capture. Zeroing it in the graph would take a node of its own before each launch.
    with _lock:
        _reclaim()
        owner, device = _graph_of(place[0]), torch.device("cuda", place[0])
        key = place, torch._C._cuda_getCurrentRawStream(place[0])
        scratch = owner.buffers.get(key)
        if scratch is not None and scratch.numel() >= bytes:
            return scratch
        spare = _spare.get(place, [])
        sizes = [(each.numel(), i) for i, each in enumerate(spare) if each.numel() >= bytes]
        if sizes:  # the smallest that is large enough
            made = spare.pop(min(sizes)[1])
        else:
            with beside_captures(device):
                made = _make(bytes, place)
        if scratch is not None:  # launches captured before have its address
            owner.kept[len(owner.kept), "outgrown"] = scratch
        owner.buffers[key] = made
        return made


def keep_with_capture(device: torch.device, key: Any, value: Any) -> Any:
    """Keeps a value as long as the graph that is being captured, and returns it.

    If the graph already has a value of that key, it returns that one.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    with _lock:
        _reclaim()
        return _graph_of(index).kept.setdefault(key, value)


def kept_with_capture(device: torch.device, key: Any) -> Any:
    """The value that `keep_with_capture` keeps with the graph that is being captured, or None."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with _lock:
        owner = _graphs.get((index, current_capture(index)[0]))
        return None if owner is None else owner.kept.get(key)


def held_bytes(device: torch.device | int | None = None) -> dict[str, int]:
    """How much scratch is held on a device, or on all: by "streams", "graphs", "spare".

    Of threads' own streams, only the calling thread's count.
    """
    wanted = device.index if isinstance(device, torch.device) else device

    def total(buffers: Any) -> int:
        return sum(tensor.numel() for tensor in buffers)

    def counts(index: int) -> bool:
        return wanted is None or wanted == index

    with _lock:
        _reclaim()
        return {
            "streams": total(t for ((i, _), _), (_, t) in _streams.items() if counts(i))
            + total(t for (i, _), t in _thread_streams.buffers.items() if counts(i))
            + total(
                tensor
                for ((place, _), _), value in _values.items()
                if place.type == "cuda" and counts(place.index)
                for tensor in _tensors([value])
            ),
            "graphs": total(
                tensor
                for owner in _graphs.values()
                if counts(owner.index)
                for tensor in (*owner.buffers.values(), *_tensors(owner.kept.values()))
            ),
            "spare": total(t for (i, _), each in _spare.items() if counts(i) for t in each)
            + total(t for (i, _), each in _retired.items() if counts(i) for t, _ in each),
        }


def _tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among values, and in tuples of them."""
    found = []
    for value in values:
        parts = value if isinstance(value, tuple) else (value,)
        found += [part for part in parts if isinstance(part, torch.Tensor)]
    return found
