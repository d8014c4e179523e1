"""Ceilings of copies between host and devices, and within the host.

What a pipeline of chunks could reach at most: the same bytes in the same chunks, with nothing
computed and nothing staged. Times are the host's clock, from the first call until all is done, as a
pipeline's are.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from diglot.tools import measure

CHUNK_BYTES = 16 << 20
SLOTS = 3
ROUNDS = 5
# Of a copy within the host: threads tried, and bytes that a thread copies at a time.
THREADS = (1, 2, 4, 8, 16, 32)
PIECE_BYTES = 4 << 20

Device = torch.device | str | int


@dataclass(frozen=True)
class Duplex:
    """Speed of copies between pinned memory and devices, in 10^9 bytes/s, all devices together.

    Attributes:
        h2d: to the devices, with nothing else under way.
        d2h: from them, likewise.
        both: in each direction, until as many bytes are copied in either, at once.
    """

    h2d: float
    d2h: float
    both: float


class Copies:
    """Copies in chunks between pinned memory and devices, each direction in a stream of its own.

    Args:
        devices: one GPU, or several, which share the bytes.
        source: pinned memory that is copied to the devices: torch.uint8, one dimension. Random
            bytes, if the figures are to hold for data.
        target: pinned memory that is copied to, as large.

    Raises:
        ValueError: memory is not pinned, or of another dtype or size.
        RuntimeError: kernels are interpreted, or there is no GPU.
    """

    def __init__(
        self,
        devices: Device | Sequence[Device],
        source: torch.Tensor,
        target: torch.Tensor,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        measure.check()
        for name, memory in (("source", source), ("target", target)):
            if memory.dtype != torch.uint8 or memory.dim() != 1 or not memory.is_contiguous():
                raise ValueError(f"{name} must be contiguous torch.uint8 of one dimension")
            if not memory.is_pinned():
                raise ValueError(f"{name} must be pinned memory")
        if source.numel() != target.numel():
            raise ValueError("source and target must be of one size")
        listed = devices if isinstance(devices, (list, tuple)) else [devices]
        self._bytes = source.numel()
        self._streams: list[tuple[torch.cuda.Stream, torch.cuda.Stream]] = []
        self._chunks: list[list[tuple[torch.Tensor, ...]]] = []
        cuts = [self._bytes * i // len(listed) for i in range(len(listed) + 1)]
        for device, begin, end in zip(listed, cuts, cuts[1:], strict=False):
            where = torch.device("cuda", device) if isinstance(device, int) else device
            with torch.cuda.device(where):
                self._streams.append((torch.cuda.Stream(), torch.cuda.Stream()))
                buffers = torch.randint(
                    256, (2, SLOTS, chunk_bytes), dtype=torch.uint8, device="cuda"
                )
                torch.cuda.synchronize()
            self._chunks.append(
                [
                    (of_source, of_target, *(b[slot % SLOTS, : len(of_source)] for b in buffers))
                    for slot, (of_source, of_target) in enumerate(
                        zip(
                            source[begin:end].split(chunk_bytes),
                            target[begin:end].split(chunk_bytes),
                            strict=True,
                        )
                    )
                ]
            )

    def run(self, *, h2d: bool = True, d2h: bool = True) -> None:
        """Copies everything once, in the directions asked for, and waits."""
        longest = max(map(len, self._chunks))
        for chunk in range(longest):
            for (to_device, to_host), chunks in zip(self._streams, self._chunks, strict=True):
                if chunk >= len(chunks):
                    continue
                source, target, arrived, leaving = chunks[chunk]
                if h2d:
                    with torch.cuda.stream(to_device):
                        arrived.copy_(source, non_blocking=True)
                if d2h:
                    with torch.cuda.stream(to_host):
                        target.copy_(leaving, non_blocking=True)
        for streams in self._streams:
            for stream in streams:
                stream.synchronize()

    def timing(self, *, h2d: bool = True, d2h: bool = True, rounds: int = ROUNDS) -> measure.Timing:
        """Times of copying everything once, after a first time that does not count."""
        self.run(h2d=h2d, d2h=d2h)
        return measure.Timing.of(
            [1e6 * _seconds(lambda: self.run(h2d=h2d, d2h=d2h)) for _ in range(rounds)]
        )

    def gb_per_s(self, *, h2d: bool = True, d2h: bool = True, rounds: int = ROUNDS) -> float:
        """Median speed in each of the directions."""
        return self._bytes / self.timing(h2d=h2d, d2h=d2h, rounds=rounds).median_us / 1e3

    def is_right(self, *, h2d: bool = True, d2h: bool = True) -> bool:
        """Whether the last run left what it copied: on the host all, on devices the last chunks."""
        for chunks in self._chunks:
            if d2h and not all(torch.equal(to, of.cpu()) for _, to, _, of in chunks):
                return False
            if h2d and not all(torch.equal(to.cpu(), of) for of, _, to, _ in chunks[-SLOTS:]):
                return False
        return True


def duplex(copies: Copies) -> Duplex:
    """Speed of copies to the devices alone, from them alone, and of both at once."""
    return Duplex(copies.gb_per_s(d2h=False), copies.gb_per_s(h2d=False), copies.gb_per_s())


def copy_host(source: np.ndarray, target: np.ndarray, threads: int) -> None:
    """Copies an array of bytes within the host, by several threads; either may be a map of a file.

    Args:
        source: numpy.uint8, of one dimension.
        target: likewise, as large.
        threads: how many copy, a piece at a time.

    Raises:
        ValueError: the sizes differ.
    """
    if source.shape != target.shape:
        raise ValueError(f"source has {source.size} bytes, and target {target.size}")

    def copy(begin: int) -> None:
        piece = slice(begin, begin + PIECE_BYTES)
        np.copyto(target[piece], source[piece])  # without Python's lock

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(copy, range(0, source.size, PIECE_BYTES)))


def host_ceiling(
    source: np.ndarray,
    targets: Callable[[], np.ndarray],
    rounds: int = 3,
    threads: Sequence[int] = THREADS,
) -> tuple[float, int]:
    """The fastest copy within the host, over numbers of threads.

    Args:
        source: numpy.uint8, of one dimension.
        targets: makes the target of each copy: a new map of a file, say, whose pages are not there
            yet; or always the same array. Its time does not count.
        threads: numbers of them to try; more than twice the processor's are left out.

    Returns:
        Its speed, in 10^9 bytes/s, read as well as written, by the median of its rounds; and its
        threads.
    """
    found = []
    for count in threads:
        if count > max(min(threads), 2 * len(os.sched_getaffinity(0))):
            continue
        times = []
        for _ in range(rounds):
            target = targets()
            times.append(_seconds(functools.partial(copy_host, source, target, count)))
            del target
        found.append((source.size / float(np.median(times)) / 1e9, count))
    return max(found)


def _seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin
