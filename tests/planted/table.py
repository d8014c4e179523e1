"""The table of planted bugs of asynchronous machinery: each one's kernel, and its messages.

    python tests/planted/table.py

prints it, as docs/interpreter.md has it. What a GPU and compute-sanitizer say comes from
bench/comparisons/*-planted-bugs.json, which on_gpu.py writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent
RESULTS = "bench/comparisons/*-planted-bugs.json"


@dataclass(frozen=True)
class Right:
    """A right kernel: its input, how it is launched, and its first results."""

    file: str
    kernel: str
    launch: Mapping[str, int]  # keywords of library.options
    values: torch.Tensor
    expected: torch.Tensor

    @property
    def name(self) -> str:
        return f"{self.file}.{self.kernel}"

    @property
    def source(self) -> Path:
        return FOLDER / f"{self.file}.cu"

    def is_right(self, out: torch.Tensor) -> bool:
        return torch.equal(out[: len(self.expected)], self.expected)


@dataclass(frozen=True)
class Bug:
    """A planted bug. The interpreter says one of `said`, by the order of threads and copies; in 200
    seeds it says each. Where that is empty, it says nothing, and the results are wrong."""

    what: str
    kernel: str
    right: Right
    said: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.right.file}.{self.kernel}"


def integers(count: int) -> torch.Tensor:
    """Small ones, whose products are exact."""
    return torch.randint(-8, 9, (count,), generator=torch.Generator().manual_seed(0)).float()


# bulk_copies.cu: two blocks sum, or double, 8 tiles of 8 x 32 each.
TILES = (torch.arange(2 * 8 * 8 * 32) % 61).float()
TILE_SUMS = TILES.view(2, -1).sum(1)
SUM = Right("bulk_copies", "sum_tiles", {"blocks": 2, "threads": 160}, TILES, TILE_SUMS)
STORE_LAUNCH = {"blocks": 32 + len(TILES), "threads": 128}  # a block for each result; two run
STORE = Right("bulk_copies", "store_tiles", STORE_LAUNCH, TILES, 2 * TILE_SUMS)
LOAD = Right(
    "bulk_copies",
    "load_what_was_written",
    STORE_LAUNCH,
    TILES,
    2 * TILES.view(-1, 8 * 32).sum(1)[:2],
)

# product.cu: A of 64 x 320 and B of 320 x 64, of whose depth 296 count.
OPERANDS = integers(2 * 64 * 320)
A, B = OPERANDS[: 64 * 320].view(64, 320), OPERANDS[64 * 320 :].view(320, 64)
PRODUCT = Right(
    "product",
    "product",
    {"blocks": 64 * 64, "threads": 160, "shared": 1 << 15},
    OPERANDS.bfloat16().view(torch.float32),
    (A[:, :296] @ B[:296]).flatten(),
)

# wgmma.cu: the kernel counts wrong sums.
WGMMA_LAUNCH = {"blocks": 1, "threads": 128, "shared": 1 << 17}
WGMMA = Right("wgmma", "right", WGMMA_LAUNCH, integers(80_000), torch.zeros(1))

# mbarriers.cu and tma.cu: sums of 256 values, and tiles of as many, for each block.
RAMP = torch.arange(8 * 256).float()
BLOCK_SUMS = RAMP.view(8, 256).sum(1)
REGISTERS = Right("mbarriers", "move_registers", {"blocks": 8, "threads": 384}, RAMP, BLOCK_SUMS)
COPIES = Right("mbarriers", "copy_in_groups", {"blocks": 8}, RAMP, BLOCK_SUMS)
CLUSTER_LAUNCH = {"blocks": 8, "cluster": 2, "patience_ms": 10_000}
OF_THE_OTHER = BLOCK_SUMS.view(4, 2).flip(1).flatten()
HALVES = Right("mbarriers", "cluster_in_halves", CLUSTER_LAUNCH, RAMP, OF_THE_OTHER)
ARRIVALS = Right("mbarriers", "arrive_in_cluster", CLUSTER_LAUNCH, RAMP, OF_THE_OTHER)
MESSAGES = Right("mbarriers", "send_in_cluster", CLUSTER_LAUNCH, RAMP, OF_THE_OTHER)
TMA_LAUNCH = {"blocks": len(RAMP), "threads": 256, "shared": 2048}
MULTICAST = Right(
    "tma",
    "share_tile",
    {**TMA_LAUNCH, "cluster": 2, "patience_ms": 10_000},
    RAMP,
    RAMP.view(8, 256)[::2].repeat_interleave(2, 0).flatten(),
)
SWIZZLED = Right(
    "tma", "add_number", TMA_LAUNCH, RAMP, (RAMP.view(8, 256) + torch.arange(256)).flatten()
)

RACE = "a race in shared memory"
UNWRITTEN = "shared memory is read that no thread of the block has written"
MISSED = "two phases of an mbarrier ended while a thread waited for the first"
MANY = "arrivals more than its"
TOUCHED = "accumulators are touched before the wgmma_wait() that covers"
PROXY = "a proxy fence is missing"
GLOBAL_PROXY = "a proxy fence is missing in global memory"
UNLIKE = "all threads of a warpgroup must execute the same"
PATTERN = "is not in the first line of the swizzle's pattern"
LEFT = "leaves its cluster early"
ORDER = "reads a tile in another order than the bulk load at"
NO_INIT = "an mbarrier is used that is not initialised"

BUGS = [
    Bug("no wait for a tile", "wait_missing", SUM, (RACE, MISSED, MANY)),
    Bug("a wait behind the reads", "wait_late", SUM, (RACE,)),
    Bug("a wait for the tile before", "wait_early", SUM, (RACE, MISSED, MANY)),
    Bug("no wait for `cp.async`", "copies_without_wait", COPIES, (RACE, UNWRITTEN)),
    Bug(
        "a wait for too few groups of `cp.async`",
        "copies_of_too_few_groups",
        COPIES,
        (RACE, UNWRITTEN),
    ),
    Bug("a stage released before it is read", "released_early", SUM, (RACE,)),
    Bug(
        "a stage released before the wgmma that reads it is done",
        "released_before_wgmma",
        PRODUCT,
        (RACE,),
    ),
    Bug(
        "a tile overwritten before the wgmma that reads it is done",
        "overwritten_early",
        WGMMA,
        (RACE,),
    ),
    Bug("no proxy fence before a TMA store", "no_fence_before_store", STORE, (PROXY,)),
    Bug(
        "no proxy fence between writes to global memory and a bulk load of them",
        "no_global_fence",
        LOAD,
        (GLOBAL_PROXY,),
    ),
    Bug(
        "a proxy fence for shared memory, where global memory needs one",
        "fence_of_shared_memory",
        LOAD,
        (GLOBAL_PROXY,),
    ),
    Bug("no proxy fence before wgmma", "proxy_fence_missing", WGMMA, (PROXY,)),
    Bug(
        "no proxy fence between reads and a TMA load",
        "no_fence_after_read",
        SUM,
        ("a generic read before an async write without a proxy fence",),
    ),
    Bug("no `__syncthreads` before a TMA store", "no_barrier_before_store", STORE, (RACE,)),
    Bug("no `__syncthreads` before wgmma", "barrier_missing", WGMMA, (RACE,)),
    Bug(
        "a phase's parity that does not flip",
        "parity_not_flipped",
        SUM,
        (RACE, MISSED, "1 of 1 arrivals pending"),
    ),
    Bug("expected bytes half a tile short", "bytes_short", SUM, ("expected 512 bytes, got 1024",)),
    Bug(
        "expected bytes one tile short",
        "tile_short",
        PRODUCT,
        (RACE, UNWRITTEN, "expected 8192 bytes, got 16384"),
    ),
    Bug("an arrival twice", "arrival_twice", SUM, (MANY,)),
    Bug(
        "an mbarrier that is not initialised",
        "not_initialised",
        SUM,
        (NO_INIT,),
    ),
    Bug(
        "an mbarrier's init without its fence",
        "no_init_fence",
        SUM,
        ("fence_mbarrier_init() is missing",),
    ),
    Bug(
        "a last tile that nobody waits for",
        "ends_early",
        SUM,
        ("before a bulk load", "before the block's end"),
    ),
    Bug(
        "a `.read` wait where the full one is needed",
        "only_read",
        STORE,
        ("a race in global memory",),
    ),
    Bug("no wait between stores from one buffer", "no_wait_after_store", STORE, (RACE,)),
    Bug("a store that is not committed", "store_not_committed", STORE, (RACE,)),
    Bug("a stage at no multiple of 128", "misaligned_stage", SUM, ("no multiple of 128",)),
    Bug(
        "a stage in the middle of its swizzle's pattern",
        "misaligned_stage",
        SWIZZLED,
        ("no multiple of 1024, after which a 128-byte swizzle repeats",),
    ),
    Bug("an operand in the middle of its swizzle's pattern", "misaligned", WGMMA, (PATTERN,)),
    Bug(
        "a block that ends before its store has read",
        "ends_before_its_store",
        SWIZZLED,
        ("ends before a bulk store of 1024 bytes is complete", "nothing orders that before"),
    ),
    Bug("a tile read as if it had no swizzle", "no_swizzle", SWIZZLED, ()),
    Bug("a tile loaded without its descriptor's swizzle", "other_swizzle", PRODUCT, (ORDER,)),
    Bug(
        "a descriptor of another swizzle, at an address that it forbids",
        "wrong_swizzle",
        WGMMA,
        (PATTERN,),
    ),
    Bug("a stride offset that leads to other written bytes", "half_stride", PRODUCT, (ORDER,)),
    Bug("a stride offset that leads to unwritten bytes", "wrong_stride", WGMMA, (UNWRITTEN,)),
    Bug("a leading offset that leads to other written bytes", "short_leading", PRODUCT, (ORDER,)),
    Bug(
        "a leading offset that leads out of shared memory",
        "far_leading",
        PRODUCT,
        ("bytes out of bounds are read",),
    ),
    Bug(
        "descriptors that differ within a warpgroup",
        "descriptor_differs",
        WGMMA,
        ("a descriptor of A that differs from another",),
    ),
    Bug(
        "half a warpgroup at wgmma",
        "half_warpgroup",
        WGMMA,
        ("by 64 of the 128 threads of a warpgroup",),
    ),
    Bug(
        "no `wgmma_fence` before the first product",
        "fence_missing",
        WGMMA,
        ("wgmma before any wgmma_fence() of the thread",),
    ),
    Bug("a `wgmma_fence` for half of a warp", "fence_diverges", WGMMA, (UNLIKE,)),
    Bug("a `wgmma_commit` for half of a warp", "commit_diverges", WGMMA, (UNLIKE,)),
    Bug(
        "a `wgmma_wait` for half of a warpgroup",
        "wait_diverges",
        WGMMA,
        ("was executed by 64 of the 128 threads of a warpgroup",),
    ),
    Bug("accumulators touched before the wait", "touched_before_wait", WGMMA, (TOUCHED,)),
    Bug(
        "accumulators touched after a wait for too few groups",
        "wait_for_older",
        WGMMA,
        (RACE,),
    ),
    Bug("a K tail that is not masked", "tail_unmasked", PRODUCT, ("padding is read",)),
    Bug(
        "registers that do not add up",
        "too_many_registers",
        REGISTERS,
        ("168 registers a thread asks for 232, which takes 2048 registers",),
    ),
    Bug(
        "no wait at a cluster's barrier",
        "cluster_without_wait",
        HALVES,
        ("a second arrival", "of a block that may not run yet"),
    ),
    Bug(
        "another block's mbarrier used, where no cluster's barrier follows its init",
        "arrive_after_early_barrier",
        ARRIVALS,
        (RACE, NO_INIT),
    ),
    Bug(
        "an init without its fence before a relaxed arrival at the cluster's barrier",
        "arrive_without_init_fence",
        ARRIVALS,
        (RACE,),
    ),
    Bug(
        "a wait of the block's scope for another block's arrival",
        "wait_of_block_scope",
        ARRIVALS,
        ("is too narrow to order them",),
    ),
    Bug(
        "a multicast to mbarriers, where no cluster's barrier follows their init",
        "multicast_after_early_barrier",
        MULTICAST,
        (RACE, NO_INIT),
    ),
    Bug(
        "a block that leaves its cluster before a message", "leave_cluster_early", MESSAGES, (LEFT,)
    ),
    Bug(
        "a block that leaves its cluster before a multicast",
        "leaves_cluster_early",
        MULTICAST,
        (LEFT,),
    ),
]
RIGHT = list({bug.right.name: bug.right for bug in BUGS}.values())


def results() -> dict[str, list[str]]:
    """Of each bug that ran on a GPU: what a plain run gave, and what compute-sanitizer said."""
    files = sorted(FOLDER.parent.parent.glob(RESULTS))
    return json.loads(files[-1].read_text())["bugs"] if files else {}


def said(bug: Bug) -> str:
    if not bug.said:
        return "nothing: the result is wrong"
    return ", or ".join(f"`{message}`" for message in bug.said)


def markdown() -> str:
    lines = [
        "| planted bug | the interpreter says | a plain run on a GPU | compute-sanitizer |",
        "|---|---|---|---|",
    ]
    measured = results()
    for bug in BUGS:
        on_gpu = measured.get(bug.name, ["not run yet", "not run yet"])
        lines.append("| " + " | ".join([bug.what, said(bug), *on_gpu]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
