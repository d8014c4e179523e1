"""Host time of eager forward calls: the figures of docs/plans.md.

    python tools/host_time.py RESULT.json

float32, 4096 elements, rows of 64; an input without and with `requires_grad`. The best of seven
batches of 100 calls, in microseconds, on a machine with a GPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import diglot

BATCHES, CALLS, WARM_UP = 7, 100, 50


def host_us(call: Callable[[], object]) -> float:
    """The host's time of a call."""
    for _ in range(WARM_UP):
        call()
    best = float("inf")
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - begin) / CALLS * 1e6)
    torch.cuda.synchronize()
    return best


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
    result: dict[str, dict[str, float]] = {}
    for op, (torchs, ours, plain) in ops.items():
        times = result[op] = {}
        for suffix, input in (("", plain), ("_grad", plain.clone().requires_grad_())):
            if torchs is not None:
                times[f"torch{suffix}"] = host_us(lambda f=torchs, a=input: f(a))
            for backend in ("cuda", "triton"):
                call = lambda f=ours, a=input, k=backend: f(a, k)  # noqa: E731
                times[f"{backend}{suffix}"] = host_us(call)
        print(op, {name: round(us, 1) for name, us in times.items()}, flush=True)
    Path(sys.argv[1]).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
