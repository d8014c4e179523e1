"""The grid as a function of meta-parameters: how many programs follows from how large a block is.

    python examples/lessons/grid_of_meta.py

A Triton launch takes a function of its meta-parameters for a grid. An autotuner calls it again for
each configuration, so the number of programs fits the block that is tried. A fixed grid would leave
elements out, or do too much. Triton calls the function with all constants of the launch by name. In
CUDA C++ the host code computes the grid, and the runtime can suggest a block; a grid-stride loop is
right for every grid. Each configuration's programs are counted as they were launched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from lesson import DEVICE, INTERPRETED, Row, Table, add_times, call, check_equal, show

# isort: split
import torch
import triton
import triton.language as tl

SIZE = 1000 if INTERPRETED else (1 << 26) + 1
CONFIGS = [(256, 2), (1024, 4), (4096, 8)]  # elements and warps of a block


@triton.jit
def scale_kernel(n, x, out, count, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, i < n), i < n)
    tl.store(count, tl.num_programs(0))


def grid(n: int, meta: Mapping[str, Any]) -> tuple[int]:
    """As many programs as cover n elements."""
    return (triton.cdiv(n, meta["BLOCK"]),)


def scale(
    language: str, how: tuple[int, int], x: torch.Tensor, out: torch.Tensor, count: torch.Tensor
) -> None:
    """Doubles x, and counts blocks. `how` is block and warps, in CUDA C++ blocks and threads."""
    if language == "cuda":
        call("grid_of_meta", "scale", *how, x.numel(), x, out, count)
    else:
        block, warps = how
        scale_kernel[partial(grid, x.numel())](
            x.numel(), x, out, count, BLOCK=block, num_warps=warps
        )


def suggested() -> tuple[int, int]:
    """Blocks and threads that the CUDA runtime suggests for its kernel."""
    blocks, threads = torch.zeros(2, 1, dtype=torch.int32)
    call("grid_of_meta", "suggest", blocks, threads)
    return int(blocks), int(threads)


def main() -> Iterator[Table]:
    """A row for each configuration."""
    x = torch.randn(SIZE, device=DEVICE)
    out, count = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    rows, calls = list[Row](), []
    blocks, threads = suggested()
    ways = [("triton", how, "block / warps") for how in CONFIGS]
    ways += [("cuda", (triton.cdiv(SIZE, 256), 256), "a thread an element")]
    ways += [("cuda", (blocks, threads), "as the runtime suggests")]
    for language, how, kind in ways:
        out.zero_()
        scale(language, how, x, out, count)
        check_equal(out, 2 * x)
        name = f"{how[0]} / {how[1]}" if language == "triton" else f"{how[1]} threads"
        row = {"language": language, "configuration": name, "kind": kind}
        rows.append({**row, "blocks": int(count)})
        calls.append(partial(scale, language, how, x, out, count))
    add_times(rows, calls, 2 * x.nbytes)
    yield Table(f"2 · x of {SIZE:,} float32 numbers", rows)


if __name__ == "__main__":
    show(main)
