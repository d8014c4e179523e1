"""A run of its own of test_new_results.py, before whose madvise stands another one, madvise.c.

    LD_PRELOAD=madvise.so python new_results.py ENGINE:VARIABLE=VALUE ...

Each argument runs in a child, which begins with PyTorch imported. The child prints what the program
asked of the system, and which threads did. It prints where three results are: a new one, a small
one, and an `out`.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

import diglot
from diglot.pipeline import copier, pages

ROWS, COLUMNS, CHUNK_ROWS = 96, 4096, 16
THREADS = 3  # that copy in each direction


class Call(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t) for name in ("address", "size", "advice", "thread", "is_there")
    ]


def run(engine: str) -> dict[str, Any]:
    """Three runs, by an engine: "cuda" is the native one, of "python" threads are Python's too."""
    os.sched_getaffinity = lambda _: set(range(2 * THREADS))
    large, pages.LARGE_PAGE = pages.LARGE, 1 << 16
    if engine == "python":
        copier.library = lambda: None
    fn = functools.partial(diglot.add, other=1, backend="cuda") if engine == "cuda" else add_one
    answers = {}
    for where in ("new", "small", "out"):
        pages.LARGE = large if where == "small" else 1 << 20
        answers[where] = seen(fn, out=torch.empty(ROWS, COLUMNS) if where == "out" else None)
    return answers


def seen(fn: Callable[..., torch.Tensor], out: torch.Tensor | None) -> dict[str, Any]:
    """What a run asks of the system, and its result."""
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    count = ctypes.c_int.in_dll(library, "count")
    x = torch.randn(ROWS, COLUMNS)
    count.value = 0
    result = diglot.stream_map(fn, x, out=out, chunk_bytes=CHUNK_ROWS * COLUMNS * 4)
    calls = (Call * count.value).in_dll(library, "calls")
    report = diglot.last_stream_report()
    answer = {
        "right": torch.equal(result, x + 1),
        "engine": report.engine if report else None,
        "address": result.data_ptr(),
        "size": result.nbytes,
        "calls": [[getattr(call, name) for name, _ in Call._fields_] for call in calls],
    }
    result.resize_(0)  # its memory is its own
    return answer


def add_one(chunk: torch.Tensor) -> torch.Tensor:
    """A callable, which Python's engine drives."""
    return chunk + 1


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            engine, _, variable = wanted.partition(":")
            os.putenv(*variable.split("="))
            print(json.dumps([wanted, run(engine)]), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
