"""Runs every step of the ladder: the same product, from a naive kernel to the final one.

    python examples/tensor_cores/ladder.py

On a GPU of compute capability 9.0, steps are checked against float64, and timed in turns beside
`torch.mm`. The figures go to bench/results/<gpu>/ladder.json, from which `make pages` writes the
tables of docs/ladder.md. Without a GPU the kernels of both languages are interpreted on small
matrices.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    # Before diglot is imported or a Triton kernel defined: both look once.
    os.environ["DIGLOT_INTERPRET"] = os.environ["TRITON_INTERPRET"] = "1"

import triton  # noqa: E402
from ladder_triton import STEPS as TRITON  # noqa: E402

import diglot  # noqa: E402
import diglot.interpreter  # noqa: E402
from diglot.bench import ladder, reports  # noqa: E402
from diglot.bench.harness import Row  # noqa: E402
from diglot.reference.matmul import expected_product  # noqa: E402
from diglot.tools.accuracy import measure_error  # noqa: E402

SOURCE = Path(__file__).resolve().parent / "steps/ladder.cu"
DEVICE = "cuda" if ON_GPU else "cpu"
SMALL = (136, 264, 200)  # M, N, K where kernels are interpreted: tiles meet all edges
BUDGET_MS = 200
Calls = dict[str, Callable[[], object]]


class Work(ctypes.Structure):
    """As in csrc/interpreter/work.h: what TMA and the tensor cores have been asked for."""

    _fields_ = (
        ("loaded_bytes", ctypes.c_uint64),
        ("stored_bytes", ctypes.c_uint64),
        ("multiply_adds", ctypes.c_uint64),
    )

    def since(self, before: Work) -> str:
        """What has been asked for since, in words; "" of nothing."""
        loaded, stored, made = (
            getattr(self, name) - getattr(before, name) for name, _ in self._fields_
        )
        if not made:
            return ""
        said = f"TMA loads {loaded / 1024:,.0f} KiB and stores {stored / 1024:,.0f} KiB, "
        return f"{said}tensor cores make {made / 1e6:,.0f} million multiply-adds"


@functools.cache
def load_cuda() -> ctypes.CDLL:
    """The steps in CUDA C++: compiled on the first call, and kept for later ones."""
    from torch.utils import cpp_extension

    folder = Path(cpp_extension.get_default_build_root()) / "diglot_ladder"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / ("ladder.so" if ON_GPU else "ladder.interpreted.so")
    if ON_GPU:
        nvcc = Path(cpp_extension.CUDA_HOME or "/usr/local/cuda") / "bin/nvcc"
        command = [str(nvcc), "-O3", "-std=c++17", "-arch=sm_90a", "--expt-relaxed-constexpr"]
        command += ["-shared", "-Xcompiler=-fPIC", f"-I{diglot.get_include()}", str(SOURCE)]
        subprocess.run([*command, "-o", str(library)], check=True)
    else:
        diglot.interpreter.compile_library([SOURCE], library)
    loaded = ctypes.CDLL(str(library))
    loaded.multiply.restype = ctypes.c_char_p
    if not ON_GPU:
        loaded.work.restype = Work
    return loaded


def multiply_by_cuda(step: int, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """c = a @ b by a step in CUDA C++.

    Raises:
        RuntimeError: what the interpreter or the launch reports.
    """
    pointers = [ctypes.c_void_p(matrix.data_ptr()) for matrix in (a, b, c)]
    stream = torch.cuda.current_stream().cuda_stream if ON_GPU else None
    error = load_cuda().multiply(step, *pointers, *c.shape, a.shape[1], ctypes.c_void_p(stream))
    if error is not None:
        raise RuntimeError(error.decode())


def calls_of(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Calls:
    """What makes c = a @ b, by step."""
    programs = torch.cuda.get_device_properties(0).multi_processor_count if ON_GPU else 4
    calls: Calls = {}
    for step in ladder.STEPS:
        if step.language == "cuda":
            calls[step.provider] = functools.partial(multiply_by_cuda, step.number, a, b, c)
        else:
            calls[step.provider] = TRITON[step.name](a, b, c, programs).run
    calls["torch"] = functools.partial(torch.mm, a, b, out=c)
    return calls


def check(call: Callable[[], object], a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str:
    """Calls, and returns why the result is not right, or ""."""
    c.fill_(torch.nan)
    try:
        call()
        error = measure_error(c, expected_product(a, b, None, c.dtype))
    except Exception as raised:  # one step must not stop the others
        return f"{type(raised).__name__}: {str(raised).strip().splitlines()[0]}"
    return "" if error.failing == 0 else f"wrong result: {error.failing:.1%} of the elements"


def measure(shape: tuple[int, int, int]) -> Iterator[Row]:
    """The rows of a product: every step and PyTorch, in turns."""
    from diglot.tools import measure as timing

    m, n, k = shape
    a, b = (torch.randn(size, device=DEVICE).bfloat16() for size in ((m, k), (k, n)))
    c = a.new_empty(m, n)
    calls = calls_of(a, b, c)
    reasons = {name: check(call, a, b, c) for name, call in calls.items()}
    right = {name: call for name, call in calls.items() if not reasons[name]}
    times = timing.interleaved(right, budget_ms=BUDGET_MS)
    for name in calls:
        row = ladder.row_of(name, shape, verified=name in right)
        if name in right:
            us = times[name].median_us
            row |= {**times[name].figures(), "tflop_per_s": 2e-6 * m * n * k / us}
            row["speed_over_torch"] = times["torch"].median_us / us
        yield row if name in right else {**row, "reason": reasons[name]}


def interpret() -> dict[str, str]:
    """Of each step on a small product of integers: "exact", or the fault; it prints more."""
    m, n, k = SMALL
    a, b = (torch.randint(-4, 5, size).bfloat16() for size in ((m, k), (k, n)))
    c, expected = a.new_empty(m, n), (a.double() @ b.double()).bfloat16()
    verdicts, library = {}, load_cuda()
    for name, call in calls_of(a, b, c).items():
        before = library.work()
        reason = check(call, a, b, c)
        verdicts[name] = reason or ("exact" if torch.equal(c, expected) else "not exact")
        print(f"{name:24}{verdicts[name]:10}{library.work().since(before)}".rstrip(), flush=True)
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, help="the figures' folder, if another")
    folder = parser.parse_args().results
    if not ON_GPU:
        print(f"{SMALL[0]} x {SMALL[2]} times {SMALL[2]} x {SMALL[1]}, interpreted")
        sys.exit(any(verdict != "exact" for verdict in interpret().values()))
    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=DEVICE))
    rows = []
    for shape in ladder.SHAPES:
        for row in measure(shape):
            rows.append(row)
            said = f"{row['time_us']:.0f} µs, {row['tflop_per_s']:.0f} TFLOP/s, "
            said = said + f"{row['speed_over_torch']:.2f} of torch.mm" if "time_us" in row else ""
            print(f"{row['workload']}, {row['provider']}: {said or row['reason']}", flush=True)
    print(reports.write_report("ladder", rows, folder))


if __name__ == "__main__":
    main()
