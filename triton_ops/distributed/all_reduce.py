"""The sum, or the maximum or minimum, of a tensor over all ranks of a group: kernels and launcher.
Twin of csrc/ops/distributed/all_reduce.cu.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import NOTHING, Launch, Operand, Unseen
from diglot.triton_ops.lib.sync import signal
from diglot.triton_ops.lib.types import convert

OPS = {"sum": 0, "avg": 1, "max": 2, "min": 3}
AVG, MAX, MIN = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
PUSH_WARPS, PULL_WARPS = 16, 8
THREADS = 32 * PULL_WARPS
PAIRS = 32 * PUSH_WARPS  # of four bytes each, that a program pushes at once
# Of a thread: two programs fit on an SM, so that all programs of two groups run at once.
PUSH_REGISTERS, PULL_REGISTERS = 64, 128
ACCESSES = 4  # of 16 bytes, that a thread of a pull makes to each rank's memory at once, at most
FEW_TILES = 128  # where there are fewer tiles, each has fewer accesses


@triton.jit
def step(a, b, OP: tl.constexpr):
    """One step of a reduction in the order of ranks. NaN goes on, as in torch.maximum."""
    if OP == MAX:
        return tl.where((a > b) | (a != a), a, b)
    elif OP == MIN:  # noqa: RET505 - Triton compiles what follows a `return`
        return tl.where((a < b) | (a != a), a, b)
    else:
        return a + b


@triton.jit
def finish(value, DTYPE: tl.constexpr, OP: tl.constexpr, RANKS: tl.constexpr):
    if OP == AVG:
        value = tl.div_rn(value, tl.full(value.shape, RANKS, tl.float32))
    return convert(value, DTYPE)


@triton.jit
def unpack(word, DTYPE: tl.constexpr):
    """The elements in 32 bits, in float32: a tuple of one or two."""
    if DTYPE == tl.float32:
        return (word.to(tl.float32, bitcast=True),)
    elif DTYPE == tl.bfloat16:  # noqa: RET505
        low, high = word << 16, word & -65536
        return low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
    else:
        low, high = word.to(tl.int16), (word >> 16).to(tl.int16)
        return (
            low.to(DTYPE, bitcast=True).to(tl.float32),
            high.to(DTYPE, bitcast=True).to(tl.float32),
        )


@triton.jit
def half(array, i, n):
    """The bits of a 16-bit element, or 0 behind the end."""
    bits = tl.load(array + i, mask=i < n, other=0)
    return bits.to(tl.int16, bitcast=True).to(tl.int32) & 65535


@triton.jit
def load_pair(array, i, n, IS_WHOLE: tl.constexpr):
    """The i-th 8 bytes of an array, as two int32; zeros behind its end.

    IS_WHOLE: it begins at a multiple of 8 bytes, and its size is one.
    """
    ELEMENT: tl.constexpr = array.dtype.element_ty
    if IS_WHOLE:
        COUNT: tl.constexpr = 64 // ELEMENT.primitive_bitwidth
        bits = tl.load(array.to(tl.pointer_type(tl.int64)) + i, mask=i < n // COUNT, other=0)
        return bits.to(tl.int32), (bits >> 32).to(tl.int32)
    elif ELEMENT == tl.float32:  # noqa: RET505
        low = tl.load(array + 2 * i, mask=2 * i < n, other=0)
        high = tl.load(array + 2 * i + 1, mask=2 * i + 1 < n, other=0)
        return low.to(tl.int32, bitcast=True), high.to(tl.int32, bitcast=True)
    else:
        return (
            half(array, 4 * i, n) | half(array, 4 * i + 1, n) << 16,
            half(array, 4 * i + 2, n) | half(array, 4 * i + 3, n) << 16,
        )


@triton.jit
def reduce_word(sums, word, DTYPE: tl.constexpr, OP: tl.constexpr):
    """The reduction of the elements in one more rank's 32 bits; `sums` is () before the first."""
    values = unpack(word, DTYPE)
    if len(sums) == 0:
        return values
    elif len(values) == 1:  # noqa: RET505
        return (step(sums[0], values[0], OP),)
    else:
        return step(sums[0], values[0], OP), step(sums[1], values[1], OP)


