"""What graphs ask of a device: the one module that calls PyTorch's CUDA graphs.

Everything else in this room works with any `Device`: tests have one that records operators on the
CPU and replays them.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from diglot.backends.capture import is_captured, own_stream
from diglot.backends.driver import replace_broken_capture
from diglot.backends.scratch import current_capture
from diglot.graphs.errors import GraphError
from diglot.graphs.nodes import Edge, Node, node_handles, read_edges, read_node
from diglot.graphs.watch import library


class Graph(Protocol):
    """What a capture makes."""

    def replay(self) -> None:
        """Enqueues all of it on the current stream."""


class Capture(NamedTuple):
    """A graph that was just captured.

    Attributes:
        graph: it.
        result: what the function returned: tensors in the pool's memory, not computed yet.
        needed_bytes: the most that the function had allocated at once.
    """

    graph: Graph
    result: Any
    needed_bytes: int


class Device(Protocol):
    """A device on which graphs are captured and replayed."""

    device: torch.device

    def new_pool(self) -> Any:
        """Memory that several captures may share."""

    def pool_bytes(self, pool: Any) -> int:
        """What a pool has reserved."""

    def capture(self, function: Callable[[], Any], pool: Any) -> Capture:
        """Captures what a function enqueues. If it raises, the device is as it was before."""

    def captured_nodes(self) -> list[int]:
        """Handles of the nodes that the current stream's capture has so far."""

    def nodes_of(self, graph: Any) -> tuple[list[Node], list[Edge]]:
        """A graph's nodes and edges."""

    def side_stream(self) -> AbstractContextManager[None]:
        """Context manager: work goes to the stream of captures, after all earlier work."""

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured."""

    def stream_handle(self) -> int:
        """The current stream's."""

    def free_stream(self) -> int | None:
        """The current stream's handle; None while it is captured."""

    def current_stream(self) -> Any:
        """The current stream."""

    def wait_for(self, stream: Any) -> None:
        """Has the current stream wait for all that is enqueued on another."""

    def record_use(self, tensor: Tensor) -> None:
        """Says that the current stream uses a tensor, so that its memory is not freed too early."""

    def unowned(self, tensor: Tensor, owner: Any) -> Tensor:
        """The same memory, in a tensor that keeps `owner` alive instead of the memory."""

    def random_state(self) -> Tensor:
        """That of the default generator."""

    def set_random_state(self, state: Tensor) -> None:
        """Sets that of the default generator."""

    def elapsed_ms(self, function: Callable[[], Any]) -> float:
        """Calls a function, and waits; how long the device took."""

    def synchronize(self) -> None:
        """Waits for the device."""

    def trim(self) -> None:
        """Gives memory that nothing uses back, so that a new pool may have it."""


class _CudaPool:
    """A pool of PyTorch's allocator.

    The allocator takes no more captures into a pool that has no graph left: the anchor is one.
    """

    def __init__(self, device: CudaDevice) -> None:
        self.id = torch.cuda.graph_pool_handle()
        self.anchor = torch.cuda.CUDAGraph()
        with device.on_stream():
            number = torch.zeros((), device=device.device)
            self.anchor.capture_begin(pool=self.id, capture_error_mode="thread_local")
            number.zero_()
            self.anchor.capture_end()
        self._number = number  # the anchor has its address


class _Memory:
    """A range of device memory, in the form that `torch.as_tensor` takes it."""

    def __init__(self, address: int, num_bytes: int, owner: Any) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (num_bytes,),
            "typestr": "|u1",
            "version": 2,
        }


