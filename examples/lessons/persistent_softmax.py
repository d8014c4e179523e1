"""A persistent kernel: as many programs as the GPU holds at once, and many rows for each.

    python examples/lessons/persistent_softmax.py

The same softmax kernel is launched in two ways. With a program for each row it ends after one, and
the GPU starts a new one in its place. With only resident programs, each goes on to the next of its
rows, and Triton's compiler loads that (`num_stages`) while this one is reduced. How many are
resident follows from the occupancy: the registers and the shared memory of the compiled kernel
decide. Without a GPU one sees both grids, and that both give the same result. (Triton's number is
then an H200's, and that of CUDA C++ is of the interpreter's small device.)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lesson import DEVICE, INTERPRETED, Row, Table, add_times, call, check_equal, compiled, show

# isort: split
import torch
import triton
import triton.language as tl

from diglot.tools.occupancy import occupancy

ROWS, COLUMNS = (13, 781) if INTERPRETED else (1 << 15, 2000)
WARPS, STAGES, MULTIPROCESSORS = 8, 4, 132  # of an H200


@triton.jit
def softmax_kernel(x, out, rows, columns, STAGES: tl.constexpr, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    column = tl.arange(0, BLOCK)
    inside = column < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        first = tl.cast(row, tl.int64) * columns
        values = tl.load(x + first + column, inside, float("-inf"))
        powers = tl.exp(values - tl.max(values, 0))
        tl.store(out + first + column, powers / tl.sum(powers, 0), inside)


def resources(columns: int) -> tuple[int, int]:
    """Registers of a thread, and shared memory of a program, of the compiled Triton kernel."""
    from diglot.tools.resources import compile_triton
    from diglot.triton_ops.launch.plan import Specialization

    block = triton.next_power_of_2(columns)
    types = (torch.float32, torch.float32)
    (kernel,) = compile_triton(
        [Specialization(softmax_kernel, types, ("i32", "i32"), (STAGES, block), WARPS)]
    )
    return kernel.registers, kernel.shared_bytes


def softmax(language: str, programs: int, x: torch.Tensor, out: torch.Tensor) -> None:
    """Softmax along rows, by a number of programs."""
    rows, columns = x.shape
    if language == "cuda":
        call("persistent_softmax", "softmax", programs, rows, columns, x, out)
    else:
        block = triton.next_power_of_2(columns)
        softmax_kernel[(programs,)](x, out, rows, columns, STAGES, block, num_warps=WARPS)


def resident() -> dict[str, int]:
    """How many programs run at once, by language; in CUDA C++ on this device."""
    blocks = torch.zeros(1, dtype=torch.int32)
    call("persistent_softmax", "resident", COLUMNS, blocks)
    registers, shared_bytes = compiled(resources, COLUMNS)
    of_one = occupancy("sm_90", 32 * WARPS, registers, shared_bytes)
    return {"cuda": int(blocks), "triton": max(1, of_one.blocks) * MULTIPROCESSORS}


def main() -> Iterator[Table]:
    """A row for each grid, in both languages."""
    x = torch.randn(ROWS, COLUMNS, device=DEVICE)
    out, expected = torch.empty_like(x), torch.softmax(x.double(), 1).float()
    rows, calls = list[Row](), []
    for language, most in resident().items():
        for kind, programs in (("a row each", ROWS), ("persistent", min(ROWS, most))):
            programs = min(programs, 5) if INTERPRETED and kind == "persistent" else programs
            out.zero_()
            softmax(language, programs, x, out)
            check_equal(out, expected, 1e-6)
            row = {"language": language, "programs": kind, "resident": most, "launched": programs}
            rows.append({**row, "rows each": ROWS / programs})
            calls.append(partial(softmax, language, programs, x, out))
    add_times(rows, calls, 2 * x.nbytes)
    yield Table(f"softmax of {ROWS} rows of {COLUMNS} float32 numbers", rows)


if __name__ == "__main__":
    show(main)
