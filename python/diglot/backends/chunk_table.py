"""Tables of the chunks of many tensors, for kernels that take them all in one launch.

A chunk begins at a multiple of 16 bytes, or is the part of a tensor before its first such address.
The cuts depend only on the tensors. csrc/include/diglot/chunks.cuh reads the table.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from diglot.backends.capture import beside_captures, is_captured
from diglot.backends.scratch import (
    keep_with_capture,
    keep_with_stream,
    kept_with_capture,
    kept_with_stream,
)

# DType of csrc/include/diglot/types.cuh.
CODES = {torch.float16: 6, torch.bfloat16: 7, torch.float32: 8, torch.float64: 9}

ACCESS_BYTES = 16
# Of a chunk. The number of chunks is limited so that one block can read the results of all. With
# that number, or with small chunks, all blocks of a grid have about the same work.
LEAST_CHUNK_BYTES = 1 << 14
MOST_CHUNK_BYTES = 1 << 30
MOST_CHUNKS = 1 << 14


class DenseTensors(NamedTuple):
    """Tensors for a table: all fill their memory, and are on one device.

    Attributes:
        addresses: of the first elements.
        sizes: numbers of elements.
        dtypes: float16, bfloat16, float32 or float64.
    """

    addresses: tuple[int, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


class ChunkTable(NamedTuple):
    """A table.

    Attributes:
        rows: int64 [chunks, 2], on the tensors' device. A row is an address, and a packed word.
            From the low bits on, the word has 32 bits of element count, 8 of the dtype's code, and
            1 for "an earlier chunk is the same memory". Tensors without elements have no chunk.
        dtype: what the tensors' dtypes promote to.
    """

    rows: torch.Tensor
    dtype: torch.dtype


def find_table(device: torch.device, tensors: DenseTensors) -> ChunkTable | None:
    """The table of these tensors, if `make_table` has made it and it is still kept."""
    if is_captured(device):
        return kept_with_capture(device, tensors)
    return kept_with_stream(device, tensors)


def make_table(device: torch.device, tensors: DenseTensors) -> ChunkTable:
    """Makes the table of these tensors, and keeps it.

    The copy to the device is made on the current stream, and nothing waits for it. Other streams
    have their own tables, so that none is read before it is copied, or freed while it is read.

    The table of a captured launch belongs to the graph, which holds its address. It is copied at
    once, not by the graph, on a stream that is not captured. The host waits for that stream.

    Raises:
        ValueError: two tensors overlap, and are not the same.
    """
    dtype = functools.reduce(torch.promote_types, set(tensors.dtypes))
    rows = build_rows(tensors)
    if is_captured(device):
        with beside_captures(device):
            table = ChunkTable(rows.to(device), dtype)
        return keep_with_capture(device, tensors, table)
    if device.type == "cuda":
        # PyTorch's allocator does not reuse the pinned memory before the copy has read it.
        rows = rows.pin_memory().to(device, non_blocking=True)
    return keep_with_stream(device, tensors, ChunkTable(rows, dtype))


def build_rows(tensors: DenseTensors) -> torch.Tensor:
    """The rows of a table, on the CPU."""
    columns = [
        (address, size * dtype.itemsize, dtype.itemsize, CODES[dtype])
        for address, size, dtype in zip(*tensors, strict=True)
        if size > 0
    ]
    firsts: dict[tuple[int, ...], int] = {}
    for i, column in enumerate(columns):
        firsts.setdefault(column, i)
    ends = 0
    for address, nbytes, _, _ in sorted(firsts):
        if address < ends:
            raise ValueError("some of the tensors overlap in memory, and are not the same")
        ends = address + nbytes

    parts = torch.tensor(columns, dtype=torch.int64, device="cpu").reshape(-1, 4)
    addresses, sizes, itemsizes, codes = parts.T
    chunk = LEAST_CHUNK_BYTES
    while sizes.sum() > MOST_CHUNKS * chunk and chunk < MOST_CHUNK_BYTES:
        chunk *= 2
    heads = torch.minimum(-addresses % ACCESS_BYTES, sizes)
    has_head = (heads > 0).long()
    counts = has_head + (sizes - heads + chunk - 1) // chunk
    owner = torch.arange(len(parts), device="cpu").repeat_interleave(counts)
    # Chunk n of a tensor lies from n * chunk behind its head on, and the head itself is n = -1.
    n = torch.arange(len(owner), device="cpu") - (counts.cumsum(0) - counts + has_head)[owner]
    begins = (heads[owner] + chunk * n).clamp(min=0)
    last = torch.minimum(heads[owner] + chunk * (n + 1), sizes[owner])
    repeated = [firsts[column] != i for i, column in enumerate(columns)]
    is_repeated = torch.tensor(repeated, dtype=torch.int64, device="cpu")
    packed = (last - begins) // itemsizes[owner] | codes[owner] << 32 | is_repeated[owner] << 40
    return torch.stack([addresses[owner] + begins, packed], dim=1)
