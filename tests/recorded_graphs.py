"""A device without a GPU on which graphs can be captured: it records operators, and replays them.

A capture runs the function, and notes every operator with its arguments. Tensors that the function
changes are then set back: a capture computes nothing. A replay runs the operators again, in the
same memory. What Python did in between is not done again, and an operator that gives Python a value
is an error, as on a GPU.
"""

from __future__ import annotations

import contextlib
import threading
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from diglot.graphs import device
from diglot.graphs.device import Capture
from diglot.graphs.nodes import Node

SIDE_STREAM = 7
VALUES = ("aten._local_scalar_dense", "aten.item", "aten.nonzero", "aten.is_nonzero")

# Arguments that are written, which schemas do not say.
UNDECLARED = {("aten.native_batch_norm.default", f"running_{what}") for what in ("mean", "var")}


class RecordedGraph:
    """Operators, with the arguments that they had and the results that they have in each replay."""

    def __init__(self):
        self.calls = []
        self.replays = 0
        self.is_inference = torch.is_inference_mode_enabled()

    def replay(self):
        self.replays += 1
        with torch.no_grad(), torch.inference_mode(self.is_inference), _disable_current_modes():
            for function, args, kwargs, results in self.calls:
                again = function(*args, **kwargs)
                for old, new in zip(results, tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and not shares(old, new):
                        torch.Tensor.copy_(old, new)


def shares(one, other):
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class Recording(TorchDispatchMode):
    """Notes operators, and what tensors that it did not make held before it changed them."""

    def __init__(self, device):
        super().__init__()
        self.device, self.graph = device, RecordedGraph()
        self.thread = threading.get_ident()  # as a stream: other threads are captured nowhere
        self.made, self.before, self.num_bytes = set(), {}, 0
        self.asked = None  # how often it was asked for nodes during the operator that runs

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(function)
        if name.startswith(VALUES):
            raise RuntimeError(f"{name}: operation not permitted when stream is capturing")
        if self.device.fails_at == name:
            raise torch.OutOfMemoryError(f"{name}: out of memory")
        self._keep(function, args, kwargs)
        # As CUDA's: a graph has memory, and knows nothing of tensors.
        plain = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, (args, kwargs))
        results = []
        self.graph.calls.append((function, *plain, results))
        self.asked = 0
        result = function(*args, **kwargs)
        self.asked = None
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        for tensor in tensors:
            if tensor.untyped_storage().data_ptr() not in known:
                self.made.add(tensor.untyped_storage().data_ptr())
                self.num_bytes += tensor.untyped_storage().nbytes()
        results += [r.detach() if isinstance(r, torch.Tensor) else r for r in tree_leaves(result)]
        return result

    def _keep(self, function, args, kwargs):
        name, arguments = str(function), function._schema.arguments
        given = {**dict(zip([a.name for a in arguments], args, strict=False)), **kwargs}
        for argument in arguments:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if not is_written and (name, argument.name) not in UNDECLARED:
                continue
            for tensor in tree_leaves(given.get(argument.name)):
                if isinstance(tensor, torch.Tensor):
                    address = tensor.untyped_storage().data_ptr()
                    if address not in self.made and address not in self.before:
                        storage = tensor.untyped_storage()
                        self.before[address] = (storage, storage.clone())

    def restore(self):
        for storage, before in self.before.values():
            storage.copy_(before)


def install(monkeypatch):
    """Has graphs of tensors on the CPU captured by a recorded device, which is returned."""
    recorded = RecordedDevice()
    monkeypatch.setitem(device.MAKERS, "cpu", lambda where: recorded)
    return recorded


class RecordedPool:
    def __init__(self):
        self.needs = []


class RecordedDevice:
    """In a GPU's place, the CPU; its streams are numbers.

    Attributes:
        stream: the thread's current one.
        waits: pairs of streams: the first was made to wait for the second.
        uses: pairs of a stream and the address of memory that it uses.
        fails_at: the operator that finds no memory in a capture.
        captures: how many were begun.
        elapsed: what `elapsed_ms` says a call took; by default the host's clock says it.
    """

    def __init__(self):
        self.device = torch.device("cpu")
        self.streams = threading.local()
        self.waits, self.uses = [], []
        self.fails_at = None
        self.captures = 0
        self.recording = None
        self.elapsed = None
        self.trims = 0

    @property
    def stream(self):
        return getattr(self.streams, "current", 1)

    @stream.setter
    def stream(self, number):
        self.streams.current = number

    def new_pool(self):
        return RecordedPool()

    def pool_bytes(self, pool):
        return max(pool.needs, default=0)

    def capture(self, function, pool):
        assert self.recording is None
        self.captures += 1
        recording = self.recording = Recording(self)
        state = torch.get_rng_state()
        try:
            with recording:
                result = function()
        finally:
            self.recording = None
            recording.restore()
            torch.set_rng_state(state)
        pool.needs.append(recording.num_bytes)
        return Capture(recording.graph, result, recording.num_bytes)

    def captured_nodes(self):
        if not self.is_capturing():
            return []
        count = len(self.recording.graph.calls)
        if self.recording.asked is not None:  # a launcher runs: it is asked before it, and after it
            count -= self.recording.asked == 0
            self.recording.asked += 1
        return list(range(count))

    def nodes_of(self, graph):
        names = [str(function) for function, *_ in graph.calls]
        nodes = [Node(i, "kernel", name) for i, name in enumerate(names)]
        return nodes, [(i, i + 1) for i in range(len(nodes) - 1)]

    @contextlib.contextmanager
    def side_stream(self):
        before, self.stream = self.stream, SIDE_STREAM
        try:
            yield
        finally:
            self.stream = before

    def is_capturing(self):
        return self.recording is not None and self.recording.thread == threading.get_ident()

    def stream_handle(self):
        return self.stream

    def free_stream(self):
        return None if self.is_capturing() else self.stream

    def current_stream(self):
        return self.stream

    def wait_for(self, stream):
        self.waits.append((self.stream, stream))

    def record_use(self, tensor):
        self.uses.append((self.stream, tensor.data_ptr()))

    def unowned(self, tensor, owner):
        alias = torch.empty(0, dtype=tensor.dtype)
        storage, offset = tensor.untyped_storage(), tensor.storage_offset()
        return alias.set_(storage, offset, tensor.size(), tensor.stride())

    def random_state(self):
        return torch.get_rng_state()

    def set_random_state(self, state):
        torch.set_rng_state(state)

    def elapsed_ms(self, function):
        began = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - began) if self.elapsed is None else self.elapsed

    def synchronize(self):
        pass

    def trim(self):
        self.trims += 1
