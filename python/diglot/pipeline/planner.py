"""How rows are cut into chunks: a pure function of sizes, the same for every engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20
STEP = 2 * MIB  # chunks are multiples of a large page


@dataclass(frozen=True)
class Chunking:
    """What decides the default size of a chunk's largest array.

    The first chunk travels in while nothing travels out, and the last one out while nothing travels
    in. So chunks of c bytes, of S bytes in all, take as long as the bus takes for
    S + c + `each` * S / c bytes. That is least at the square root of S * `each`.

    Attributes:
        each: bytes that the bus moves in the time of an engine's work for one chunk.
        most: bytes of a chunk. Pinned buffers are best in the processor's cache.
    """

    each: int
    most: int

    def bytes_of(self, size: int) -> int:
        """Bytes of a chunk of arrays of `size` bytes."""
        best = math.sqrt(size * self.each)
        return min(self.most, max(1, round(best / STEP)) * STEP)


# By the ring's engine, and by whether memory is staged.
CHUNKING = {
    ("native", False): Chunking(MIB // 4, 32 * MIB),
    ("native", True): Chunking(MIB // 2, 4 * MIB),
    ("python", False): Chunking(MIB, 16 * MIB),
    ("python", True): Chunking(MIB, 16 * MIB),
}
DEFAULT_CHUNKING = CHUNKING["python", True]
NUM_SLOTS = 3
TIMED_FIRST, TIMED_EVERY = 6, 16


def chunking(engine: str, is_staged: bool, devices: int) -> Chunking:
    """What decides the default size of chunks."""
    found = CHUNKING[engine, is_staged]
    if engine == "python" and not is_staged:
        # The devices' threads take turns at Python's lock, at each call that releases it.
        return Chunking(found.each * devices, found.most * devices)
    return found


@dataclass(frozen=True)
class Plan:
    """Chunks of rows, and the ring of slots that they pass through.

    Attributes:
        rows: of all arrays, along dimension 0.
        chunk_rows: rows of every chunk except the last, which has the rest. At least one.
        num_slots: chunks that are on the device at once.
        in_row_bytes: of a row, for each input.
        out_row_bytes: likewise of the outputs.
    """

    rows: int
    chunk_rows: int
    num_slots: int
    in_row_bytes: tuple[int, ...]
    out_row_bytes: tuple[int, ...]

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return -(-self.rows // self.chunk_rows)

    def rows_of(self, chunk: int) -> tuple[int, int]:
        """The rows of a chunk: the first, and the one after the last."""
        begin = chunk * self.chunk_rows
        return begin, min(begin + self.chunk_rows, self.rows)

    def is_timed(self, chunk: int) -> bool:
        """Whether the device's work on a chunk is timed. Timing delays a stream. So few chunks are
        all timed, but of many only the first ones, and then one in TIMED_EVERY.
        """
        return chunk < TIMED_FIRST or chunk % TIMED_EVERY == 0 or chunk == self.chunks - 1

    @property
    def slots(self) -> int:
        """The slots in use: no more than there are chunks."""
        return min(self.num_slots, self.chunks)

    @property
    def device_bytes(self) -> int:
        """The most bytes of the slots' buffers on the device."""
        row = sum(self.in_row_bytes) + sum(self.out_row_bytes)
        return self.slots * self.chunk_rows * row


def plan(
    rows: int,
    in_row_bytes: Sequence[int],
    out_row_bytes: Sequence[int],
    chunk_bytes: int | None = None,
    num_slots: int = NUM_SLOTS,
    default: Chunking = DEFAULT_CHUNKING,
    devices: int = 1,
) -> Plan:
    """Cuts rows into chunks.

    Args:
        rows: how many there are.
        in_row_bytes: of a row, for each input.
        out_row_bytes: likewise of the outputs; empty where they are not known before.
        chunk_bytes: of a chunk's largest array, at most. By default what `default` says of a
            device's share, and as much as one row needs.
        num_slots: chunks that are on the device at once, 1 or more. With one nothing overlaps.
        default: what decides the default size.
        devices: how many share the rows.

    Raises:
        ValueError: a number is out of range, or a row is larger than `chunk_bytes`.
    """
    if rows < 0:
        raise ValueError(f"rows must be 0 or more, not {rows}")
    if num_slots < 1:
        raise ValueError(f"num_slots must be at least 1, not {num_slots}")
    largest = max((*in_row_bytes, *out_row_bytes, 1))
    if chunk_bytes is None:
        chunk_bytes = max(default.bytes_of(rows * largest // devices), largest)
    elif chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be positive, not {chunk_bytes}")
    elif chunk_bytes < largest:
        raise ValueError(
            f"a row has {largest} bytes, and a chunk takes {chunk_bytes}: rows are not cut, so "
            f"chunk_bytes must be at least {largest}"
        )
    chunk_rows = max(1, min(chunk_bytes // largest, rows))
    return Plan(rows, chunk_rows, num_slots, tuple(in_row_bytes), tuple(out_row_bytes))


def split(rows: int, parts: int) -> list[tuple[int, int]]:
    """Cuts rows into `parts` neighbouring shares, (begin, end), whose sizes differ by at most one.

    Raises:
        ValueError: `parts` is less than 1.
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, not {parts}")
    return [(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]
