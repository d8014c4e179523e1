"""What programs that share a row tell each other: each the state of its part, to all.

    publish(words, at, step, states)          the state of this program's part
    collect(words, at, step, there, none)     those of all parts, as soon as they are there

A state is a tuple of one to three floating-point numbers, or of tiles of numbers, one for each
column. Each number is a word of memory, of an integer type of its size: zero at first, written
once. That it is not zero says that it is there, and the value is in it, so that nothing has to be
kept in order, and a wait ends after one trip to memory. A number that is zero is published as -0.

All programs that share a row must run at once, as `launch_cooperatively` has it. Triton's
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


@triton.jit
def publish(words, at, step, states):
    """Writes numbers to the words at `at`, and at distances of `step` those of further fields.

    A part of `at` that all threads share is better added to `words`: it takes fewer registers.
    """
    WORD: tl.constexpr = words.dtype.element_ty
    ZERO: tl.constexpr = -(2 ** (WORD.primitive_bitwidth - 1))  # the bits of -0
    for field in tl.static_range(len(states)):
        bits = states[field].to(WORD, bitcast=True)
        bits = tl.where(bits == 0, tl.full(bits.shape, ZERO, WORD), bits)
        place = words + field * step + (at + tl.full(bits.shape, 0, tl.int32))
        tl.atomic_xchg(place, bits, sem="relaxed", scope="gpu")


@triton.jit
def _look(words, at, there):
    return tl.load(words + at, mask=there, other=1, volatile=True)


@triton.jit
def _lacks(written):
    """Whether a word has not been written yet: the same answer for all threads."""
    return tl.min(written.to(tl.int32)) == 0


@triton.jit
def _numbers(bits, there, none):
    return tl.where(there, bits.to(none.dtype, bitcast=True), none)


@triton.jit
def collect(words, at, step, there, none):
    """The numbers that the words at a tile `at` say, where `there`; elsewhere those of `none`.

    The tile must have an element for each thread, or more: copies of one in several threads might
    see different states of memory.
    """
    FIELDS: tl.constexpr = len(none)
    begin = started()
    # A loop for each number of fields: Triton's compiler fails over variables that one only passes.
    first = _look(words, at, there)
    if FIELDS == 1:
        while _lacks(first != 0):
            go_on_waiting(begin)
            first = _look(words, at, there)
        return (_numbers(first, there, none[0]),)
    elif FIELDS == 2:
        second = _look(words + step, at, there)
        while _lacks((first != 0) & (second != 0)):
            go_on_waiting(begin)
            first = _look(words, at, there)
            second = _look(words + step, at, there)
        return _numbers(first, there, none[0]), _numbers(second, there, none[1])
    else:
        second = _look(words + step, at, there)
        third = _look(words + 2 * step, at, there)
        while _lacks((first != 0) & (second != 0) & (third != 0)):
            go_on_waiting(begin)
            first = _look(words, at, there)
            second = _look(words + step, at, there)
            third = _look(words + 2 * step, at, there)
        return (
            _numbers(first, there, none[0]),
            _numbers(second, there, none[1]),
            _numbers(third, there, none[2]),
        )


@triton.jit
def await_pair(words, at, step, there, T: tl.constexpr):
    """Two fields of numbers of type T that the words at `at` say, as soon as each is there; where
    not `there`, zeros.

    Each thread waits for its own, so that this may stand in a loop whose loads are in flight, in
    which Triton pipelines nothing beside a loop; and copies of a word may be in several threads.
    """
    first = (words + at).to(tl.int64, bitcast=True)
    second = (words + step + at).to(tl.int64, bitcast=True)
    WORD: tl.constexpr = words.dtype.element_ty
    if WORD.primitive_bitwidth == 32:
        a, b = tl.inline_asm_elementwise(
            """{
            .reg .pred p, q;
            mov.b32 $0, 0;
            mov.b32 $1, 0;
            setp.eq.s32 p, $4, 0;
            @p bra there;
            again:
            ld.relaxed.gpu.global.b32 $0, [$2];
            ld.relaxed.gpu.global.b32 $1, [$3];
            setp.eq.s32 p, $0, 0;
            setp.eq.s32 q, $1, 0;
            or.pred p, p, q;
            @p bra again;
            there:
            }""",
            "=&r,=&r,l,l,r", [first, second, there.to(tl.int32)],
            dtype=(tl.int32, tl.int32), is_pure=False, pack=1,
        )  # fmt: skip
    else:
        a, b = tl.inline_asm_elementwise(
            """{
            .reg .pred p, q;
            mov.b64 $0, 0;
            mov.b64 $1, 0;
            setp.eq.s32 p, $4, 0;
            @p bra there;
            again:
            ld.relaxed.gpu.global.b64 $0, [$2];
            ld.relaxed.gpu.global.b64 $1, [$3];
            setp.eq.s64 p, $0, 0;
            setp.eq.s64 q, $1, 0;
            or.pred p, p, q;
            @p bra again;
            there:
            }""",
            "=&l,=&l,l,l,r", [first, second, there.to(tl.int32)],
            dtype=(tl.int64, tl.int64), is_pure=False, pack=1,
        )  # fmt: skip
    return a.to(T, bitcast=True), b.to(T, bitcast=True)


@triton.jit
def started():
    return globaltimer() if CHECKED else 0


@triton.jit
def go_on_waiting(begin):
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
    def await_pair(words, at, step, there, T: tl.constexpr):
        first = tl.load(words + at, mask=there, other=0)
        second = tl.load(words + step + at, mask=there, other=0)
        return first.to(T, bitcast=True), second.to(T, bitcast=True)

    def started():
        return 0

    def go_on_waiting(begin):
        raise RuntimeError(
            "a row's programs wait for each other: Triton's interpreter runs one after another; "
            "run what publishes and what collects as launches of their own"
        )
