"""Memory that graphs share, because no two of them run at the same time."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from diglot.graphs.device import find_device
from diglot.graphs.errors import GraphError

if TYPE_CHECKING:
    from diglot.graphs.captured import CapturedGraph
    from diglot.graphs.inputs import StaticInputs

# PyTorch's allocator and CUDA's capture are one for all threads: one capture at a time.
_capture_lock = threading.RLock()


class Pool:
    """Memory for the intermediate results and the outputs of graphs.

    Each graph writes over what another has left there. So replays of a pool's graphs run one after
    the other, whatever streams they are enqueued on: a stream waits for the one before it.

    Args:
        device: a GPU; the current one by default.
        limit: the most bytes that the pool may reserve. Where a capture exceeds it, the pool is
            built again with that graph alone. The others are captured again when they are called.
    """

    def __init__(
        self, device: torch.device | str | None = None, *, limit: int | None = None
    ) -> None:
        where = torch.device("cuda" if device is None else device)
        self.device = find_device(where)
        self.limit = limit
        self.lock = threading.RLock()
        self.rebuilds = 0
        self.is_released = False
        self.last_forward: object = None  # whose values a backward pass may still need
        self._handle: Any = None
        self._graphs: weakref.WeakSet[CapturedGraph] = weakref.WeakSet()
        self._stream_handle: int | None = None
        self._stream: Any = None

    @property
    def handle(self) -> Any:
        """The device's pool, made when it is first needed."""
        self.check()
        if self._handle is None:
            self._handle = self.device.new_pool()
        return self._handle

    @property
    def bytes(self) -> int:
        """The bytes that it reserves now."""
        with self.lock:
            return 0 if self._handle is None else self.device.pool_bytes(self._handle)

    @property
    def graphs(self) -> list[CapturedGraph]:
        """Those that are in it, in the order of their captures."""
        with self.lock:
            alive = [graph for graph in self._graphs if graph.is_alive]
        return sorted(alive, key=lambda graph: graph.number)

    def check(self) -> None:
        """Raises GraphError if the pool was released."""
        if self.is_released:
            raise GraphError("the graph's pool was released: capture anew, in another pool")

    def order(self, stream: int, inputs: StaticInputs | None = None) -> None:
        """Has the current stream wait for the pool's last replay. The lock is held.

        Args:
            stream: the current stream's handle.
            inputs: the memory that the next replay reads.
        """
        if inputs is not None and stream not in inputs.stream_handles:
            self.device.record_use(inputs.buffer)
            inputs.stream_handles.add(stream)
        if stream != self._stream_handle:
            if self._stream is not None:
                self.device.wait_for(self._stream)
            self._stream_handle, self._stream = stream, self.device.current_stream()

    def add(self, graph: CapturedGraph) -> None:
        """Takes a graph that was captured into the pool. The capture has waited for all streams."""
        self._graphs.add(graph)
        self._stream_handle = self._stream = None

    def is_over_limit(self) -> bool:
        """Whether more is reserved than the limit allows."""
        return self.limit is not None and self.bytes > self.limit

    def rebuild(self) -> None:
        """Drops all graphs, and with them the memory, once no result of theirs is used any more."""
        with self.lock:
            for graph in self.graphs:
                graph.drop()
            self._handle = None
            self.rebuilds += 1
            self.device.synchronize()
            self.device.trim()

    def release(self) -> None:
        """Drops all graphs for good: a call of one is an error from now on."""
        with self.lock:
            self.rebuild()
            self.is_released = True


@contextlib.contextmanager
def capturing(pool: Pool) -> Iterator[None]:
    """Context manager: this thread may capture into a pool. Other threads' captures wait.

    A thread that holds a pool's lock alone must not ask for this: two would wait for each other.
    """
    with _capture_lock, pool.lock:
        yield
