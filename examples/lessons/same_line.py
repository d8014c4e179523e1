"""Many blocks write to one line of memory, by stores and by atomic operations.

    python examples/lessons/same_line.py

On a CPU, cores that write to one cache line take it away from each other. A GPU's L1 caches write
through, and do not tell each other: stores of all SMs meet in L2, and those to one line should be
no slower for it. (So a block may also read from its L1 what another has overwritten since.) Atomic
operations are done by L2 itself, and should queue where they meet on one word. Without a GPU the
kernels of both languages are interpreted, and the lines that they touch are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lesson import DEVICE, INTERPRETED, Row, Table, add_times, call, check_equal, show

# isort: split
import torch
import triton
import triton.language as tl

LINE_BYTES = 128
BLOCKS, ROUNDS = (4, 3) if INTERPRETED else (132 * 4, 256)
# Elements of 4 bytes from one block's word to the next one's.
STRIDES = {"a line each": LINE_BYTES // 4, "one line for 32": 1, "one word for all": 0}


@triton.jit
def write_kernel(out, rounds, stride, ATOMIC: tl.constexpr):  # noqa: ANN001, ANN201
    mine = out + tl.program_id(0) * stride
    for done in range(rounds):
        if ATOMIC:
            tl.atomic_add(mine, 1, sem="relaxed")
        else:
            tl.store(mine, done + 1, cache_modifier=".wt")


def lines(stride: int) -> int:
    """How many lines the blocks write to."""
    return len({4 * block * stride // LINE_BYTES for block in range(BLOCKS)})


def write(language: str, is_atomic: bool, stride: int, out: torch.Tensor) -> None:
    """One launch: one thread of each block writes ROUNDS times."""
    if language == "cuda":
        call("same_line", "write", int(is_atomic), BLOCKS, ROUNDS, stride, out)
    else:
        write_kernel[(BLOCKS,)](out, ROUNDS, stride, ATOMIC=is_atomic, num_warps=1)


def check(language: str, is_atomic: bool, stride: int) -> None:
    """Compares memory after the kernel with the right values."""
    out = torch.zeros(BLOCKS * LINE_BYTES // 4, dtype=torch.int32, device=DEVICE)
    write(language, is_atomic, stride, out)
    expected = torch.zeros_like(out)
    if stride:
        expected[: BLOCKS * stride : stride] = ROUNDS
    else:
        expected[0] = ROUNDS * (BLOCKS if is_atomic else 1)
    check_equal(out, expected)


def main() -> Iterator[Table]:
    """A row for each way to write, in both languages."""
    out = torch.zeros(BLOCKS * LINE_BYTES // 4, dtype=torch.int32, device=DEVICE)
    rows, calls = list[Row](), []
    for language in ("cuda", "triton"):
        for is_atomic in (False, True):
            for name, stride in STRIDES.items():
                check(language, is_atomic, stride)
                row: Row = {"language": language, "kind": "atomic add" if is_atomic else "store"}
                rows.append({**row, "where": name, "lines": lines(stride)})
                calls.append(partial(write, language, is_atomic, stride, out))
    add_times(rows, calls)
    yield Table(f"{BLOCKS} blocks write {ROUNDS} times each", rows)


if __name__ == "__main__":
    show(main)
