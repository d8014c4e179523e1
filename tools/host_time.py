"""Host time of eager forward calls: the figures of docs/plans.md.

    python tools/host_time.py RESULT.json

float32, 4096 elements, rows of 64; an input without and with `requires_grad`. The best of seven
batches of 100 calls, in microseconds, on a machine with a GPU. Seven rounds take a batch of every
call, so that all meet the same host. Python's garbage collector is off, as in `timeit`. Beside each
call is the one that its bar refers to, and what misses its bar is marked.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import diglot

BATCHES, CALLS, WARM_UP = 7, 100, 50
BACKENDS = ("cuda", "triton")
# By op and backend: how many microseconds above PyTorch a call may take, without and with an input
# that requires grad. The bar of gaussian_pdf is above the backend's own gelu.
FEW, ROWS, MANY = (
    {"cuda": (3, 8), "triton": (9, 14)},
    {"cuda": (4, 9), "triton": (12, 18)},
    {"cuda": (8, 14), "triton": (18, 26)},
)
BARS = {
    "add": FEW,
    "gelu": FEW,
    "gaussian_pdf": {"cuda": (2, 2), "triton": (2, 2)},
    "softmax": ROWS,
    "log_softmax": ROWS,
    "layer_norm": MANY,
    "rms_norm": MANY,
    "add_layer_norm": MANY,
    "add_rms_norm": MANY,
    "dropout": MANY,
}

Calls = dict[str, Callable[[], object]]


def host_us(calls: Calls) -> dict[str, float]:
    """The host's time of each call."""
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    best = dict.fromkeys(calls, float("inf"))
    gc.collect()
    gc.disable()
    for _ in range(BATCHES):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.perf_counter() - begin) / CALLS * 1e6)
    gc.enable()
    torch.cuda.synchronize()
    return best


def report(times: dict[str, float]) -> dict[str, dict[str, float]]:
    """Prints times, and what misses its bar; returns them by op."""
    missed = 0
    for op, bars in BARS.items():
        for grad, suffix in enumerate(("", "_grad")):
            for backend in BACKENDS:
                name = backend + suffix
                peer = f"gelu {name}" if op == "gaussian_pdf" else f"{op} torch{suffix}"
                excess = times[f"{op} {name}"] - times[peer] - bars[backend][grad]
                missed += excess > 0
                mark = f"  MISSED by {excess:.1f}" if excess > 0 else ""
                figures = f"{times[f'{op} {name}']:6.1f}, {peer} {times[peer]:5.1f}"
                print(f"{op:15s} {name:12s} {figures}{mark}")
    print(f"{missed} bars missed")
    return {
        op: {
            name.removeprefix(f"{op} "): round(us, 2)
            for name, us in times.items()
            if name.startswith(f"{op} ")
        }
        for op in BARS
    }


def main() -> None:
    x, y = torch.randn(2, 4096, device="cuda").unbind()
    rows, residual = torch.randn(2, 64, 64, device="cuda").unbind()
    w, b = torch.randn(2, 64, device="cuda").unbind()
    n = (64,)
    # By op: PyTorch's call, ours, and the input.
    ops = {
        "add": (lambda a: torch.add(a, y), lambda a, k: diglot.add(a, y, backend=k), x),
        "gelu": (F.gelu, lambda a, k: diglot.gelu(a, backend=k), x),
        "gaussian_pdf": (None, lambda a, k: diglot.gaussian_pdf(a, terms=22, backend=k), x),
        "softmax": (
            lambda a: torch.softmax(a, -1),
            lambda a, k: diglot.softmax(a, -1, backend=k),
            rows,
        ),
        "log_softmax": (
            lambda a: torch.log_softmax(a, -1),
            lambda a, k: diglot.log_softmax(a, -1, backend=k),
            rows,
        ),
        "layer_norm": (
            lambda a: F.layer_norm(a, n, w, b),
            lambda a, k: diglot.layer_norm(a, n, w, b, backend=k),
            rows,
        ),
        "rms_norm": (
            lambda a: F.rms_norm(a, n, w),
            lambda a, k: diglot.rms_norm(a, n, w, backend=k),
            rows,
        ),
        "add_layer_norm": (
            lambda a: F.layer_norm(a + residual, n, w, b),
            lambda a, k: diglot.add_layer_norm(a, residual, n, w, b, backend=k),
            rows,
        ),
        "add_rms_norm": (
            lambda a: F.rms_norm(a + residual, n, w),
            lambda a, k: diglot.add_rms_norm(a, residual, n, w, backend=k),
            rows,
        ),
        "dropout": (lambda a: F.dropout(a, 0.1), lambda a, k: diglot.dropout(a, 0.1, backend=k), x),
    }
    calls: Calls = {}
    for op, (torchs, ours, plain) in ops.items():
        for suffix, input in (("", plain), ("_grad", plain.clone().requires_grad_())):
            if torchs is not None:
                calls[f"{op} torch{suffix}"] = lambda f=torchs, a=input: f(a)
            for backend in BACKENDS:
                calls[f"{op} {backend}{suffix}"] = lambda f=ours, a=input, k=backend: f(a, k)
    result = report(host_us(calls))
    Path(sys.argv[1]).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
