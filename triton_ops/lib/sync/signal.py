"""Signals between GPUs: how the same program of every rank meets the others, and packets that carry
their own flag. csrc/include/diglot/sync/signal.cuh, its twin, explains them.

    @triton.jit
    def kernel(space, ...):                # int64: this rank's workspace
        peers = signal.peers(space, rank, RANKS, THREADS)
        epoch, patience = signal.begin(space, patience)
        tl.store(staging + ..., ...)       # in this rank's memory
        has_met = signal.meet(space, peers, signal.OPENING, rank, OP, call, epoch, patience)
        ... = tl.load(peers' staging)

Inline PTX makes the accesses at system scope: Triton has no such loads and stores. In Triton's
interpreter, ranks are processes that share memory. There Triton's atomic operations replace them.
"""

from __future__ import annotations

import time

import triton
import triton.language as tl

from diglot.triton_ops.lib.types import INTERPRETED

MOST_RANKS = tl.constexpr(8)
MOST_PROGRAMS = tl.constexpr(256)
OPENING, CLOSING = tl.constexpr(0), tl.constexpr(1)
# Words of 64 bits at the beginning of a workspace; before them lie all workspaces' addresses.
REPORT, EPOCHS, SIGNALS = (tl.constexpr(word) for word in (64, 65, 128))
# A grid has less than 2^16 programs. A signal has 16 bits for the call.
SHIFT, UNIT = tl.constexpr(16), tl.constexpr(1 << 16)
FAULT = tl.constexpr(-(1 << 63))  # the highest bit of EPOCHS
NONE = tl.constexpr(-1)  # patience of a launch after a fault


@triton.jit
def begin(space, patience):
    """The launch's epoch, and the patience of its waits: NONE after a wait that took too long."""
    others = (tl.num_programs(0) - 1).to(tl.int64)
    step = tl.where(tl.program_id(0) == 0, UNIT - others, 1)
    before = tl.atomic_add(space + EPOCHS, step, sem="relaxed", scope="gpu")
    return ((before & ~FAULT) >> SHIFT) + 1, tl.where(before < 0, NONE, patience)


@triton.jit
def flag_of(epoch):
    """The epoch in 32 bits. Memory is zero before its first use, so 0 flags nothing."""
    low = epoch.to(tl.int32)
    return tl.where(low == 0, 1, low)


@triton.jit
def places(space, offset, RANKS: tl.constexpr):
    """The addresses of byte `offset` of the ranks' workspaces: a tuple of eight."""
    return (
        tl.load(space) + offset,
        tl.load(space + (1 if RANKS > 1 else 0)) + offset,
        tl.load(space + (2 if RANKS > 2 else 0)) + offset,
        tl.load(space + (3 if RANKS > 3 else 0)) + offset,
        tl.load(space + (4 if RANKS > 4 else 0)) + offset,
        tl.load(space + (5 if RANKS > 5 else 0)) + offset,
        tl.load(space + (6 if RANKS > 6 else 0)) + offset,
        tl.load(space + (7 if RANKS > 7 else 0)) + offset,
    )


@triton.jit
def peers(space, rank, RANKS: tl.constexpr, THREADS: tl.constexpr):
    """The workspace of the peer that each thread meets, as an address; 0: it meets none."""
    peer = tl.arange(0, THREADS)  # an element for each thread
    return tl.load(space + peer, mask=(peer < RANKS) & (peer != rank), other=0)


@triton.jit
def meet(space, peers, PHASE: tl.constexpr, rank, OP: tl.constexpr, call, epoch, patience):
    """Waits for the same program of all ranks. Whether all came in time, and with the same call."""
    arrive(space, peers, PHASE, rank, call, epoch, patience)
    return wait(space, peers, PHASE, rank, OP, call, epoch, patience)


@triton.jit
def arrive(space, peers, PHASE: tl.constexpr, rank, call, epoch, patience):
    """The first half of a meeting: what the program did before is done.

    A launch after a fault arrives nowhere: a peer that still waits for the launch that failed, or
    for one before, would take the later signal for that one's.
    """
    place = SIGNALS + (PHASE * MOST_PROGRAMS + tl.program_id(0)) * MOST_RANKS
    tl.debug_barrier()
    is_peer = (peers != 0) & (patience != NONE)
    _send(peers + 8 * (place + rank), epoch << SHIFT | call, is_peer)


@triton.jit
def wait(space, peers, PHASE: tl.constexpr, rank, OP: tl.constexpr, call, epoch, patience):
    """The second half of a meeting."""
    THREADS: tl.constexpr = peers.shape[0]
    signal = epoch << SHIFT | call
    peer = tl.arange(0, THREADS)
    is_peer = peers != 0
    place = SIGNALS + (PHASE * MOST_PROGRAMS + tl.program_id(0)) * MOST_RANKS
    own = space + place + tl.where(is_peer, peer, 0)
    state = _await(own, signal, is_peer, patience)
    worst = tl.min(state)
    tl.debug_barrier()
    if worst < 1:
        missing = tl.min(tl.where(state == worst, peer, THREADS))
        give_up(space, rank, OP, epoch, missing, worst == 0)
    return (worst == 1) & (patience != NONE)


