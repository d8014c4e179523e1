"""Loads past the L1 cache: a single read does not need it, and later reads of the same data do.

    python examples/lessons/past_l1.py

A load can ask not to be kept in L1: `__ldcg` in CUDA C++, `cache_modifier=".cg"` in Triton, both
`ld.global.cg` in PTX. Blocks read a window of memory once, and 64 times. Once should cost the same
either way; 64 times should cost more past L1, because every read goes to L2. One also reads past L1
to see what another block has written meanwhile. Without a GPU one sees the instructions of both
languages, and that the sums agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from lesson import (
    DEVICE,
    INTERPRETED,
    Row,
    Table,
    add_times,
    call,
    check_equal,
    compiled,
    cuda_listing,
    show,
)

# isort: split
import torch
import triton
import triton.language as tl

THREADS, WINDOW = 256, 4096  # 16 KiB for each block
BLOCKS = 4 if INTERPRETED else 132 * 64
CHANGES = {"by way of L1": ".ca", "past L1": ".cg"}


@triton.jit
def window_kernel(source, out, rounds, MODIFIER: tl.constexpr, WINDOW: tl.constexpr):  # noqa: ANN001, ANN201
    mine = source + tl.program_id(0).to(tl.int64) * WINDOW
    total = tl.zeros((WINDOW,), tl.float32)
    for done in range(rounds):
        # Turned by a few elements each time: the compiler moves a load out of the loop if it can.
        at = (tl.arange(0, WINDOW) + 64 * done) % WINDOW
        total += tl.load(mine + at, cache_modifier=MODIFIER)
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


def sums(language: str, modifier: str, rounds: int, x: torch.Tensor) -> torch.Tensor:
    """The sum of each row, taken `rounds` times; in CUDA C++ of each thread's part of it."""
    blocks = x.shape[0]
    out = torch.empty(blocks, THREADS if language == "cuda" else 1, device=DEVICE)
    if language == "cuda":
        call("past_l1", "window_sums", int(modifier == ".cg"), blocks, WINDOW, rounds, x, out)
    else:
        window_kernel[(blocks,)](x, out, rounds, MODIFIER=modifier, WINDOW=WINDOW, num_warps=8)
    return out


def triton_code(modifier: str, stage: str) -> str:
    """A stage of the compiled Triton kernel, such as "ptx"."""
    from diglot.tools.resources import compile_stages
    from diglot.triton_ops.launch.plan import Specialization

    types = (torch.float32, torch.float32)
    kernel = Specialization(window_kernel, types, ("i32",), (modifier, WINDOW), 8)
    return compile_stages(kernel).stages[stage].decode()


def triton_instructions() -> dict[str, list[str]]:
    """By modifier, the loads in the PTX of the Triton kernel."""
    return {
        modifier: sorted(set(re.findall(r"\bld\.global\S*", triton_code(modifier, "ptx"))))
        for modifier in CHANGES.values()
    }


def cuda_instructions() -> dict[str, list[str]]:
    """By modifier, the loads in the machine code of the CUDA kernel."""
    listing = cuda_listing("past_l1")
    names = {".ca": "window_kernel<false>", ".cg": "window_kernel<true>"}
    return {
        modifier: sorted(set(re.findall(r"\bLDG\S*", listing.get(name, ""))))
        for modifier, name in names.items()
    }


def main() -> Iterator[Table]:
    """The instructions, then a row for each way to read."""
    cuda, triton_loads = cuda_instructions(), compiled(triton_instructions)
    yield Table(
        "The compiled loads",
        [
            {
                "load": name,
                "CUDA C++ (SASS)": ", ".join(cuda[m]) or None,
                "Triton (PTX)": ", ".join(triton_loads[m]),
            }
            for name, m in CHANGES.items()
        ],
    )
    x = torch.rand(BLOCKS, WINDOW, device=DEVICE)
    rows, calls = list[Row](), []
    for rounds in (1, 2) if INTERPRETED else (1, 64):
        for language in ("cuda", "triton"):
            for name, modifier in CHANGES.items():
                run = partial(sums, language, modifier, rounds, x)
                shares = run().sum(1) / (rounds * x.sum(1))
                check_equal(shares, torch.ones_like(shares), 1e-4)
                rows.append({"reads": rounds, "language": language, "load": name})
                calls.append(run)
    add_times(rows, calls, [row["reads"] * x.nbytes for row in rows])
    yield Table(f"{BLOCKS} blocks read {WINDOW * 4 >> 10} KiB each", rows)


if __name__ == "__main__":
    show(main)
