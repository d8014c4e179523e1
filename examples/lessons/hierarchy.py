"""Grid, blocks, warps and multiprocessors (SMs): where each block and each warp runs.

    python examples/lessons/hierarchy.py

A kernel asks the special registers `%smid` and `%warpid` (PTX ISA, "Special Registers") for its SM
and for the slot of its warp there. On a GPU the program asserts that a block stays on one SM, and
prints which blocks the first SMs got, in both languages.
Without a GPU one sees how threads are numbered into warps, and the instruction that would ask.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from lesson import DEVICE, ON_GPU, Table, call, compiled, show

# isort: split
import torch
import triton
import triton.language as tl

BLOCKS, THREADS, ROUNDS = 264, 256, 20_000  # two blocks for each SM of an H200
WARPS = THREADS // 32


@triton.jit
def where_kernel(places, ASKS: tl.constexpr):  # noqa: ANN001, ANN201
    block = tl.program_id(0)
    if ASKS:
        sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], tl.int32, False, 1)
    else:  # the interpreter has no assembler
        sm = 0
    tl.store(places + block, sm)


def places_cuda(blocks: int = BLOCKS, rounds: int = ROUNDS) -> torch.Tensor:
    """[block, warp, (SM, slot, first thread)], and that no block moved while it worked."""
    places = torch.full((blocks, WARPS, 3), -1, dtype=torch.int32, device=DEVICE)
    later = torch.full((blocks, WARPS), -1, dtype=torch.int32, device=DEVICE)
    call("hierarchy", "where", blocks, THREADS, rounds, places, later)
    assert torch.equal(later, places[:, :, 0]), "a warp has moved to another SM"
    assert (places[:, :, 0] == places[:, :1, 0]).all(), "a block's warps are on several SMs"
    return places.cpu()


def places_triton(blocks: int = BLOCKS) -> torch.Tensor:
    """The SM of each program."""
    places = torch.full((blocks,), -1, dtype=torch.int32, device=DEVICE)
    where_kernel[(blocks,)](places, ASKS=ON_GPU)
    return places.cpu()


def triton_asks() -> str:
    """The instruction in the Triton kernel's PTX."""
    from diglot.tools.resources import compile_stages
    from diglot.triton_ops.launch.plan import Specialization

    ptx = compile_stages(Specialization(where_kernel, (torch.int32,), (), (True,), 4)).stages["ptx"]
    return next(line.strip() for line in ptx.decode().splitlines() if "%smid" in line)


def warps_table(places: torch.Tensor) -> Table:
    """How the threads of the first blocks are numbered into warps."""
    rows = []
    for block in range(2):
        for warp in (0, 1, WARPS - 1):
            sm, slot, thread = places[block, warp].tolist()
            row = {"block": block, "warp": warp, "threads": f"{thread}..{thread + 31}"}
            rows.append({**row, "SM": sm if ON_GPU else None, "slot": slot if ON_GPU else None})
    return Table("CUDA C++: warps of the first two blocks", rows)


def blocks_table(language: str, of_block: list[int]) -> Table:
    """How many blocks came to how many SMs."""
    blocks = defaultdict(list)
    for block, sm in enumerate(of_block):
        blocks[sm].append(block)
    rows = [
        {"SM": sm, "its blocks": ", ".join(map(str, blocks[sm][:4])), "how many": len(blocks[sm])}
        for sm in sorted(blocks)[:4]
    ]
    return Table(f"{language}: {len(of_block)} blocks on {len(blocks)} SMs; the first ones", rows)


def main() -> Iterator[Table]:
    """Where warps and blocks run, in both languages."""
    places = places_cuda() if ON_GPU else places_cuda(blocks=4, rounds=1)
    yield warps_table(places)
    if ON_GPU:
        yield blocks_table("CUDA C++", places[:, 0, 0].tolist())
        yield blocks_table("Triton", places_triton().tolist())
    yield Table("Triton asks by", [{"PTX": compiled(triton_asks)}])


if __name__ == "__main__":
    show(main)
