"""What a warp's 32 addresses have to do with speed: coalesced reads, and banks of shared memory.

    python examples/lessons/memory_access/memory_access.py

Two things are shown, in CUDA C++ and in Triton. A copy reads elements that are 1 to 32 apart: every
element once, so that only the distance between neighbouring threads differs. And a matrix is
transposed: straight, through shared memory with a bank conflict at every read, and without any. The
counts follow from the addresses alone; with a GPU, times are shown beside them. Without one the
kernels are interpreted, and their results checked. It needs a C++ compiler and Python's C headers,
and with a GPU nvcc.
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType

import torch

if not torch.cuda.is_available():
    # Before diglot is imported or a Triton kernel defined: both look once.
    os.environ["DIGLOT_INTERPRET"] = os.environ["TRITON_INTERPRET"] = "1"

import diglot
import diglot.interpreter

SOURCES = [Path(__file__).parent / name for name in ("access.cu", "binding.cpp")]
INTERPRETED = os.environ.get("DIGLOT_INTERPRET") == "1"
STRIDES = (1, 2, 4, 8, 16, 32)
# Of NVIDIA's GPUs (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" and "Shared
# Memory and Memory Banks").
LANES, SECTOR_BYTES, BANKS, WORD_BYTES = 32, 32, 32, 4


def sectors(addresses: Iterable[int]) -> int:
    """How many pieces of 32 bytes a warp's access to global memory moves, of byte addresses."""
    return len({address // SECTOR_BYTES for address in addresses})


def conflicts(words: Iterable[int]) -> int:
    """In how many steps a warp's access to shared memory is made, of indices of 4-byte words.

    A bank gives one word in a step; who reads the same word gets it at the same time.
    """
    banks = defaultdict(set)
    for word in words:
        banks[word % BANKS].add(word)
    return max(len(of_bank) for of_bank in banks.values())


def sectors_of_stride(stride: int) -> int:
    """Of a warp that reads 4-byte elements `stride` apart."""
    return sectors(lane * stride * WORD_BYTES for lane in range(LANES))


def conflicts_of_pitch(pitch: int) -> int:
    """Of a warp that reads a column of a tile whose rows are `pitch` words apart."""
    return conflicts(lane * pitch for lane in range(LANES))


@functools.cache
def load_cuda() -> ModuleType:
    """The extension, compiled on the first call (about a minute) and kept for later ones."""
    if INTERPRETED:
        return diglot.interpreter.load("diglot_example_access", SOURCES)
    from torch.utils import cpp_extension

    return cpp_extension.load(
        name="diglot_example_access",
        sources=[str(source) for source in SOURCES],
        extra_include_paths=[diglot.get_include()],
        extra_cuda_cflags=["-O3"],
    )


Function = Callable[[torch.Tensor], torch.Tensor]


def copies(stride: int) -> dict[str, Function]:
    """The copy in both languages."""
    import access_triton

    return {
        "cuda": lambda x: load_cuda().copy_strided(x, stride),
        "triton": lambda x: access_triton.copy_strided(x, stride),
    }


def transposes() -> dict[str, tuple[Function, str]]:
    """By name, the function, and what its addresses say."""
    import access_triton

    cuda = load_cuda()

    def by_tile(pitch: int) -> str:
        steps = conflicts_of_pitch(pitch)
        return f"{sectors_of_stride(1):2} sectors for 32 writes, {steps:2} steps of shared memory"

    return {
        "cuda, straight": (
            lambda x: cuda.transpose(x, cuda.Tile.NONE),
            f"{sectors_of_stride(1 << 12):2} sectors for 32 writes",  # a row apart
        ),
        "cuda, rows of 32": (lambda x: cuda.transpose(x, cuda.Tile.PLAIN), by_tile(32)),
        "cuda, rows of 33": (lambda x: cuda.transpose(x, cuda.Tile.PADDED), by_tile(33)),
        "triton": (access_triton.transpose, "as the compiler arranges it"),
    }


def expected_copy(x: torch.Tensor, stride: int) -> torch.Tensor:
    """What PyTorch makes of the same order of elements."""
    return x.reshape(-1, stride).T.reshape(x.shape)


def tell_times(calls: dict[str, Callable[[], object]], moved: int) -> dict[str, str]:
    """The time of each as text, and its rate for so many bytes; empty without a GPU."""
    if INTERPRETED:
        return dict.fromkeys(calls, "")
    from diglot.tools import measure

    times = measure.interleaved(calls)
    return {
        name: f", {of.median_us:9.1f} µs, {moved / of.median_us / 1e3:6.0f} GB/s"
        for name, of in times.items()
    }


def main() -> None:
    """Prints a line for each stride, and for each transpose."""
    device, size = ("cpu", 128) if INTERPRETED else ("cuda", 8192)
    x = torch.randn(size, size, device=device)
    moved = 2 * x.nbytes
    print(f"A copy of {size} × {size} float32 numbers, read with a stride")
    for stride in STRIDES:
        functions = copies(stride)
        for function in functions.values():
            torch.testing.assert_close(function(x), expected_copy(x, stride), rtol=0, atol=0)
        times = tell_times({name: partial(f, x) for name, f in functions.items()}, moved)
        for name, time in times.items():
            print(
                f"  {stride:2}  {name:7} {sectors_of_stride(stride):2} sectors for 32 reads{time}"
            )
    print("Its transpose")
    ways = transposes()
    for function, _ in ways.values():
        torch.testing.assert_close(function(x), x.T, rtol=0, atol=0)
    times = tell_times({name: partial(f, x) for name, (f, _) in ways.items()}, moved)
    for name, (_, told) in ways.items():
        print(f"  {name:17} {told}{times[name]}")
    if INTERPRETED:
        print("There is no GPU: the results are right, and what the accesses cost is not shown.")


if __name__ == "__main__":
    main()
