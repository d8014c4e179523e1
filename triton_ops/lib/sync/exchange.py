"""The exchange of data between ranks: by a push of packets, by a pull from workspaces, or by two
shots. Twin of csrc/include/diglot/sync/exchange.cuh.

Each rank takes n elements of every rank, and reduces them, or stores them one behind the other. All
read the same elements, or rank r reads part r of several parts. Part p begins `pitch` elements
behind part p - 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.plan import Launch, Operand
from diglot.triton_ops.lib.sync import signal
from diglot.triton_ops.lib.types import convert

OPS = {"sum": 0, "avg": 1, "max": 2, "min": 3}
SUM, AVG, MAX, MIN, GATHER = (tl.constexpr(op) for op in range(5))
PUSH_WARPS, PULL_WARPS = 16, 8
THREADS = 32 * PULL_WARPS
PAIRS = 32 * PUSH_WARPS  # of four bytes each, that a program pushes at once
# Of a thread: two programs fit on an SM, so that all programs of two groups run at once.
PUSH_REGISTERS, PULL_REGISTERS = 64, 128
# Of 16 bytes, that a thread of a pull makes to each of two ranks' memory at once, at most. Of more
# ranks it makes fewer to each.
ACCESSES = 4
TWO_SHOTS = ("two shots", "two shots in place", "direct shots")
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
def load_word(array, first, n):
    """The 32 bits that begin at element `first`; zeros behind the end."""
    SIZE: tl.constexpr = array.dtype.element_ty.primitive_bitwidth
    INTEGER: tl.constexpr = tl.int32 if SIZE == 32 else (tl.int16 if SIZE == 16 else tl.int8)
    integers = array.to(tl.pointer_type(INTEGER))
    word = tl.load(integers + first, mask=first < n, other=0).to(tl.int32)
    if SIZE < 32:
        word &= (1 << SIZE) - 1
        for e in tl.static_range(1, 32 // SIZE):
            bits = tl.load(integers + first + e, mask=first + e < n, other=0).to(tl.int32)
            word |= (bits & ((1 << SIZE) - 1)) << (SIZE * e)
    return word


@triton.jit
def load_pair(array, i, n, IS_WHOLE: tl.constexpr):
    """The i-th 8 bytes of an array, as two int32; zeros behind its end.

    IS_WHOLE: it begins at a multiple of 8 bytes, and its size is one.
    """
    COUNT: tl.constexpr = 64 // array.dtype.element_ty.primitive_bitwidth
    if IS_WHOLE:
        bits = tl.load(array.to(tl.pointer_type(tl.int64)) + i, mask=i < n // COUNT, other=0)
        return bits.to(tl.int32), (bits >> 32).to(tl.int32)
    else:  # noqa: RET505
        return (
            load_word(array, COUNT * i, n),
            load_word(array, COUNT * i + COUNT // 2, n),
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
def joined(low, high):
    """Two words of 32 bits as one of 64."""
    return low.to(tl.uint32, bitcast=True).to(tl.int64) | high.to(tl.int64) << 32


@triton.jit
def store_pair(
    out, i, n, low, high, OP: tl.constexpr, RANKS: tl.constexpr, IS_WHOLE: tl.constexpr
):  # fmt: skip
    """Stores the results of the i-th 8 bytes. IS_WHOLE: as in `load_pair`."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    COUNT: tl.constexpr = 64 // DTYPE.primitive_bitwidth
    if IS_WHOLE:
        bits = joined(bits_of(low, DTYPE, OP, RANKS), bits_of(high, DTYPE, OP, RANKS))
        tl.store(out.to(tl.pointer_type(tl.int64)) + i, bits, mask=i < n // COUNT)
    else:
        for half_pair in tl.static_range(2):
            for e in tl.static_range(COUNT // 2):
                place = i * COUNT + half_pair * (COUNT // 2) + e
                value = finish((low if half_pair == 0 else high)[e], DTYPE, OP, RANKS)
                tl.store(out + place, value, mask=place < n)


@triton.jit
def store_bits(out, i, n, low, high, IS_WHOLE: tl.constexpr):
    """Stores the i-th 8 bytes as they are. IS_WHOLE: as in `load_pair`."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    SIZE: tl.constexpr = DTYPE.primitive_bitwidth
    COUNT: tl.constexpr = 64 // SIZE
    if IS_WHOLE:
        tl.store(out.to(tl.pointer_type(tl.int64)) + i, joined(low, high), mask=i < n // COUNT)
    else:
        for half_pair in tl.static_range(2):
            for e in tl.static_range(COUNT // 2):
                place = i * COUNT + half_pair * (COUNT // 2) + e
                value = ((low if half_pair == 0 else high) >> (SIZE * e)).to(DTYPE)
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
def exchange_push(
    space, input, out, rank, pitch, n, packets, slot_bytes, call, source, patience,
    RANKS: tl.constexpr, OP: tl.constexpr, NUMBER: tl.constexpr, HAS_PARTS: tl.constexpr,
    IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """Each rank writes its data to all peers as packets, and takes what arrives.

    HAS_PARTS: each peer gets its part of the input. NUMBER: the op's, in reports.
    """
    DTYPE: tl.constexpr = input.dtype.element_ty
    COUNT: tl.constexpr = 64 // DTYPE.primitive_bitwidth
    pairs = (n + COUNT - 1) // COUNT
    start = tl.program_id(0).to(tl.int64) * BLOCK
    turn = tl.num_programs(0).to(tl.int64) * BLOCK
    # These loads are in flight while the epoch is.
    targets = signal.places(space, packets + rank * slot_bytes, RANKS)
    mine = input
    if HAS_PARTS:
        mine = input + rank * pitch
    else:
        low, high = load_pair(input, start + tl.arange(0, BLOCK), n, IS_WHOLE)
    epoch, patience = signal.begin(space, patience)
    flag = signal.flag_of(epoch)
    parity = (epoch & 1) * RANKS * slot_bytes
    for begin in range(start, pairs, turn):
        i = begin + tl.arange(0, BLOCK)
        for peer in tl.static_range(RANKS):
            is_sent = (i < pairs) & (peer != rank)
            if HAS_PARTS:
                low, high = load_pair(input + peer * pitch, i, n, IS_WHOLE)
            signal.send_packets(targets[peer] + parity + 16 * i, low, high, flag, is_sent)
        if not HAS_PARTS:
            low, high = load_pair(input, i + turn, n, IS_WHOLE)
    missing = tl.full((BLOCK,), -1, tl.int32)
    own = space.to(tl.int64, bitcast=True) + packets + parity
    for begin in range(start, pairs, turn):
        i = begin + tl.arange(0, BLOCK)
        own_low, own_high = load_pair(mine, i, n, IS_WHOLE)
        low_sums, high_sums = (), ()
        for sender in tl.static_range(RANKS):
            low, high, has_come = signal.await_packets(
                own + sender * slot_bytes + 16 * i, flag, (i < pairs) & (sender != rank),
                tl.where(missing < 0, patience, 0),
            )  # fmt: skip
            missing = tl.where(has_come == 0, sender, missing)
            low = tl.where(sender == rank, own_low, low)
            high = tl.where(sender == rank, own_high, high)
            if OP == GATHER:
                low = tl.where(has_come == 0, -1, low)
                high = tl.where(has_come == 0, -1, high)
                store_bits(out + sender * pitch, i, n, low, high, IS_WHOLE)
            else:
                low_sums = reduce_word(low_sums, low, DTYPE, OP)
                high_sums = reduce_word(high_sums, high, DTYPE, OP)
        if OP != GATHER:
            low_sums, high_sums = or_nan(low_sums, missing < 0), or_nan(high_sums, missing < 0)
            store_pair(out, i, n, low_sums, high_sums, OP, RANKS, IS_WHOLE)
    late = tl.max(missing)
    if late >= 0:
        signal.give_up(space, rank, NUMBER, epoch, late, late < 0)


@triton.jit
def tile_at(array, begin, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr):
    """Pointers to a tile. IS_ALIGNED: it begins at a multiple of 16 bytes."""
    first = array + begin
    if IS_ALIGNED:
        first = tl.multiple_of(first, 16)
    return first + tl.arange(0, BLOCK)


@triton.jit
def is_before(begin, n, BLOCK: tl.constexpr):
    """Which elements of a tile lie before element n. With 64 bits each would take a register."""
    return tl.arange(0, BLOCK) < tl.maximum(tl.minimum(n - begin, BLOCK), 0).to(tl.int32)


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
        is_there = is_before(begin, n, BLOCK)
        tl.store(targets, tl.load(sources, mask=is_there), mask=is_there)


@triton.jit
def load_tile(
    address, begin, n, IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr
):  # fmt: skip
    """A tile of a rank's data."""
    array = address.to(tl.pointer_type(DTYPE))
    pointers = tile_at(array, begin, BLOCK, True)
    if IS_WHOLE:
        return tl.load(pointers)
    else:  # noqa: RET505
        return tl.load(pointers, mask=is_before(begin, n, BLOCK), other=0)


@triton.jit
def store_tile(
    out, begin, n, value,
    IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr,
):  # fmt: skip
    targets = tile_at(out, begin, BLOCK, IS_ALIGNED)
    if IS_WHOLE:
        tl.store(targets, value)
    else:
        tl.store(targets, value, mask=is_before(begin, n, BLOCK))


@triton.jit
def or_lacking(tile, has_met):
    """A NaN, or an integer with all bits, where a peer's data lack."""
    if tile.dtype.is_floating():  # the interpreter has no bfloat16 constants
        lacking = convert(tl.full(tile.shape, float("nan"), tl.float32), tile.dtype)
    else:
        lacking = -1
    return tl.where(has_met, tile, lacking)


@triton.jit
def take_tile(
    sources, offset, distance, own, rank, out, target, pitch, begin, n, end, has_met,
    RANKS: tl.constexpr, OP: tl.constexpr, TO_ALL: tl.constexpr, IS_CUT: tl.constexpr,
    IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr, IS_OUT_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Reduces a tile of all ranks, or stores each rank's. `own` is the address of this rank's.

    Rank r's data lie at offset + r * distance, in bytes. TO_ALL: a reduced tile goes to all ranks'
    outputs, at byte `target` of their workspaces. IS_CUT: of the last parts, nothing is stored
    behind element `end` of the output.
    """
    DTYPE: tl.constexpr = out.dtype.element_ty
    address = tl.where(rank == 0, own, sources[0] + offset)
    first = load_tile(address, begin, n, IS_WHOLE, BLOCK, DTYPE)
    if OP == GATHER:
        first = or_lacking(first, has_met)
        left = n
        if IS_CUT:
            left = tl.minimum(n, end)
        store_tile(out, begin, left, first, IS_WHOLE, BLOCK, IS_OUT_ALIGNED)
    else:
        total = first.to(tl.float32)
    for r in tl.static_range(1, RANKS):
        address = tl.where(rank == r, own, sources[r] + offset + r * distance)
        tile = load_tile(address, begin, n, IS_WHOLE, BLOCK, DTYPE)
        if OP == GATHER:
            tile, left = or_lacking(tile, has_met), n
            if IS_CUT:
                left = tl.minimum(n, end - r * pitch)
            store_tile(out + r * pitch, begin, left, tile, IS_WHOLE, BLOCK, IS_OUT_ALIGNED)
        else:
            total = step(total, tile.to(tl.float32), OP)
    if OP != GATHER:
        value = finish(tl.where(has_met, total, float("nan")), DTYPE, OP, RANKS)
        if TO_ALL:
            for r in tl.static_range(RANKS):
                theirs = (sources[r] + target).to(tl.pointer_type(DTYPE))
                store_tile(theirs, begin, n, value, IS_WHOLE, BLOCK, True)
        else:
            store_tile(out, begin, n, value, IS_WHOLE, BLOCK, IS_OUT_ALIGNED)


@triton.jit
def copy_share(source, target, n, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr):
    """Copies a program's share of n elements to an aligned array. Programs take tiles by turns."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    turn = tl.num_programs(0).to(tl.int64) * BLOCK
    # Masks would take registers in the loop, so the rest, less than a tile, lies outside of it.
    whole = n // BLOCK * BLOCK
    for begin in range(start, whole, turn):
        copy(source, target, begin, n, True, BLOCK, IS_ALIGNED)
    if whole < n and whole % turn == start:
        copy(source, target, whole, n, False, BLOCK, IS_ALIGNED)


@triton.jit
def take_share(
    sources, own, rank, offset, out, pitch, n, has_met,
    RANKS: tl.constexpr, OP: tl.constexpr, BLOCK: tl.constexpr, IS_OUT_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Takes n elements of every rank: the tiles that `copy_share` has copied.

    The arguments are those of `take_tile`.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    turn = tl.num_programs(0).to(tl.int64) * BLOCK
    whole = n // BLOCK * BLOCK
    for begin in range(start, whole, turn):
        take_tile(
            sources, offset, 0, own, rank, out, 0, pitch, begin, n, n, has_met, RANKS, OP, False,
            False, True, BLOCK, IS_OUT_ALIGNED,
        )  # fmt: skip
    if whole < n and whole % turn == start:  # masks would take registers in the loop
        take_tile(
            sources, offset, 0, own, rank, out, 0, pitch, whole, n, n, has_met, RANKS, OP, False,
            False, False, BLOCK, IS_OUT_ALIGNED,
        )  # fmt: skip


@triton.jit
def take_parts(
    sources, offset, distance, own, rank, out, target, pitch, n, end, has_met,
    RANKS: tl.constexpr, OP: tl.constexpr, TO_ALL: tl.constexpr, BLOCK: tl.constexpr,
    THREADS: tl.constexpr,
):  # fmt: skip
    """Takes n elements of every rank, of parts whose data end at element `end`. They lie one behind
    the other, except in a reduction, where `end` is n.

    The tiles are those of `copy_share`, and the arguments those of `take_tile`. A mask that is the
    same for each vector takes few registers. So vectors go first, and then single elements.
    """
    VECTOR: tl.constexpr = 128 // out.dtype.element_ty.primitive_bitwidth
    start = tl.program_id(0).to(tl.int64) * BLOCK
    turn = tl.num_programs(0).to(tl.int64) * BLOCK
    pitch = pitch // VECTOR * VECTOR  # as it is; the compiler sees that it is a multiple
    whole, last = n // VECTOR * VECTOR, end // VECTOR * VECTOR
    for begin in range(start, whole, turn):
        take_tile(
            sources, offset, distance, own, rank, out, target, pitch, begin, whole, last, has_met,
            RANKS, OP, TO_ALL, True, False, BLOCK, True,
        )  # fmt: skip
    rest = last % pitch
    if last < end and rest // BLOCK * BLOCK % turn == start:
        take_tile(
            sources, offset, distance, own, rank, out, target, pitch, rest, rest + end - last, end,
            has_met, RANKS, OP, TO_ALL, True, False, THREADS, True,
        )  # fmt: skip


@triton.jit
def fill_share(target, n, BLOCK: tl.constexpr, THREADS: tl.constexpr):
    """Fills the tiles of n elements that the program would take with NaN, an element of each thread
    at once.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    turn = tl.num_programs(0).to(tl.int64) * BLOCK
    value = convert(tl.full((THREADS,), float("nan"), tl.float32), target.dtype.element_ty)
    for tile in range(start, n, turn):
        for begin in range(tile, tl.minimum(tile + BLOCK, n), THREADS):
            store_tile(target, begin, n, value, False, THREADS, False)


@triton.jit
def elements_of(part, pitch, n):
    """How many of n elements lie in a part: `pitch`; the last parts may have fewer, or none."""
    return tl.maximum(tl.minimum(n - part * pitch, pitch), 0)


@triton.jit
def stage(
    input, buffer, rank, pitch, distance, n,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Copies a program's share of each part of the input to this rank's buffer, an address. There
    parts lie `distance` bytes apart. No peer reads a rank's own part: an aligned one stays.
    """
    DTYPE: tl.constexpr = input.dtype.element_ty
    for p in range(PARTS):
        if (not (IS_ALIGNED and PARTS > 1)) or p != rank:
            target = (buffer + p * distance).to(tl.pointer_type(DTYPE))
            copy_share(input + p * pitch, target, n, BLOCK, IS_ALIGNED)


@triton.jit
def send_parts(
    space, input, rank, place, pitch, n, RANKS: tl.constexpr, BLOCK: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Copies a program's share of each part of the input to byte `place` of the workspace of the
    rank that it belongs to. An aligned part of this rank stays.
    """
    DTYPE: tl.constexpr = input.dtype.element_ty
    for turn in range(1, RANKS + (0 if IS_ALIGNED else 1)):  # not all ranks store to one at once
        p = (rank + turn) % RANKS
        target = (tl.load(space + p) + place).to(tl.pointer_type(DTYPE))
        copy_share(input + p * pitch, target, elements_of(p, pitch, n), BLOCK, IS_ALIGNED)


@triton.jit
def exchange_pull(
    space, input, out, rank, first, pitch, n, staging, buffer_bytes, call, source, patience,
    RANKS: tl.constexpr, OP: tl.constexpr, NUMBER: tl.constexpr, PARTS: tl.constexpr,
    IS_STAGED: tl.constexpr, IS_ALIGNED: tl.constexpr, IS_OUT_ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr, THREADS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """Each rank reads all ranks' data, and takes them.

    PARTS: 1, or as many as ranks. IS_ALIGNED: all parts of the input begin at multiples of 16
    bytes.
    """
    SIZE: tl.constexpr = input.dtype.element_ty.primitive_bitwidth // 8
    peers = signal.peers(space, rank, RANKS, THREADS)
    sources = signal.places(space, 0 if IS_STAGED else source, RANKS)
    epoch, patience = signal.begin(space, patience)
    # This rank's part, in bytes: of its input, and of what it reads of its peers.
    part = rank * 0
    distance = pitch * SIZE
    if PARTS > 1:
        part = rank
    if IS_STAGED:
        distance = (n * SIZE + 15) // 16 * 16
    offset = part * distance
    here = space.to(tl.int64, bitcast=True)
    if IS_STAGED:
        buffer = staging + (epoch & 1) * buffer_bytes
        offset += buffer
        stage(
            input + first, here + buffer, rank, pitch, distance, n, PARTS, BLOCK, IS_ALIGNED
        )  # fmt: skip
    own = here + offset
    if IS_STAGED and IS_ALIGNED:
        own = input.to(tl.int64, bitcast=True) + (first + part * pitch) * SIZE
    elif not IS_STAGED:
        own += source
    has_met = signal.meet(space, peers, signal.OPENING, rank, NUMBER, call, epoch, patience)
    take_share(
        sources, own, rank, offset, out + first, pitch, n, has_met, RANKS, OP, BLOCK, IS_OUT_ALIGNED
    )
    if not IS_STAGED:
        signal.meet(space, peers, signal.CLOSING, rank, NUMBER, call, epoch, patience)


@triton.jit
def reduce_in_two_shots(
    space, input, out, rank, first, pitch, n, staging, buffer_bytes, call, source, patience,
    RANKS: tl.constexpr, OP: tl.constexpr, NUMBER: tl.constexpr, IS_STAGED: tl.constexpr,
    IS_DIRECT: tl.constexpr, IS_ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
    THREADS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """Each rank reduces its part of all ranks' inputs, as reduce_scatter does. Then all ranks pull
    the reduced parts, as all_gather does.

    Parts have `pitch` elements; the last ones may have fewer, or none. The reduced part lies in the
    rank's buffer, in its own place. The second meeting also keeps each rank from changing its input
    while others still read it.

    IS_STAGED: nobody reads a peer's input. Each rank stores what belongs to a peer's part in that
    peer's buffer, in the sender's place. After a fault a rank waits for nobody, so it stores
    nothing and arrives nowhere.

    IS_DIRECT: no second pull, as each rank stores its part in all ranks' outputs, at the same place
    of their workspaces. A program that lacks data stores none, and does not come to the second
    meeting. So its peers lack theirs, too. An output may be the input: only the program that stores
    an element has read it, on all ranks.
    """
    SIZE: tl.constexpr = input.dtype.element_ty.primitive_bitwidth // 8
    peers = signal.peers(space, rank, RANKS, THREADS)
    places = signal.places(space, 0, RANKS)
    epoch, patience = signal.begin(space, patience)
    input += first
    out += first
    distance = pitch * SIZE
    here = space.to(tl.int64, bitcast=True)
    buffer = staging + (epoch & 1) * buffer_bytes
    sources, spacing, offset = places, distance * 0, source + first * SIZE + rank * distance
    own = here + offset
    if IS_STAGED:
        sources = (here, here, here, here, here, here, here, here)
        spacing, offset = distance, buffer
        own = here + buffer + rank * distance
        if IS_ALIGNED:
            own = (input + rank * pitch).to(tl.int64, bitcast=True)
        if patience != signal.NONE:
            send_parts(
                space, input, rank, buffer + rank * distance, pitch, n, RANKS, BLOCK, IS_ALIGNED
            )  # fmt: skip
    has_met = signal.meet(space, peers, signal.OPENING, rank, NUMBER, call, epoch, patience)
    count = elements_of(rank, pitch, n)
    if IS_DIRECT:
        if has_met:
            target = out.to(tl.int64, bitcast=True) - here + rank * distance
            take_parts(
                places, offset, 0, own, rank, out, target, pitch, count, count, has_met, RANKS, OP,
                True, BLOCK, THREADS,
            )  # fmt: skip
            has_met = signal.meet(space, peers, signal.CLOSING, rank, NUMBER, call, epoch, patience)
        if not has_met:
            for p in range(RANKS):
                fill_share(out + p * pitch, elements_of(p, pitch, n), BLOCK, THREADS)
    else:
        reduced = (here + buffer + rank * distance).to(out.dtype)
        take_parts(
            sources, offset, spacing, own, rank, reduced, 0, pitch, count, count, has_met, RANKS,
            OP, False, BLOCK, THREADS,
        )  # fmt: skip
        has_met = signal.meet(space, peers, signal.CLOSING, rank, NUMBER, call, epoch, patience)
        own = reduced.to(tl.int64, bitcast=True)
        take_parts(
            places, buffer, distance, own, rank, out, 0, pitch, pitch, n, has_met, RANKS, GATHER,
            False, BLOCK, THREADS,
        )  # fmt: skip


def numbers(_: Any, call: int, source: int, patience: int) -> tuple[int, ...]:
    """The kernels' numbers. They reach other ranks' workspaces by addresses in their own."""
    return call, source, patience


class Rooms(NamedTuple):
    """Where push's slots and the buffers of a staged pull lie in a workspace, and their bytes."""

    packets: int
    most_pushed: int
    staging: int
    most_staged: int


def check_pushed(bytes: int, rooms: Rooms) -> None:
    if bytes > rooms.most_pushed:
        raise ValueError("distributed: more bytes than a slot of packets holds")


def name_of(protocol: str) -> str:
    """The variant's name."""
    return "pull in place" if protocol == "in place" else protocol


def most_programs(blocks: int, operand: Operand) -> int:
    """Programs of a launch, at most."""
    most = blocks or operand.device.multiprocessors
    return int(min(most, signal.MOST_PROGRAMS.value))


def tile_of(n: int, size: int, ranks: int) -> int:
    """Elements of a tile of n elements of `size` bytes, which a program pulls at once."""
    accesses = max(1, 2 * ACCESSES // max(2, triton.next_power_of_2(ranks)))
    while accesses > 1 and n * size < FEW_TILES * THREADS * accesses * 16:
        accesses //= 2
    return THREADS * accesses * 16 // size


def launch_of(
    kernel: Any,
    tiles: int,
    most: int,
    tensors: tuple[Operand, Operand, Operand],
    scalars: tuple[int, ...],
    constants: tuple[Any, ...],
    warps: int,
    registers: int,
) -> Launch:
    """A launch of at most `most` programs, which all run at once and take tiles by turns."""
    programs = tensors[-1].device.programs(min(tiles, most), 1)
    return Launch(
        kernel, (programs,), tensors, scalars, constants, warps, numbers, phases=1,
        per_multiprocessor=1, max_registers=registers,
    )  # fmt: skip


def plan_exchange(
    workspace: Operand,
    input: Operand,
    out: Operand,
    protocol: str,
    rank: int,
    ranks: int,
    rooms: Rooms,
    blocks: int,
    *,
    op: int,
    number: int,
    parts: int,
    n: int,
) -> Plan:
    """Plans an exchange of n elements in `parts` parts. Those longer than a buffer take several
    launches.

    Args:
        op, number: the reduction or GATHER, and the op's number in reports.
    """
    size, tensors = input.element_size(), (workspace, input, out)
    bytes, most = n * size, most_programs(blocks, out)
    if protocol == "push":
        check_pushed(bytes, rooms)
        pairs = triton.cdiv(bytes, 8)
        is_whole = input.address in (0, 8) and out.address in (0, 8) and bytes % 8 == 0
        launch = launch_of(
            exchange_push,
            triton.cdiv(pairs, PAIRS),
            most,
            tensors,
            (rank, n, n, rooms.packets, 2 * rooms.most_pushed),
            (ranks, op, number, parts > 1, is_whole, PAIRS),
            PUSH_WARPS,
            PUSH_REGISTERS,
        )
        return Plan("push", (launch,), None)
    if protocol in TWO_SHOTS:
        raise ValueError("distributed: only all_reduce has two shots")
    is_staged = protocol != "in place"
    if not is_staged and parts > 1 and bytes % 16:
        raise ValueError("distributed: parts in place begin at multiples of 16 bytes")
    longest = rooms.most_staged // parts // 16 * 16 // size if is_staged else n
    is_aligned = input.is_aligned and (parts == 1 or bytes % 16 == 0)
    is_out_aligned = out.is_aligned and (op != GATHER.value or bytes % 16 == 0)
    tile = tile_of(min(longest, n), size, ranks)
    launches = tuple(
        launch_of(
            exchange_pull,
            triton.cdiv(count, tile),
            most,
            tensors,
            (rank, first, n, count, rooms.staging, rooms.most_staged),
            (ranks, op, number, parts, is_staged, is_aligned, is_out_aligned, tile, THREADS),
            PULL_WARPS,
            PULL_REGISTERS,
        )
        for first in range(0, n, longest)
        for count in (min(longest, n - first),)
    )
    return Plan(name_of(protocol), launches, None)


def plan_two_shots(
    workspace: Operand,
    input: Operand,
    out: Operand,
    protocol: str,
    rank: int,
    ranks: int,
    rooms: Rooms,
    blocks: int,
    *,
    op: int,
) -> Plan:
    """Plans an all-reduce in two shots. Where a buffer does not hold them, they take several
    launches.
    """
    size, n, is_direct = input.element_size(), input.numel(), protocol == "direct shots"
    held = rooms.most_staged // ranks // 16 * 16 // size * ranks
    longest = n if is_direct else held  # no buffer holds direct shots
    launches = []
    for first in range(0, n, longest):
        count = min(longest, n - first)
        pitch = triton.cdiv(count * size, 16 * ranks) * 16 // size
        tile = tile_of(pitch, size, ranks)
        launches.append(
            launch_of(
                reduce_in_two_shots,
                triton.cdiv(pitch, tile),
                most_programs(blocks, out),
                (workspace, input, out),
                (rank, first, pitch, count, rooms.staging, rooms.most_staged),
                (ranks, op, op, protocol == "two shots", is_direct, input.is_aligned, tile,
                 THREADS),
                PULL_WARPS,
                PULL_REGISTERS,
            )
        )  # fmt: skip
    return Plan(name_of(protocol), tuple(launches), None)