@triton.jit
def bits_of(values, DTYPE: tl.constexpr, OP: tl.constexpr, RANKS: tl.constexpr):
    """The results as 32 bits."""
    low = finish(values[0], DTYPE, OP, RANKS)
    if len(values) == 1:
        return low.to(tl.int32, bitcast=True)
    else:  # noqa: RET505
        high = finish(values[1], DTYPE, OP, RANKS)
        upper = high.to(tl.int16, bitcast=True).to(tl.int32) << 16
        return low.to(tl.int16, bitcast=True).to(tl.int32) & 65535 | upper


@triton.jit
def store_pair(
    out, i, n, low, high, OP: tl.constexpr, RANKS: tl.constexpr, IS_WHOLE: tl.constexpr
):  # fmt: skip
    """Stores the results of the i-th 8 bytes. The array begins at a multiple of 8 bytes."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    COUNT: tl.constexpr = 64 // DTYPE.primitive_bitwidth
    if IS_WHOLE:
        bits = bits_of(low, DTYPE, OP, RANKS).to(tl.uint32, bitcast=True).to(tl.int64)
        bits |= bits_of(high, DTYPE, OP, RANKS).to(tl.int64) << 32
        tl.store(out.to(tl.pointer_type(tl.int64)) + i, bits, mask=i < n // COUNT)
    else:
        for half_pair in tl.static_range(2):
            for e in tl.static_range(COUNT // 2):
                place = i * COUNT + half_pair * (COUNT // 2) + e
                value = finish((low if half_pair == 0 else high)[e], DTYPE, OP, RANKS)
                tl.store(out + place, value, mask=place < n)


@triton.jit
def or_nan(values, is_there):
    """NaN where a peer's data lack."""
    if len(values) == 1:
        return (tl.where(is_there, values[0], float("nan")),)
    else:  # noqa: RET505
        return (
            tl.where(is_there, values[0], float("nan")),
            tl.where(is_there, values[1], float("nan")),
        )


@triton.jit
def all_reduce_push(
    space, input, out, rank, n, packets, slot_bytes, call, source, patience,
    RANKS: tl.constexpr, OP: tl.constexpr, IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr,
    PHASE: tl.constexpr,
):  # fmt: skip
    """Each rank writes its data to all peers as packets, and reduces what arrives."""
    DTYPE: tl.constexpr = input.dtype.element_ty
    COUNT: tl.constexpr = 64 // DTYPE.primitive_bitwidth
    pairs = (n + COUNT - 1) // COUNT
    start = tl.program_id(0).to(tl.int64) * BLOCK
    turn = tl.num_programs(0).to(tl.int64) * BLOCK
    # These loads are in flight while the epoch is.
    targets = signal.places(space, packets + rank * slot_bytes, RANKS)
    low, high = load_pair(input, start + tl.arange(0, BLOCK), n, IS_WHOLE)
    epoch, patience = signal.begin(space, patience)
    flag = signal.flag_of(epoch)
    parity = (epoch & 1) * RANKS * slot_bytes
    for begin in range(start, pairs, turn):
        i = begin + tl.arange(0, BLOCK)
        for peer in tl.static_range(RANKS):
            is_sent = (i < pairs) & (peer != rank)
            signal.send_packets(targets[peer] + parity + 16 * i, low, high, flag, is_sent)
        low, high = load_pair(input, i + turn, n, IS_WHOLE)
    missing = tl.full((BLOCK,), -1, tl.int32)
    own = space.to(tl.int64, bitcast=True) + packets + parity
    for begin in range(start, pairs, turn):
        i = begin + tl.arange(0, BLOCK)
        own_low, own_high = load_pair(input, i, n, IS_WHOLE)
        low_sums, high_sums = (), ()
        for sender in tl.static_range(RANKS):
            low, high, has_come = signal.await_packets(
                own + sender * slot_bytes + 16 * i, flag, (i < pairs) & (sender != rank),
                tl.where(missing < 0, patience, 0),
            )  # fmt: skip
            missing = tl.where(has_come == 0, sender, missing)
            low = tl.where(sender == rank, own_low, low)
            high = tl.where(sender == rank, own_high, high)
            low_sums = reduce_word(low_sums, low, DTYPE, OP)
            high_sums = reduce_word(high_sums, high, DTYPE, OP)
        low_sums, high_sums = or_nan(low_sums, missing < 0), or_nan(high_sums, missing < 0)
        store_pair(out, i, n, low_sums, high_sums, OP, RANKS, IS_WHOLE)
    late = tl.max(missing)
    if late >= 0:
        signal.give_up(space, rank, OP, epoch, late, late < 0)


