"""Exact expected results, bit by bit; streams that do their work as late as events allow, in an odd
order.

A GPU may do the work of its streams in any order that their events leave open, and mostly does it
in the one that a test would want. These do it in a random one: a wait that is missing shows as
wrong results, without a GPU.
"""

import math
import random
import threading

import torch

from diglot.pipeline.runtime import HostRuntime


def assert_bits(result, expected):
    """Asserts that two tensors are the same, bit by bit."""
    assert (result.shape, result.dtype, result.device) == (
        expected.shape,
        expected.dtype,
        expected.device,
    )
    as_bytes = [t.contiguous().reshape(-1).view(torch.uint8) for t in (result, expected)]
    assert torch.equal(*as_bytes)


class LazyRuntime(HostRuntime):
    """Work is done when the host waits for it, or by chance before."""

    def __init__(self, slots, shares_compute, _, seed):
        super().__init__()
        self.lock = threading.RLock()
        self.random = random.Random(seed)
        self.shares_compute = shares_compute
        computing = [LazyStream(self) for _ in range(1 if shares_compute else slots)]
        self.loading, self.storing = LazyStream(self), LazyStream(self)
        self.computing = computing * (slots // len(computing))
        self.streams = [self.loading, self.storing, *computing]
        # Most of the time all are late, or all but one.
        self.eager = self.random.choice((None, self.loading, self.storing, self.computing[0]))

    def do_some(self):
        """Steps of streams that nothing holds back, a random number of them."""
        while self.eager is not None and self.eager.can_step():
            self.eager.step()
        for _ in range(self.random.choice((0,) * 20 + (1, 5))):
            able = [stream for stream in self.streams if stream.can_step()]
            if not able:
                return
            self.random.choice(able).step()

    def seconds(self, event):
        assert event.is_timed, "it keeps no time"
        return event.at if event.done else math.nan  # as of one that nobody waited for

    def close(self):
        for stream in self.streams:
            stream.synchronize()


class LazyStream:
    """A queue: functions, events to wait for, events to record."""

    def __init__(self, runtime):
        self.runtime, self.queue, self.ran = runtime, [], False

    def can_step(self):
        if not self.queue:
            return False
        kind, item = self.queue[0]
        return kind != "wait" or item.done

    def step(self):
        kind, item = self.queue.pop(0)
        if kind == "run":
            item()
        elif kind == "record":
            item.happen()

    def add(self, kind, item):
        with self.runtime.lock:
            self.queue.append((kind, item))
            self.runtime.do_some()

    def wait(self, event):
        self.add("wait", event)

    def copy(self, to, source):
        pairs = list(zip(to, source, strict=True))
        self.add("run", lambda: [target.copy_(origin) for target, origin in pairs])

    def run(self, function):
        """Runs later, since nobody needs the result. Only the first call runs at once: it says what
        results are like.
        """
        if not self.ran or not self.runtime.shares_compute:
            self.ran = True
            self.synchronize()
            return function()
        self.add("run", function)
        return ()

    def fetch(self, tensors):
        return tuple(tensor.clone() for tensor in tensors)

    def record(self, is_timed=False):
        event = LazyEvent(self, is_timed)
        self.add("record", event)
        return event

    def synchronize(self):
        self.record().synchronize()


class LazyEvent:
    def __init__(self, stream, is_timed):
        self.stream, self.is_timed = stream, is_timed
        self.done, self.at = False, None

    def happen(self):
        self.done, self.at = True, self.stream.runtime.now()

    def query(self):
        return self.done

    def synchronize(self):
        """Does just what this event needs."""
        with self.stream.runtime.lock:
            while not self.done:
                kind, item = self.stream.queue[0]
                if kind == "wait" and not item.done:
                    item.synchronize()
                else:
                    self.stream.step()
