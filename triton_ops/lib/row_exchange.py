"""What programs that share a row tell each other: each the state of its part, to all.

    publish(words, at, step, states)          the state of this program's part
    collect(words, at, step, there, none)     those of all parts, as soon as they are there

A state is a tuple of one to three floating-point numbers, or of tiles of numbers, one for each
column. Each number is a word of memory, of an integer type of its size: zero at first, written
once. That it is not zero says that it is there, and the value is in it, so that nothing has to be
kept in order, and a wait ends after one trip to memory. A number that is zero is published as -0.

All programs that share a row must run at once, as in a cooperative `Launch`. Triton's
interpreter runs one after another: there a launch publishes the states of all rows, and the next
one collects them (`phases`).

With DIGLOT_CHECKED=1 in the environment when this is imported, a program that has waited for ten
seconds says so, and traps.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from .grid_barrier import CHECKED, PATIENCE
from .types import INTERPRETED

MAY_LACK = tl.constexpr(CHECKED.value or INTERPRETED)  # words that are waited for


@triton.jit
def publish(words, at, step, states, mask=None):
    """Writes numbers to the words at `at`, and at distances of `step` those of further fields; with
    a mask, to some of them.

    A part of `at` that all threads share is better added to `words`: it takes fewer registers.
    """
    WORD: tl.constexpr = words.dtype.element_ty
    ZERO: tl.constexpr = -(2 ** (WORD.primitive_bitwidth - 1))  # the bits of -0
    for field in tl.static_range(len(states)):
        bits = states[field].to(WORD, bitcast=True)
        bits = tl.where(bits == 0, tl.full(bits.shape, ZERO, WORD), bits)
        place = words + field * step + (at + tl.full(bits.shape, 0, tl.int32))
        tl.atomic_xchg(place, bits, mask=mask, sem="relaxed", scope="gpu")


@triton.constexpr_function
def _waiting(fields, pack, bits):
    """PTX that loads so many words, until none of them is zero, or that took too long."""
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
    many = fields * pack
    return ",".join([f"=&{register}"] * many + ["l"] * many)


@triton.constexpr_function
def _types(word, fields):
    return (word,) * fields


@triton.jit
def _address(words, at):
    return (words + at).to(tl.int64, bitcast=True)


@triton.jit
def _wait(words, at, step, FIELDS: tl.constexpr, PACK: tl.constexpr):
    """The bits of words, as a tuple of fields."""
    WORD: tl.constexpr = words.dtype.element_ty
    first, second, third = _address(words, at), words + step, words + 2 * step
    addresses = (first,) if FIELDS == 1 else (
        (first, _address(second, at)) if FIELDS == 2 else
        (first, _address(second, at), _address(third, at))
    )  # fmt: skip
    return tl.inline_asm_elementwise(
        _waiting(FIELDS, PACK, WORD.primitive_bitwidth),
        _operands(FIELDS, PACK, WORD.primitive_bitwidth),
        addresses, dtype=_types(WORD, FIELDS), is_pure=False, pack=PACK,
    )  # fmt: skip


@triton.jit
def _number(bits, there, none):
    if MAY_LACK:
        if tl.min((bits != 0).to(tl.int32)) == 0:
            give_up()
    return tl.where(there, bits.to(none.dtype, bitcast=True), none)


@triton.jit
def collect(words, at, step, there, none, PACK: tl.constexpr = 1):
    """The numbers that the words at a tile `at` say, where `there`; elsewhere those of `none`.

    Each thread waits for those that it has, so that no barrier is passed, and that this may stand
    in a loop that is pipelined, which one of Triton's may not. Copies of a tile in several threads
    are equal, since words are written once.

    Args:
        at: of words that are going to be written, also where not `there`.
        PACK: how many elements of the tile, of which each thread must have as many or a multiple,
            a thread waits for at once.
    """
    FIELDS: tl.constexpr = len(none)
    bits = _wait(words, at, step, FIELDS, PACK)
    first = _number(bits[0], there, none[0])
    return (first,) if FIELDS == 1 else (
        (first, _number(bits[1], there, none[1])) if FIELDS == 2 else
        (first, _number(bits[1], there, none[1]), _number(bits[2], there, none[2]))
    )  # fmt: skip


@triton.jit
def _lacks(written):
    """Whether a word has not been written yet: the same answer for all threads."""
    return tl.min(written.to(tl.int32)) == 0


@triton.jit
def _look(words, at):
    return tl.load(words + at, volatile=True)


@triton.jit
def collect_tile(words, at, step, there, none):
    """The same of a tile of many words, which are loaded side by side and waited for together.

    It must have an element for each thread, or more: copies of one might differ. Of one or two
    fields. (PTX of one's own would be in the layout that what follows has, and run several times.)
    """
    begin = _now()
    # A loop for each number of fields: Triton's compiler fails over variables that one only passes.
    first = _look(words, at)
    if len(none) == 1:
        while _lacks(first != 0):
            _go_on(begin)
            first = _look(words, at)
        return (_number(first, there, none[0]),)
    else:  # noqa: RET505 - Triton compiles what follows a `return`
        second = _look(words + step, at)
        while _lacks((first != 0) & (second != 0)):
            _go_on(begin)
            first = _look(words, at)
            second = _look(words + step, at)
        return _number(first, there, none[0]), _number(second, there, none[1])


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
    def _wait(words, at, step, FIELDS: tl.constexpr, PACK: tl.constexpr):
        first = tl.load(words + at)
        return (first,) if FIELDS == 1 else (
            (first, tl.load(words + step + at)) if FIELDS == 2 else
            (first, tl.load(words + step + at), tl.load(words + 2 * step + at))
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