@triton.jit
def tile_at(array, begin, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr):
    """Pointers to a tile. IS_ALIGNED: it begins at a multiple of 16 bytes."""
    first = array + begin
    if IS_ALIGNED:
        first = tl.multiple_of(first, 16)
    return first + tl.arange(0, BLOCK)


@triton.jit
def copy(
    source, target, begin, n, IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr
):  # fmt: skip
    """Copies one tile."""
    sources = tile_at(source, begin, BLOCK, IS_ALIGNED)
    targets = tile_at(target, begin, BLOCK, True)
    if IS_WHOLE:
        tl.store(targets, tl.load(sources))
    else:
        is_there = begin + tl.arange(0, BLOCK) < n
        tl.store(targets, tl.load(sources, mask=is_there), mask=is_there)


@triton.jit
def load_tile(
    address, begin, n, IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr
):  # fmt: skip
    """A tile of a rank's data, in float32."""
    array = address.to(tl.pointer_type(DTYPE))
    pointers = tile_at(array, begin, BLOCK, True)
    if IS_WHOLE:
        return tl.load(pointers).to(tl.float32)
    else:  # noqa: RET505
        is_there = begin + tl.arange(0, BLOCK) < n
        return tl.load(pointers, mask=is_there, other=0).to(tl.float32)


