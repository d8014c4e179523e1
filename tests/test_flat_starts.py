"""Where the last programs of flat walks begin, in arrays of more than 2^31 elements.

Nobody runs all programs, and of the arrays only what the last ones touch takes memory. On a GPU
tests/test_memory.py runs them all.
"""

from __future__ import annotations

import builtins
import os
import shutil
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from backends import DEVICE, needs_cuda

import diglot
from diglot.reference.philox import random_bits

BEYOND = 2**31 + 4099


def last_two(*bounds: int) -> range:
    """Of the programs of a very large grid the last two; of others all."""
    every = builtins.range(*bounds)
    return every[-2:] if len(every) > 10_000 else every


def flat_walk() -> None:
    x = torch.empty(BEYOND, dtype=torch.int8)
    x[-1000:] = torch.arange(1000) % 100
    y = diglot.add(x, 3, backend="triton")
    assert "strided" not in diglot.last_run().variant
    assert torch.equal(y[-1000:], x[-1000:] + 3)


def flat_walk_that_takes_indices() -> None:
    x = torch.empty(BEYOND, dtype=torch.float16)
    x[-1000:] = 1
    seed = torch.full((), 5)
    y = diglot.dropout(x, 0.5, seed=seed, backend="triton")
    bits = random_bits(seed, (BEYOND - 1000) // 4 - 1, 1008)
    kept = bits[(BEYOND - 1000) % 4 + 4 :][:1000] >= 2**31
    assert torch.equal(y[-1000:], kept.half() * 2)


def strided_walk() -> None:
    x = torch.empty(2**16 + 1, 2**16 + 32, dtype=torch.int8)[:, ::2]
    x[-1] = torch.arange(x.shape[1]) % 100
    y = diglot.add(x, 3, backend="triton")
    assert "64-bit" in diglot.last_run().variant
    assert torch.equal(y[-1, -1000:], x[-1, -1000:] + 3)


def rows(function: str, argument: object) -> None:
    x = torch.empty(2**21 + 8, 1024, dtype=torch.float16)
    x[-2:].normal_()
    y = getattr(diglot, function)(x, argument, backend="triton")[-2:]
    expected = getattr(torch.nn.functional, function)(x[-2:].float(), argument)
    torch.testing.assert_close(y.float(), expected, rtol=2e-3, atol=1e-3)


WALKS: dict[str, Callable[[], None]] = {
    "flat": flat_walk,
    "flat, with indices": flat_walk_that_takes_indices,
    "strided": strided_walk,
    "rows of softmax": lambda: rows("softmax", -1),
    "rows of layer_norm": lambda: rows("layer_norm", (1024,)),
}


@pytest.mark.skipif(DEVICE == "cuda", reason="kernels are compiled here, not interpreted")
@pytest.mark.parametrize("walk", WALKS)
def test_far_elements_of_triton(monkeypatch, walk):
    """In a process of its own, which a wrong address may end."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    monkeypatch.setattr(interpreter, "range", last_two, raising=False)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            WALKS[walk]()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# The last blocks of CUDA C++'s flat walk, on the host.
HOST = """
#include <sys/mman.h>
#include "diglot/elementwise.cuh"

namespace diglot::interpreter {
unsigned block, thread;
Index3 block_index() { return {block, 0, 0}; }
Index3 thread_index() { return {thread, 0, 0}; }
}  // namespace diglot::interpreter

using diglot::interpreter::block;
using diglot::interpreter::thread;
using T = signed char;

T* reserve(int64_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  return static_cast<T*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0));
}

template <typename Shape>
bool walk(int64_t n, const T* in, T* out) {
  const int64_t of_block = diglot::kElementwiseThreads * Shape::kAccesses * Shape::kElements;
  const int64_t blocks = (n + of_block - 1) / of_block, first = (blocks - 2) * of_block;
  for (int64_t i = first; i < n; ++i) out[i] = 0;
  for (block = blocks - 2; block < blocks; ++block) {
    for (thread = 0; thread < diglot::kElementwiseThreads; ++thread) {
      diglot::map_flat<Shape>(n, 0, [](T x) { return static_cast<T>(x + 1); }, out, in);
    }
  }
  int64_t right = 0;
  const int64_t tail = Shape::kElements > 1 ? n % Shape::kElements : 0;  // is the first block's
  for (int64_t i = first; i < n - tail; ++i) right += out[i] == static_cast<T>(in[i] + 1);
  return right == n - tail - first;
}

int main() {
  const int64_t n = (int64_t{1} << 32) + 40'999;
  T* const in = reserve(n);
  T* const out = reserve(n);
  for (int64_t i = n - 40'000; i < n; ++i) in[i] = i % 100;
  const bool is_right = walk<diglot::FlatShape<4, 16>>(n, in, out);
  return is_right && walk<diglot::FlatShape<1, 1>>(n, in, out) ? 0 : 1;
}
"""
START = "const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockVectors + threadIdx.x;"
# The part that is 32 bits wide instead.
MUTATIONS = {
    "nothing": ("\n", "\n"),
    "the product": (START, START.replace("static_cast<int64_t>(blockIdx.x)", "blockIdx.x")),
    "the start": (START, START.replace("int64_t", "int")),
    "the index of an access": (
        "const int64_t index = head + vector * kElements;",
        "const int index = static_cast<int>(head + vector * kElements);",
    ),
    "the address of a load": (
        "load_vector<T, kElements>(input + head + vector * kElements)",
        "load_vector<T, kElements>(input + static_cast<int>(head + vector * kElements))",
    ),
}


@needs_cuda
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_flat_walk_of_cuda(tmp_path, mutation):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    right, wrong = MUTATIONS[mutation]
    include = Path(diglot.get_include())
    stand_ins = [p for p in (include / "interpreter", include.parent / "interpreter") if p.is_dir()]
    headers = tmp_path / "diglot"
    shutil.copytree(include / "diglot", headers)
    text = (headers / "elementwise.cuh").read_text()
    assert right in text
    (headers / "elementwise.cuh").write_text(text.replace(right, wrong))
    (tmp_path / "host.cpp").write_text(HOST)
    command = [compiler, "-std=c++17", "-O1", "-DDIGLOT_INTERPRETER", f"-I{tmp_path}"]
    command += [f"-I{q}" for p in stand_ins for q in (p / "include", p.parent)]
    subprocess.run([*command, tmp_path / "host.cpp", "-o", tmp_path / "host"], check=True)
    status = subprocess.run([tmp_path / "host"]).returncode  # less than 0: a signal ended it
    assert (status == 0) == (mutation == "nothing")