@triton.jit
def give_up(space, rank, OP: tl.constexpr, epoch, peer, has_come):
    """Records that this program has waited too long for a peer."""
    if tl.atomic_or(space + EPOCHS, FAULT, sem="relaxed", scope="gpu") >= 0:
        report = tl.load(space + REPORT).to(tl.pointer_type(tl.int64))
        tl.store(report + 1, rank.to(tl.int64))
        tl.store(report + 2, tl.full((), OP, tl.int64))
        tl.store(report + 3, epoch)
        tl.store(report + 4, tl.program_id(0).to(tl.int64))
        tl.store(report + 5, peer.to(tl.int64))
        tl.store(report + 6, has_come.to(tl.int64))
        tl.atomic_xchg(report, 1, sem="release", scope="sys")


@triton.jit
def _send(addresses, signal, is_peer):
    """Stores the signal at each address, as a release at system scope."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.release.sys.global.b64 [$1], $2;"
        " mov.b32 $0, $3; }",
        "=r,l,l,r",
        [addresses, signal, is_peer.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _await(words, signal, is_peer, patience):
    """Polls each word, as an acquire at system scope. 1: its peer came; 0: it came with another
    call; -1: it did not come in time.
    """
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b64 seen, first, now, epoch;"
        " mov.b32 $0, 1; setp.eq.s32 p, $3, 0; @p bra done;"
        " shr.u64 epoch, $2, 16; mov.u64 first, %globaltimer;"
        " again: ld.acquire.sys.global.b64 seen, [$1];"
        " setp.eq.s64 p, seen, $2; @p bra done;"
        " shr.u64 seen, seen, 16; setp.gt.u64 p, seen, epoch; @p bra done;"
        " mov.b32 $0, 0; setp.eq.s64 p, seen, epoch; @p bra done; mov.b32 $0, 1;"
        " mov.u64 now, %globaltimer; sub.s64 now, now, first;"
        " setp.lt.s64 p, now, $4; @p bra again; mov.b32 $0, -1; done: }",
        "=&r,l,l,r,l",
        [words.to(tl.int64, bitcast=True), signal, is_peer.to(tl.int32), patience],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def send_packets(addresses, low, high, flag, mask):
    """Stores 8 bytes as two packets of data and flag at each address, a multiple of 16."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b64 a, b; mov.b64 a, {$2, $4}; mov.b64 b, {$3, $4};"
        " setp.ne.s32 p, $5, 0; @p st.relaxed.sys.global.v2.b64 [$1], {a, b}; mov.b32 $0, $4; }",
        "=r,l,r,r,r,r",
        [addresses, low, high, flag, mask.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def await_packets(addresses, flag, mask, patience):
    """Waits for two packets at each address: their data, and 1 where they came in time."""
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 f, g; .reg .b64 a, b, first, now;"
        " mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 1; setp.eq.s32 p, $5, 0; @p bra done;"
        " mov.u64 first, %globaltimer;"
        " again: ld.relaxed.sys.global.v2.b64 {a, b}, [$3];"
        " mov.b64 {$0, f}, a; mov.b64 {$1, g}, b;"
        " setp.eq.s32 p, f, $4; setp.eq.and.s32 p, g, $4, p; @p bra done;"
        " mov.u64 now, %globaltimer; sub.s64 now, now, first;"
        " setp.lt.s64 p, now, $6; @p bra again; mov.b32 $2, 0; done: }",
        "=&r,=&r,=&r,l,r,r,l",
        [addresses, flag, mask.to(tl.int32), patience],
        dtype=(tl.int32, tl.int32, tl.int32),
        is_pure=False,
        pack=1,
    )


if INTERPRETED:

    def _is_late(begin, patience):
        time.sleep(0)  # other ranks may wait for this core
        return time.perf_counter_ns() - begin >= int(patience.handle.data.max())

    def _pointers(addresses):
        return addresses.to(tl.pointer_type(tl.int64))

    def _send(addresses, signal, is_peer):
        tl.atomic_xchg(_pointers(addresses), signal, mask=is_peer, sem="release", scope="sys")

    def _await(words, signal, is_peer, patience):
        begin = time.perf_counter_ns()
        while True:
            seen = tl.atomic_add(words, 0, mask=is_peer, sem="acquire", scope="sys")
            is_later = seen >> SHIFT > signal >> SHIFT
            has_come = ~is_peer | (seen == signal) | is_later
            is_other = ~has_come & (seen >> SHIFT == signal >> SHIFT)
            if tl.min(has_come.to(tl.int32)) == 1 or tl.max(is_other.to(tl.int32)) == 1:
                break
            if _is_late(begin, patience):
                break
        return tl.where(has_come, 1, tl.where(is_other, 0, -1))

    def send_packets(addresses, low, high, flag, mask):
        # An interpreted store may be torn, and an exchange of 8 bytes is not.
        upper = flag.to(tl.uint32, bitcast=True).to(tl.int64) << 32
        for word, data in enumerate((low, high)):
            packet = upper | data.to(tl.uint32, bitcast=True).to(tl.int64)
            tl.atomic_xchg(
                _pointers(addresses + 8 * word), packet, mask=mask, sem="relaxed", scope="sys"
            )

    def await_packets(addresses, flag, mask, patience):
        begin = time.perf_counter_ns()
        while True:
            low, high = (
                tl.atomic_add(
                    _pointers(addresses + 8 * word), 0, mask=mask, sem="relaxed", scope="sys"
                )
                for word in range(2)
            )
            has_come = ~mask | (
                ((low >> 32).to(tl.int32) == flag) & ((high >> 32).to(tl.int32) == flag)
            )
            if tl.min(has_come.to(tl.int32)) == 1 or _is_late(begin, patience):
                break
        return low.to(tl.int32), high.to(tl.int32), has_come.to(tl.int32)
