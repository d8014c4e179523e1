"""Banks of shared memory: a transpose whose reads queue at one bank, and three that do not.

    python examples/lessons/bank_conflicts.py

A transpose reads rows and writes columns. Straight, the 32 writes of a warp are far apart. Through
a tile in shared memory both sides are along rows, but then a column of the tile is read. Shared
memory has 32 banks, and each delivers one word at a time. If rows have 32 words, a column lies in
one bank. Rows of 33 words, or an XOR of the column with the row, spread it over all banks. In
Triton there is nothing to choose: the compiler arranges shared memory itself (swizzle.py). The
counts follow from the addresses alone; with a GPU, times are shown beside them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from lesson import DEVICE, INTERPRETED, Row, Table, add_times, call, check_equal, show

# isort: split
import torch
import triton
import triton.language as tl

SIZE = 128 if INTERPRETED else 8192
TILE = 64
# CUDA C++ Best Practices Guide, "Shared Memory and Memory Banks".
LANES, BANKS = 32, 32
# The word that each lane reads of a tile's column 5, by the way in which bank_conflicts.cu does it.
COLUMN: dict[str, Callable[[int], int] | None] = {
    "straight": None,
    "rows of 32": lambda lane: 32 * lane + 5,
    "rows of 33": lambda lane: 33 * lane + 5,
    "swizzled": lambda lane: 32 * lane + (5 ^ lane),
}


@triton.jit
def transpose_kernel(source, out, rows, columns, TILE: tl.constexpr):  # noqa: ANN001, ANN201
    row = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)[None, :]
    inside = (row < rows) & (column < columns)
    tile = tl.load(source + row * columns + column, mask=inside)
    tl.store(out + column * rows + row, tile, mask=inside)


def steps(words: Iterable[int]) -> int:
    """In how many steps a warp's access to shared memory is made, of indices of 4-byte words.

    A bank gives one word in a step; who reads the same word gets it at the same time.
    """
    banks = defaultdict(set)
    for word in words:
        banks[word % BANKS].add(word)
    return max(len(words_of_bank) for words_of_bank in banks.values())


def transpose(way: str, x: torch.Tensor, out: torch.Tensor) -> None:
    """`x.T`, row-major, of a contiguous float32 matrix, by one of COLUMN or "triton"."""
    rows, columns = x.shape
    if way == "triton":
        grid = (triton.cdiv(columns, TILE), triton.cdiv(rows, TILE))
        transpose_kernel[grid](x, out, rows, columns, TILE)
    else:
        call("bank_conflicts", "transpose", list(COLUMN).index(way), rows, columns, x, out)


def main() -> Iterator[Table]:
    """A row for each way."""
    x = torch.randn(SIZE, SIZE, device=DEVICE)
    out, rows, calls = torch.empty_like(x), list[Row](), []
    for way in (*COLUMN, "triton"):
        calls.append(partial(transpose, way, x, out))
        calls[-1]()
        check_equal(out, x.T.contiguous())
        words = COLUMN.get(way)
        name = "triton" if way == "triton" else f"cuda, {way}"
        rows.append(
            {"transpose": name, "steps of 32 reads": words and steps(map(words, range(LANES)))}
        )
    add_times(rows, calls, 2 * x.nbytes)
    yield Table(f"Transpose of {SIZE} x {SIZE} float32 numbers", rows)


if __name__ == "__main__":
    show(main)
