"""Philox-4x32-10: random bits as a function of a counter and a key (Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3", 2011). Also the assignment of bits to an array's
elements.

Philox makes four words from a counter. The element with row-major index i gets word i % 4 of the
counter offset + i / 4, a 64-bit sum that wraps around. The sum's low half is word 0 of Philox's
counter, its high half word 1; words 2 and 3 are zero. The seed's low half is word 0 of the key, its
high half word 1.

Twin of csrc/include/diglot/philox.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.types import INTERPRETED

if INTERPRETED:

    @triton.jit
    def multiply_wide(a, b):
        """The 64-bit product of 32-bit words: its high and its low word."""
        product = a.to(tl.uint64) * b.to(tl.uint64)
        return high_word(product), low_word(product)

else:

    @triton.jit
    def multiply_wide(a, b):
        """The 64-bit product of 32-bit words: its high and its low word.

        It takes one instruction. The compiler makes two of tl.umulhi and a * b. For a 64-bit
        product it makes more, and then prefers to exchange results between threads.
        """
        return tl.inline_asm_elementwise(
            "{ .reg .b64 p; mul.wide.u32 p, $2, $3; mov.b64 {$1, $0}, p; }",
            "=r,=r,r,r",
            [a, b],
            dtype=(tl.uint32, tl.uint32),
            is_pure=True,
            pack=1,
        )


@triton.jit
def high_word(value):
    """Bits 32 to 63."""
    return (value >> 32).to(tl.uint32)


@triton.jit
def low_word(value):
    """Bits 0 to 31."""
    return value.to(tl.uint32)


@triton.jit
def philox_4x32(counter0, counter1, counter2, counter3, key0, key1):
    """Ten rounds, of uint32 tensors. The multipliers and the steps of the key are the paper's."""
    multiplier0 = tl.full((), 0xD2511F53, tl.uint32)
    multiplier1 = tl.full((), 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        high0, low0 = multiply_wide(counter0, multiplier0)
        high1, low1 = multiply_wide(counter2, multiplier1)
        counter0, counter1 = high1 ^ counter1 ^ key0, low1
        counter2, counter3 = high0 ^ counter3 ^ key1, low0
        key0 += 0x9E3779B9
        key1 += 0xBB67AE85
    return counter0, counter1, counter2, counter3


@triton.jit
def random_words(seed, counter):
    """The words of 64-bit counters."""
    zero = tl.zeros(counter.shape, tl.uint32)
    return philox_4x32(
        low_word(counter), high_word(counter), zero, zero, low_word(seed), high_word(seed)
    )


@triton.jit
def random_bits(seed, offset, index, ELEMENTS: tl.constexpr):
    """The bits of runs of ELEMENTS elements: [N, ELEMENTS].

    `index`, [N, 1], has the row-major index that each run starts at, a multiple of ELEMENTS or
    of 4.
    """
    counter = offset + (index.to(tl.int64) >> 2)
    if ELEMENTS % 4 == 0:
        counter = counter + tl.arange(0, ELEMENTS // 4)[None, :]
        word0, word1, word2, word3 = random_words(seed, counter)
        bits = tl.interleave(tl.interleave(word0, word2), tl.interleave(word1, word3))
    else:
        word0, word1, word2, word3 = random_words(seed, counter)
        is_upper = (index & 2) != 0
        even = tl.where(is_upper, word2, word0)
        odd = tl.where(is_upper, word3, word1)
        if ELEMENTS == 2:
            bits = tl.interleave(even, odd)
        else:
            bits = tl.where((index & 1) != 0, odd, even)
    return bits
