"""How rows are cut into chunks: a pure function of sizes, the same for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20
# The least and most bytes of a chunk's largest array, by the ring's engine and by whether memory is
# staged. From about 16 MiB on, copies in both directions come near the bus's bandwidth. Kernels
# slower than the copies prefer small chunks. Staged chunks are better small, because pinned buffers
# are best in the processor's cache. But Python takes some time for each chunk.
Range = tuple[int, int]
CHUNK_BYTES: dict[tuple[str, bool], Range] = {
    ("native", False): (8 * MIB, 32 * MIB),
    ("native", True): (4 * MIB, 4 * MIB),
    ("python", False): (16 * MIB, 16 * MIB),
    ("python", True): (16 * MIB, 16 * MIB),
}
DEFAULT_CHUNK_BYTES: Range = (16 * MIB, 16 * MIB)
# A device's share of a large array has this many chunks, if that range allows it; a small one has
# at least FEWEST_CHUNKS. While the pipeline fills with the first chunk, and drains with the last,
# one direction of the bus is idle.
MANY_CHUNKS = 128
FEWEST_CHUNKS = 8
SMALLEST_CHUNK_BYTES = 2 * MIB
NUM_SLOTS = 3
TIMED_FIRST = TIMED_EVERY = 16


def chunk_range(engine: str, is_staged: bool, devices: int) -> Range:
    """The default least and most bytes of a chunk's largest array."""
    least, most = CHUNK_BYTES[engine, is_staged]
    # The devices' threads take turns at Python's lock, at each call that releases it.
    of_several = devices if engine == "python" and not is_staged else 1
    return least * of_several, most * of_several


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
    default_bytes: Range = DEFAULT_CHUNK_BYTES,
    devices: int = 1,
) -> Plan:
    """Cuts rows into chunks.

    Args:
        rows: how many there are.
        in_row_bytes: of a row, for each input.
        out_row_bytes: likewise of the outputs; empty where they are not known before.
        chunk_bytes: of a chunk's largest array, at most. By default in the range of
            `default_bytes`, less for small arrays, so that there are chunks to overlap, and as much
            as one row needs.
        num_slots: chunks that are on the device at once, 1 or more. With one nothing overlaps.
        default_bytes: the default least and most.
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
        least, most = default_bytes
        size = rows * largest // devices
        chunk_bytes = min(most, max(least, size // MANY_CHUNKS))
        chunk_bytes = min(chunk_bytes, max(size // FEWEST_CHUNKS, SMALLEST_CHUNK_BYTES))
        chunk_bytes = max(chunk_bytes, largest)
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