@triton.jit
def reduce_tile(
    sources, offset, out, begin, n, has_met,
    RANKS: tl.constexpr, OP: tl.constexpr, IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = out.dtype.element_ty
    total = load_tile(sources[0] + offset, begin, n, IS_WHOLE, BLOCK, DTYPE)
    for rank in tl.static_range(1, RANKS):
        tile = load_tile(sources[rank] + offset, begin, n, IS_WHOLE, BLOCK, DTYPE)
        total = step(total, tile, OP)
    value = finish(tl.where(has_met, total, float("nan")), DTYPE, OP, RANKS)
    targets = tile_at(out, begin, BLOCK, True)
    if IS_WHOLE:
        tl.store(targets, value)
    else:
        tl.store(targets, value, mask=begin + tl.arange(0, BLOCK) < n)


@triton.jit
def all_reduce_pull(
    space, input, out, rank, first, n, staging, buffer_bytes, call, source, patience,
    RANKS: tl.constexpr, OP: tl.constexpr, IS_STAGED: tl.constexpr, IS_ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr, THREADS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """Each rank reads all ranks' data and reduces them."""
    peers = signal.peers(space, rank, RANKS, THREADS)
    sources = signal.places(space, 0 if IS_STAGED else source, RANKS)
    epoch, patience = signal.begin(space, patience)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    turn = tl.num_programs(0).to(tl.int64) * BLOCK
    # Masks would take registers in the loops, so the rest, less than a tile, lies outside of them.
    whole = n // BLOCK * BLOCK
    has_rest = whole < n and whole % turn == start
    buffer = staging * 0
    if IS_STAGED:
        buffer = staging + (epoch & 1) * buffer_bytes
        address = space.to(tl.int64, bitcast=True) + buffer
        target = address.to(tl.pointer_type(input.dtype.element_ty))
        for begin in range(start, whole, turn):
            copy(input + first, target, begin, n, True, BLOCK, IS_ALIGNED)
        if has_rest:
            copy(input + first, target, whole, n, False, BLOCK, IS_ALIGNED)
    has_met = signal.meet(space, peers, signal.OPENING, rank, OP, call, epoch, patience)
    for begin in range(start, whole, turn):
        reduce_tile(sources, buffer, out + first, begin, n, has_met, RANKS, OP, True, BLOCK)
    if has_rest:
        reduce_tile(sources, buffer, out + first, whole, n, has_met, RANKS, OP, False, BLOCK)
    if not IS_STAGED:
        signal.meet(space, peers, signal.CLOSING, rank, OP, call, epoch, patience)


def numbers(_: Any, call: int, source: int, patience: int) -> tuple[int, ...]:
    """The kernels' numbers. They reach other ranks' workspaces by addresses in their own."""
    return call, source, patience


@launcher
def all_reduce(
    workspaces: Unseen,
    workspace: Operand,
    input: Operand,
    group: str,
    op: str,
    protocol: str,
    rank: int,
    ranks: int,
    packets: int,
    most_pushed: int,
    staging: int,
    most_staged: int,
    blocks: int,
    call: Unseen,
    source: Unseen,
    patience: Unseen,
    out: Operand,
) -> Plan:
    """Reduces `input` over the ranks of a workspace into `out`, which no peer reads.

    Args:
        workspaces: what kernels reach through addresses.
        workspace: int64, this rank's workspace.
        op: "sum", "avg", "max" or "min".
        group: the name of the group; kernels do not need it.
        protocol: "push", "pull" (staged), or "in place": all ranks' inputs lie at byte `source` of
            their workspaces.
        packets, most_pushed: where push's slots begin, and the bytes of data that one holds.
        staging, most_staged: where the two buffers of a staged pull begin, and their bytes. Longer
            inputs take several launches.
        blocks: programs of a launch at most; 0: one per SM.
        call: a number of 16 bits, equal for calls that fit each other.
        patience: of a wait, in nanoseconds.
    """
    n, size, device = input.numel(), input.element_size(), out.device
    if n == 0:
        return NOTHING
    if op not in OPS:
        raise ValueError("all_reduce: op must be sum, avg, max or min")
    bytes = n * size
    is_push, is_in_place = protocol == "push", protocol == "in place"
    if is_push and bytes > most_pushed:
        raise ValueError("all_reduce: more bytes than a slot of packets holds")

    most_programs = min(blocks or device.multiprocessors, signal.MOST_PROGRAMS.value)
    if is_push:
        pairs = triton.cdiv(bytes, 8)
        launch = Launch(
            all_reduce_push,
            (device.programs(min(triton.cdiv(pairs, PAIRS), most_programs), 1),),
            (workspace, input, out),
            (rank, n, packets, 2 * most_pushed),
            (ranks, OPS[op], input.address in (0, 8) and bytes % 8 == 0, PAIRS),
            PUSH_WARPS,
            numbers,
            phases=1,
            per_multiprocessor=1,
            max_registers=PUSH_REGISTERS,
        )
        return Plan("push", (launch,), None)
    most = n if is_in_place else most_staged // size
    accesses = ACCESSES
    while accesses > 1 and min(most, n) * size < FEW_TILES * THREADS * accesses * 16:
        accesses //= 2
    tile = THREADS * accesses * 16 // size
    launches = tuple(
        Launch(
            all_reduce_pull,
            (device.programs(min(triton.cdiv(part, tile), most_programs), 1),),
            (workspace, input, out),
            (rank, first, part, staging, most_staged),
            (ranks, OPS[op], not is_in_place, input.is_aligned, tile, THREADS),
            PULL_WARPS,
            numbers,
            phases=1,
            per_multiprocessor=1,
            max_registers=PULL_REGISTERS,
        )
        for first in range(0, n, most)
        for part in (min(most, n - first),)
    )
    return Plan("pull in place" if is_in_place else "pull", launches, None)
