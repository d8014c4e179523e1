"""A GPU that is simulated, in PyTorch's place: a queue, a cache, and the clocks of host and device.

Timed work takes exactly as long as it says, so that a timer is judged without a GPU.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from types import SimpleNamespace

from diglot.tools import measure

RECORD_US, REPLAY_US, LAUNCH_US = 0.5, 8.0, 2.0
BYTES_PER_US = 4e6  # of memory, beyond the cache


class SimulatedGpu:
    """Times in microseconds.

    Attributes:
        host_us: the host's clock.
        device_us: when the device ends all that was enqueued.
    """

    def __init__(self, l2_bytes=50 << 20):
        self.host_us = self.device_us = 0.0
        self.l2_bytes = l2_bytes
        self.cached = OrderedDict()  # bytes by name, the last used last
        self.graph = None

    def compute(self, us):
        """The host works for so long."""
        self.host_us += us

    def launch(self, us, uses=(), host_us=LAUNCH_US):
        """Enqueues a kernel, which reads or writes arrays: `uses`, bytes by name."""
        self.host_us += host_us
        if self.graph is not None:
            self.graph.append((us, dict(uses)))
        else:
            self._run(us, dict(uses))

    def _run(self, us, uses):
        missed = sum(size for name, size in uses.items() if self.cached.get(name, 0) < size)
        for name, size in uses.items():
            self.cached.pop(name, None)
            self.cached[name] = min(size, self.l2_bytes)
        while sum(self.cached.values()) > self.l2_bytes:
            self.cached.popitem(last=False)
        self.device_us = max(self.device_us, self.host_us) + us + missed / BYTES_PER_US

    def synchronize(self):
        self.host_us = max(self.host_us, self.device_us)

    def install(self, monkeypatch):
        """Has `diglot.tools.measure` see this GPU."""
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                gpu.host_us += RECORD_US
                self.us = gpu.device_us = max(gpu.device_us, gpu.host_us)

            def query(self):
                return self.us <= gpu.host_us

            def synchronize(self):
                gpu.host_us = max(gpu.host_us, self.us)

            def elapsed_time(self, end):
                return (end.us - self.us) / 1e3

        class Graph:
            def __init__(self):
                self.kernels = []

            def replay(self):
                gpu.host_us += REPLAY_US
                for us, uses in self.kernels:
                    gpu._run(us, uses)

        @contextlib.contextmanager
        def graph(of, capture_error_mode="global"):
            gpu.graph = of.kernels
            yield
            gpu.graph = None

        def empty(size, dtype, device):
            assert (dtype, device) == ("uint8", "cuda")
            return SimpleNamespace(zero_=lambda: gpu.launch(size / BYTES_PER_US, {"empty": size}))

        cuda = SimpleNamespace(
            Event=Event,
            CUDAGraph=Graph,
            graph=graph,
            synchronize=self.synchronize,
            current_device=lambda: 0,
            get_device_properties=lambda _: SimpleNamespace(L2_cache_size=self.l2_bytes),
            _sleep=lambda cycles: gpu.launch(cycles / 1e3),
        )
        monkeypatch.setattr(measure, "check", lambda: None)
        monkeypatch.setattr(
            measure, "torch", SimpleNamespace(cuda=cuda, empty=empty, uint8="uint8")
        )
        clock = SimpleNamespace(perf_counter=lambda: self.host_us * 1e-6)
        monkeypatch.setattr(measure, "time", clock)
