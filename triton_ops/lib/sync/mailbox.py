"""Mailboxes: how programs that split a row exchange the states of their parts.

    publish(mailboxes, offset, step, states)            writes the state of this program's part
    collect(mailboxes, offset, step, mask, none)        waits for the states of all parts

A state is a tuple of one to three floating-point numbers, or of tiles of numbers, one for each
column. A mailbox is one word of memory, of an integer type of a number's size. It is zero at first
and is written once. A word that is not zero is there, and carries the value itself: no fence is
needed, and a wait ends after one trip to memory. A number that is zero is published as -0.

All programs that split a row must run at once, as in a cooperative `Launch`. Triton's interpreter
runs one program after another: there a first launch publishes the states of all rows, and a second
one collects them (`phases`).

With DIGLOT_CHECKED=1 in the environment when this is imported, a program that has waited for ten
seconds says so, and traps.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from diglot.triton_ops.lib.types import INTERPRETED

from .grid_barrier import CHECKED, PATIENCE

MAY_LACK = tl.constexpr(CHECKED.value or INTERPRETED)  # whether collected words may be missing


@triton.jit
def publish(mailboxes, offset, step, states, mask=None):
    """Writes the fields of states to mailboxes: the first one to those at `offset`, the next ones
    `step` further each. With a mask, it writes only some.

    Add an offset that all threads share to `mailboxes`, not to `offset`: it takes fewer registers.
    """
    WORD: tl.constexpr = mailboxes.dtype.element_ty
    ZERO: tl.constexpr = -(2 ** (WORD.primitive_bitwidth - 1))  # the bits of -0
    for field in tl.static_range(len(states)):
        bits = states[field].to(WORD, bitcast=True)
        bits = tl.where(bits == 0, tl.full(bits.shape, ZERO, WORD), bits)
        place = mailboxes + field * step + (offset + tl.full(bits.shape, 0, tl.int32))
        tl.atomic_xchg(place, bits, mask=mask, sem="relaxed", scope="gpu")


@triton.constexpr_function
def _waiting(fields, pack, bits):
    """PTX that loads `fields * pack` words until none is zero, or until it takes too long."""
    results = [f"${i}" for i in range(fields * pack)]
    pointers = [f"${i}" for i in range(fields * pack, 2 * fields * pack)]
    lines = [".reg .pred some, none;", ".reg .b64 now, end;"]
    if CHECKED.value:
        lines += ["mov.u64 end, %globaltimer;", f"add.u64 end, end, {PATIENCE.value};"]
    lines += ["again:"]
    for result, pointer in zip(results, pointers, strict=True):
        lines += [f"ld.relaxed.gpu.global.b{bits} {result}, [{pointer}];"]
    lines += ["setp.ne.s32 some, 0, 0;"]
    for result in results:
        lines += [f"setp.eq.s{bits} none, {result}, 0;", "or.pred some, some, none;"]
    if CHECKED.value:
        lines += ["mov.u64 now, %globaltimer;", "setp.gt.u64 none, now, end;", "@none bra enough;"]
    lines += ["@some bra again;", "enough:"]
    return "{" + " ".join(lines) + "}"


@triton.constexpr_function
def _operands(fields, pack, bits):
    register = "l" if bits == 64 else "r"
    count = fields * pack
    return ",".join([f"=&{register}"] * count + ["l"] * count)


@triton.constexpr_function
def _types(word, fields):
    return (word,) * fields


@triton.jit
def _address(mailboxes, offset):
    return (mailboxes + offset).to(tl.int64, bitcast=True)


@triton.jit
def _wait(mailboxes, offset, step, FIELDS: tl.constexpr, PACK: tl.constexpr):
    """Waits for the mailboxes, and returns their bits as a tuple of fields."""
    WORD: tl.constexpr = mailboxes.dtype.element_ty
    first, second, third = _address(mailboxes, offset), mailboxes + step, mailboxes + 2 * step
    addresses = (first,) if FIELDS == 1 else (
        (first, _address(second, offset)) if FIELDS == 2 else
        (first, _address(second, offset), _address(third, offset))
    )  # fmt: skip
    return tl.inline_asm_elementwise(
        _waiting(FIELDS, PACK, WORD.primitive_bitwidth),
        _operands(FIELDS, PACK, WORD.primitive_bitwidth),
        addresses, dtype=_types(WORD, FIELDS), is_pure=False, pack=PACK,
    )  # fmt: skip


@triton.jit
def _number(bits, mask, none):
    if MAY_LACK:
        if tl.min((bits != 0).to(tl.int32)) == 0:
            give_up()
    return tl.where(mask, bits.to(none.dtype, bitcast=True), none)


@triton.jit
def collect(mailboxes, offset, step, mask, none, PACK: tl.constexpr = 1):
    """The numbers in the mailboxes at a tile `offset`; those of `none` where `mask` is false.

    Each thread waits for its own elements and passes no barrier, so a pipelined loop may contain
    this. It may not contain another loop of Triton's. Several threads that hold copies of an
    element read the same number, because a mailbox is written once.

    Args:
        offset: of mailboxes that some program will write, even where `mask` is false.
        PACK: how many elements a thread waits for at once. Each thread must hold a multiple of it.
    """
    FIELDS: tl.constexpr = len(none)
    bits = _wait(mailboxes, offset, step, FIELDS, PACK)
    first = _number(bits[0], mask, none[0])
    return (first,) if FIELDS == 1 else (
        (first, _number(bits[1], mask, none[1])) if FIELDS == 2 else
        (first, _number(bits[1], mask, none[1]), _number(bits[2], mask, none[2]))
    )  # fmt: skip


@triton.jit
def _lacks(written):
    """Whether some mailbox is still empty: the same answer for all threads."""
    return tl.min(written.to(tl.int32)) == 0


@triton.jit
def _look(mailboxes, offset):
    return tl.load(mailboxes + offset, volatile=True)


@triton.jit
def collect_tile(mailboxes, offset, step, mask, none):
    """`collect` for a large tile, of one or two fields: all threads load it and wait together.

    The tile needs an element for each thread at least: two loads of one mailbox might differ.
    Inline PTX would take the layout of what follows, and run several times.
    """
    begin = _now()
    # A loop for each number of fields: Triton rejects variables that a loop only passes on.
    first = _look(mailboxes, offset)
    if len(none) == 1:
        while _lacks(first != 0):
            _go_on(begin)
            first = _look(mailboxes, offset)
        return (_number(first, mask, none[0]),)
    else:  # noqa: RET505 - Triton compiles what follows a `return`
        second = _look(mailboxes + step, offset)
        while _lacks((first != 0) & (second != 0)):
            _go_on(begin)
            first = _look(mailboxes, offset)
            second = _look(mailboxes + step, offset)
        return _number(first, mask, none[0]), _number(second, mask, none[1])


@triton.jit
def _now():
    return globaltimer() if CHECKED else 0


@triton.jit
def _go_on(begin):
    if CHECKED:
        if globaltimer() - begin > PATIENCE:
            give_up()


@triton.jit
def give_up():
    program = tl.program_id(0)
    tl.device_print("row exchange: a program has waited 10 s for others of its row; it is", program)
    tl.inline_asm_elementwise(
        "trap; mov.b32 $0, $1;", "=r,r", [program], dtype=tl.int32, is_pure=False, pack=1
    )


if INTERPRETED:

    @triton.jit
    def _wait(mailboxes, offset, step, FIELDS: tl.constexpr, PACK: tl.constexpr):
        first = tl.load(mailboxes + offset)
        return (first,) if FIELDS == 1 else (
            (first, tl.load(mailboxes + step + offset)) if FIELDS == 2 else
            (first, tl.load(mailboxes + step + offset), tl.load(mailboxes + 2 * step + offset))
        )  # fmt: skip

    def _now():
        return 0

    def _go_on(begin):
        give_up()

    def give_up():
        raise RuntimeError(
            "a row's programs wait for each other: Triton's interpreter runs one after another; "
            "run what publishes and what collects as launches of their own"
        )