class CudaDevice:
    """A GPU.

    Args:
        device: which.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._index = device.index
        module = library()
        self._free_stream = _free_stream if module is None else module.free_stream

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """Context manager: the stream of captures is the current one, and waits for nothing."""
        stream = own_stream(self.device, "captures")
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            yield

    @contextlib.contextmanager
    def side_stream(self) -> Iterator[None]:
        """Context manager: work goes to the stream of captures, after all earlier work."""
        outside = torch.cuda.current_stream(self.device)
        with self.on_stream():
            torch.cuda.current_stream().wait_stream(outside)
            yield
            outside.wait_stream(torch.cuda.current_stream())

    def new_pool(self) -> _CudaPool:
        """Memory that several captures may share."""
        return _CudaPool(self)

    def pool_bytes(self, pool: _CudaPool) -> int:
        """What a pool has reserved."""
        segments = torch.cuda.memory_snapshot()
        return sum(
            segment["total_size"]
            for segment in segments
            if tuple(segment.get("segment_pool_id", ())) == tuple(pool.id)
        )

    def capture(self, function: Callable[[], Any], pool: _CudaPool) -> Capture:
        """Captures what a function enqueues. If it raises, the device is as it was before.

        PyTorch's peak statistics of memory begin again.
        """
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # as torch.cuda.graph does: the pool can use none of it
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        with self.on_stream():
            graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")
            try:
                result = function()
                graph.capture_end()
            except BaseException:
                self._end_broken(graph)
                raise
            graph.instantiate()
        needed = torch.cuda.max_memory_allocated(self.device) - before
        return Capture(graph, result, needed)

    def _end_broken(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture that is thrown away.

        PyTorch 2.11 does not tell its allocators and the generator of a capture that cannot end.
        The pool then takes no other. So an empty capture takes its place, and ends.
        """
        replace_broken_capture(self.stream_handle())
        # A newer PyTorch has told all at its first attempt. It raises here.
        with contextlib.suppress(RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of the empty graph.
            graph.capture_end()
        graph.reset()
        # The generator hears of it when another capture ends.
        _CudaPool(self)

    def captured_nodes(self) -> list[int]:
        """Handles of the nodes that the current stream's capture has so far."""
        return node_handles(current_capture(self._index)[1]) if self.is_capturing() else []

    def nodes_of(self, graph: torch.cuda.CUDAGraph) -> tuple[list[Node], list[Edge]]:
        """A graph's nodes and edges."""
        handle = graph.raw_cuda_graph()
        handles = node_handles(handle)
        return [read_node(each) for each in handles], read_edges(handle, handles)

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured."""
        return is_captured(self.device)

    def stream_handle(self) -> int:
        """The current stream's."""
        return torch._C._cuda_getCurrentRawStream(self._index)

    def free_stream(self) -> int | None:
        """The current stream's handle; None while it is captured."""
        return self._free_stream(self._index)

    def current_stream(self) -> torch.cuda.Stream:
        """The current stream."""
        return torch.cuda.current_stream(self.device)

    def wait_for(self, stream: torch.cuda.Stream) -> None:
        """Has the current stream wait for all that is enqueued on another."""
        torch.cuda.current_stream(self.device).wait_stream(stream)

    def record_use(self, tensor: Tensor) -> None:
        """Says that the current stream uses a tensor, so that its memory is not freed too early."""
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def unowned(self, tensor: Tensor, owner: Any) -> Tensor:
        """The same memory, in a tensor that keeps `owner` alive instead of the memory."""
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return tensor
        memory = _Memory(storage.data_ptr(), storage.nbytes(), owner)
        whole = torch.as_tensor(memory, device=self.device).untyped_storage()
        alias = torch.empty(0, dtype=tensor.dtype, device=self.device)
        return alias.set_(whole, tensor.storage_offset(), tensor.size(), tensor.stride())

    def random_state(self) -> Tensor:
        """That of the default generator."""
        return torch.cuda.get_rng_state(self.device)

    def set_random_state(self, state: Tensor) -> None:
        """Sets that of the default generator."""
        torch.cuda.set_rng_state(state, self.device)

    def elapsed_ms(self, function: Callable[[], Any]) -> float:
        """Calls a function, and waits; how long the device took."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def synchronize(self) -> None:
        """Waits for the device."""
        torch.cuda.synchronize(self.device)

    def trim(self) -> None:
        """Gives memory that nothing uses back, so that a new pool may have it."""
        torch.cuda.empty_cache()


def _free_stream(index: int) -> int | None:
    """The handle of a device's current stream; None while it is captured."""
    if is_captured(torch.device("cuda", index)):
        return None
    return torch._C._cuda_getCurrentRawStream(index)


MAKERS: dict[str, Callable[[torch.device], Device]] = {"cuda": functools.cache(CudaDevice)}


def find_device(device: torch.device) -> Device:
    """The device on which tensors are.

    Raises:
        GraphError: it has no graphs.
    """
    if device.type not in MAKERS:
        raise GraphError(f"CUDA graphs need tensors on a GPU, and these are on {device}")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return MAKERS[device.type](device)
