"""Whether a change made an op slower: two installations of diglot alternate on one GPU.

    python tools/compare_wheels.py OLD_FOLDER NEW_FOLDER RESULT.json [OP ...] [--eager]

Each folder is what `pip install --target FOLDER` made. For every op, language and case the two
replay a CUDA graph in turns, and check each other's outputs. With --eager they call the op while
the GPU is busy, which hides the host's time. A case that is more than 3 % slower is measured again
with five times the samples. The result has, for each op and language, the geometric mean of old
time / new time.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROUNDS, AGAIN = 6, 5  # turns of a case, and how many times as many if it looks slower
SLOWER = 0.97
WARMERS = 5  # processes that compile Triton's kernels beforehand, for each installation
SHAPES = ((64, 64), (512, 1024), (8192, 768), (4096, 4096), (1024, 16384), (128, 131072))
ROW_OPS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
OPS = ("add", "gelu", "gaussian_pdf", "dropout", "global_softmax", "standardize", *ROW_OPS)


def cases() -> Iterator[tuple[str, str, tuple[int, int], str, str]]:
    """Op, language, shape, dtype, and "forward" or "both" directions."""
    for op in OPS:
        shapes = SHAPES if op in ROW_OPS else (SHAPES[1], SHAPES[3])
        for language in ("cuda", "triton"):
            for shape in shapes:
                for dtype in ("float32", "bfloat16"):
                    for direction in ("forward", "both"):
                        yield op, language, shape, dtype, direction


def call_of(case: Any) -> Callable[[], Any]:
    """A case's call, on random tensors that every process draws alike."""
    import torch

    import diglot

    op, language, shape, dtype, direction = case
    torch.manual_seed(0)
    options = {"device": "cuda", "dtype": getattr(torch, dtype)}
    x, residual, grad = (torch.randn(shape, **options) for _ in range(3))
    w, b = (torch.randn(shape[1], **options) for _ in range(2))
    rows = (shape[1],)
    calls: dict[str, Callable[..., Any]] = {
        "add": lambda x: diglot.add(x, residual, backend=language),
        "dropout": lambda x: diglot.dropout(x, 0.1, backend=language),
        "gaussian_pdf": lambda x: diglot.gaussian_pdf(x, terms=22, backend=language),
        "layer_norm": lambda x: diglot.layer_norm(x, rows, w, b, backend=language),
        "rms_norm": lambda x: diglot.rms_norm(x, rows, w, backend=language),
        "add_layer_norm": lambda x: diglot.add_layer_norm(
            x, residual, rows, w, b, backend=language
        ),
        "add_rms_norm": lambda x: diglot.add_rms_norm(x, residual, rows, w, backend=language),
        "softmax": lambda x: diglot.softmax(x, -1, backend=language),
        "log_softmax": lambda x: diglot.log_softmax(x, -1, backend=language),
    }
    function = calls.get(op, lambda x: getattr(diglot, op)(x, backend=language))
    if direction == "forward":
        return lambda: function(x)
    leaves = [t.requires_grad_() for t in ((x, w) if "norm" in op else (x,))]

    def both() -> Any:
        made = function(x)
        outputs = made if isinstance(made, tuple) else (made,)
        return torch.autograd.grad(outputs, leaves, [grad] * len(outputs))

    return both


def serve(is_eager: bool) -> None:
    """Answers each line of standard input, a case and the number of samples, by times in µs."""
    import torch

    kept: tuple[Any, Any, Any] = (None, None, None)
    cold = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    for line in sys.stdin:
        case, samples = json.loads(line)
        if kept[0] != case:
            kept = (None, None, None)
            call = call_of(case)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(2):
                    call()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                made = call()
            first = made[0] if isinstance(made, tuple) else made
            graph.replay()
            kept = (case, call if is_eager else graph.replay, first)
        _, run, first = kept
        times = []
        for _ in range(samples):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(4 if is_eager else 1):
                cold.zero_()
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        print(json.dumps([times, first.double().abs().sum().item()]), flush=True)


def start(folder: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of this file that imports what is installed in a folder."""
    environment = os.environ | {"PYTHONPATH": folder, "TRITON_CACHE_DIR": f"{folder}/triton_cache"}
    return subprocess.Popen(
        [sys.executable, __file__, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str], case: Any, samples: int) -> tuple[list[float], float]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps([case, samples]) + "\n")
    process.stdin.flush()
    times, total = json.loads(process.stdout.readline())
    return times, total


def ratio_of(processes: list[subprocess.Popen[str]], case: Any, rounds: int) -> dict[str, Any]:
    """Old time / new time of a case, and what the outputs sum to."""
    times: list[list[float]] = [[], []]
    totals = [0.0, 0.0]
    for turn in range(rounds):
        for i in (0, 1) if turn % 2 == 0 else (1, 0):
            sampled, totals[i] = ask(processes[i], case, 8)
            times[i] += sampled
    old, new = map(statistics.median, times)
    agree = math.isclose(*totals, rel_tol=1e-3) or case[0] == "dropout"  # its masks are random
    return {"case": case, "old_us": old, "new_us": new, "ratio": old / new, "agree": agree}


def main(old: str, new: str, result: str, *options: str) -> None:
    ops = [option for option in options if option in OPS] or list(OPS)
    mode = "eager" if "--eager" in options else "graph"
    everything = [case for case in cases() if case[0] in ops]
    warmers = [start(f, "warm", str(i)) for f in (old, new) for i in range(WARMERS)]
    for warmer in warmers:
        warmer.communicate()
    processes = [start(folder, "serve", mode) for folder in (old, new)]
    rows = []
    for case in everything:
        row = ratio_of(processes, case, ROUNDS)
        if row["ratio"] < SLOWER:
            row = ratio_of(processes, case, AGAIN * ROUNDS) | {"first_ratio": row["ratio"]}
        rows.append(row)
    means = {}
    for op in ops:
        for language in ("cuda", "triton"):
            ratios = [r["ratio"] for r in rows if r["case"][:2] == (op, language)]
            means[f"{op} {language}"] = round(statistics.geometric_mean(ratios), 4)
    slower = [r for r in rows if r["ratio"] < SLOWER]
    Path(result).write_text(json.dumps({"means": means, "slower": slower, "cases": rows}, indent=1))
    print(json.dumps(means, indent=1))
    print("slower:", *slower, sep="\n")
    print("disagree:", [r["case"] for r in rows if not r["agree"]])


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2] == "eager")
    elif sys.argv[1] == "warm":
        for case in list(cases())[int(sys.argv[2]) :: WARMERS]:
            if case[1] == "triton":
                call_of(case)()
    else:
        main(*sys.argv[1:])
