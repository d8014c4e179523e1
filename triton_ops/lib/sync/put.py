"""An all-reduce by stores in other ranks' memory. Twin of csrc/include/diglot/sync/put.cuh."""

from __future__ import annotations

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.plan import Operand
from diglot.triton_ops.lib.sync import signal
from diglot.triton_ops.lib.sync.exchange import (
    PULL_REGISTERS,
    PULL_WARPS,
    THREADS,
    Rooms,
    copy,
    launch_of,
    most_programs,
    take_tile,
    tile_of,
)


@triton.jit
def received(here, rank, sender: tl.constexpr, place):
    """Where the data of a sender lie, behind address `here` in this rank's buffer."""
    return here + tl.where(rank < sender, sender - 1, sender) * place


@triton.jit
def put_tile(space, input, rank, buffer, place, begin, n, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """Stores a tile of the input in the buffers of all peers."""
    DTYPE: tl.constexpr = input.dtype.element_ty
    for turn in range(1, RANKS):  # not all ranks store to one at once
        peer = (rank + turn) % RANKS
        target = tl.load(space + peer) + buffer + tl.where(rank > peer, rank - 1, rank) * place
        target = target.to(tl.pointer_type(DTYPE))
        if begin + BLOCK <= n:
            copy(input, target, begin, n, True, BLOCK, True)
        else:
            copy(input, target, begin, n, False, BLOCK, True)


@triton.jit
def put_and_reduce(
    space, input, out, rank, first, n, staging, buffer_bytes, call, source, patience,
    RANKS: tl.constexpr, OP: tl.constexpr, NUMBER: tl.constexpr, BLOCK: tl.constexpr,
    THREADS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """Each rank stores its data in the buffers of all peers, and reduces what arrives. No rank
    reads another's memory.

    Half of the programs store, and signal after each tile. The others wait for the tiles of one
    such program of all ranks. Their own rank is one of them, so `out` may be the input. Each tile
    of a program takes an epoch. Their number is odd, so that launches use the two buffers by turns.
    A sender has a place of its own in each peer's buffer.
    """
    programs = tl.num_programs(0)
    program, pairs = tl.program_id(0), tl.maximum(programs // 2, 1)
    tiles = (n + BLOCK - 1) // BLOCK
    peers = signal.peers(space, rank, RANKS, THREADS, True)
    epoch, patience = signal.begin(space, patience, (tiles + pairs - 1) // pairs | 1)
    input += first
    out += first
    place = buffer_bytes // (RANKS - 1 if RANKS > 1 else 1) // 16 * 16
    buffer = staging + (epoch & 1) * buffer_bytes
    if (program < pairs) & (patience != signal.NONE):
        for tile in range(program, tiles, pairs):
            put_tile(space, input, rank, buffer, place, tile * BLOCK, n, RANKS, BLOCK)
            now = epoch + tile // pairs
            signal.arrive(space, peers, signal.CLOSING, rank, call, now, patience)
    storing = tl.where(programs == 1, 0, program - pairs)
    if (storing >= 0) & (storing < pairs):
        here = space.to(tl.int64, bitcast=True) + buffer
        sources = (
            received(here, rank, 0, place), received(here, rank, 1, place),
            received(here, rank, 2, place), received(here, rank, 3, place),
            received(here, rank, 4, place), received(here, rank, 5, place),
            received(here, rank, 6, place), received(here, rank, 7, place),
        )  # fmt: skip
        own = input.to(tl.int64, bitcast=True)
        for tile in range(storing, tiles, pairs):
            now, begin = epoch + tile // pairs, tile * BLOCK
            has_met = signal.wait_for(
                storing, space, peers, signal.CLOSING, rank, NUMBER, call, now, patience
            )  # fmt: skip
            if begin + BLOCK <= n:
                take_tile(
                    sources, 0, 0, own, rank, out, 0, 0, begin, n, n, has_met, RANKS, OP, False,
                    False, True, BLOCK, True,
                )  # fmt: skip
            else:
                take_tile(
                    sources, 0, 0, own, rank, out, 0, 0, begin, n, n, has_met, RANKS, OP, False,
                    False, False, BLOCK, True,
                )  # fmt: skip


def plan_put(
    workspace: Operand,
    input: Operand,
    out: Operand,
    rank: int,
    ranks: int,
    rooms: Rooms,
    blocks: int,
    *,
    op: int,
) -> Plan:
    """Plans an all-reduce by puts. Where a buffer does not hold what all peers send, they take
    several launches.
    """
    if not input.is_aligned:
        raise ValueError("distributed: what is put begins at a multiple of 16 bytes")
    size, n = input.element_size(), input.numel()
    longest = rooms.most_staged // max(ranks - 1, 1) // 16 * 16 // size
    pairs = most_programs(blocks, out) // 2
    launches = []
    for first in range(0, n, longest):
        count = min(longest, n - first)
        tile = tile_of(count, size, ranks)
        programs = min(triton.cdiv(count, tile), max(pairs, 1)) * (2 if pairs else 1)
        launches.append(
            launch_of(
                put_and_reduce,
                programs,
                programs,
                (workspace, input, out),
                (rank, first, count, rooms.staging, rooms.most_staged),
                (ranks, op, op, tile, THREADS),
                PULL_WARPS,
                PULL_REGISTERS,
            )
        )
    return Plan("put", tuple(launches), None)
