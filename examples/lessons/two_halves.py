"""Two halves: C stored in two parts, so that shared memory has room for another stage.

    python examples/lessons/two_halves.py

A persistent product by descriptors holds some stages of A's and B's tiles, and C's tile on its way
to TMA. With tiles of 128 x 256 x 64 a stage is 48 KiB. C's whole tile is 64 KiB, and a half 32 KiB.
A block has 227 KiB: three stages beside the whole tile, or four beside a half. The kernel is a step
of docs/ladder.md. What does not fit raises `OutOfResources`. Without a GPU the kernels are
compiled, and their shared memory is compared with the limit.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from lesson import DEVICE, INTERPRETED, ON_GPU, Row, Table, add_times, compiled, show

sys.path.append(str(Path(__file__).resolve().parent.parent / "tensor_cores"))

# isort: split
import torch
from forms_triton import Call
from ladder_triton import WIDE, persistent_step, product_by_descriptors
from stages import SHARED_LIMIT
from triton.runtime.errors import OutOfResources

PARTS, STAGES = (1, 2), (2, 3, 4, 5)
CASES = tuple(itertools.product(PARTS, STAGES))
SIZE = 128 if INTERPRETED else 4096


def call_of(parts: int, stages: int, *matrices: torch.Tensor) -> Call:
    """The launch of c = a b."""
    programs = torch.cuda.get_device_properties(0).multi_processor_count if ON_GPU else 1
    return persistent_step(product_by_descriptors, WIDE, stages, parts=parts)(*matrices, programs)


def shared_bytes() -> list[int]:
    """Shared memory of a block in each of CASES, on sm_90."""
    matrices = [torch.empty(4096, 4096, dtype=torch.bfloat16) for _ in range(3)]
    return [call_of(*case, *matrices).compile().metadata.shared for case in CASES]


def try_case(call: Call, c: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Runs a case and checks its bits; why it did not run, if it was refused."""
    try:
        call.run()
    except OutOfResources as error:
        return f"OutOfResources: {error.name}, {error.required} of {error.limit}"
    assert torch.equal(c, expected)
    return None


def main() -> Iterator[Table]:
    """A row for each case; then the times of those that ran, of random numbers."""
    a, b = (torch.randint(-4, 5, (SIZE, SIZE), device=DEVICE).bfloat16() for _ in range(2))
    c, expected = torch.empty_like(a), (a.double() @ b.double()).bfloat16()
    rows, ran = list[Row](), []
    for (parts, stages), needed in zip(CASES, compiled(shared_bytes), strict=True):
        # Under the interpreter stages mean nothing: one of them is enough.
        runs = not INTERPRETED or stages == STAGES[0]
        refused = try_case(call_of(parts, stages, a, b, c), c, expected) if runs else None
        row: Row = {"C in": "one part" if parts == 1 else "two halves", "stages": stages}
        row |= {"shared KiB": needed / 1024, "fits": "yes" if needed <= SHARED_LIMIT else "no"}
        rows.append({**row, "refused": refused})
        if refused is None and not INTERPRETED:
            ran.append((parts, stages, {"C in": row["C in"], "stages": stages}))
    yield Table(f"bfloat16 products by tiles of {' x '.join(map(str, WIDE))}", rows)
    if ran:
        a, b = torch.randn(2, SIZE, SIZE, device=DEVICE).bfloat16()
        timed: list[Row] = [row for _, _, row in ran]
        add_times(timed, [call_of(parts, stages, a, b, c).run for parts, stages, _ in ran])
        for row in timed:
            row["TFLOP/s"] = 2e-6 * SIZE**3 / row["µs"]
        yield Table(f"Of {SIZE} x {SIZE} matrices", timed)


if __name__ == "__main__":
    show(main)
