"""A benchmark on the CPU, and instruments that need no GPU."""

from __future__ import annotations

import itertools

import torch

from diglot.bench.harness import Bar, Benchmark, Case, normal, share_of_copy
from diglot.bench.instruments import TIMERS, Instruments
from diglot.reference.specs import Expected, nbytes
from diglot.tools.measure import Timing

FP32 = torch.float32


def times(**us):
    """A timer that calls everything thrice, and gives these times in place of its own."""

    def timer(calls, prepare):
        for name in calls:
            for _ in range(3):
                if prepare is not None:
                    prepare()
                calls[name]()
        found = {name: us.get(name.replace(".", "_"), 10.0) for name in calls}
        return {name: Timing(t, 0.99 * t, 1.01 * t, 20) for name, t in found.items()}

    return timer


def instruments(timer=None, **others):
    """Those of a GPU's that need one replaced; by keyword, others."""
    replaced = {
        "check": lambda: None,
        "timers": dict.fromkeys(TIMERS, timer or times()),
        "copy": lambda moved, dtype: lambda: None,
        "product": lambda dtype: (lambda: None, 10**12),
        "host_us": lambda call, device_us: 5.0,
        "peak_bytes": lambda call: 64,
        "launches": lambda call: 1,
        "ends_in_stream": lambda call: True,
        "synchronize": lambda: None,
        "release": lambda: None,
    }
    return Instruments(**(replaced | others))


def double(x):
    return 2 * x


def toy(**changes):
    """An op that doubles, with PyTorch's way and ours."""
    made = Benchmark(
        **{
            "op": "toy",
            "cases": [Case("forward", FP32, (8, 4)), Case("backward", FP32, (8, 4))],
            "inputs": lambda case: normal([case.shape], case.dtype),
            "expected": lambda case, tensors: Expected(
                lambda x: 2 * x.double(), tensors, {}, case.dtype
            ),
            "bytes_moved": lambda case, tensors: 2 * nbytes(tensors[0]),
            "bars": [
                Bar("share of the copy ceiling", lambda row: True, share_of_copy, lambda row: 0.9)
            ],
            "shape": lambda elements: (elements // 4, 4),
            "takes": lambda case: len(case.shape) == 2,
        }
        | changes
    )
    for name in ("cuda", "triton", "torch"):
        made.way(name, {"forward": double, "backward": double})
    return made


def failing_after(calls):
    """A function that doubles `calls` times, and then raises."""
    counter = itertools.count()

    def function(x):
        if next(counter) >= calls:
            raise OSError("\x1b[91mthe peer\x1b[0m is gone\nand says more")
        return 2 * x

    return function
