"""Scalar arithmetic for the kernels: the few operations whose rounding or instruction matters.

The twin of this file is csrc/include/diglot/math.cuh. Triton's interpreter has neither a fused fma
nor inline assembly. Under ``TRITON_INTERPRET=1`` the functions that need them are replaced by
others that round alike. The reciprocal is rounded correctly there, instead of within 1 ulp.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.types import INTERPRETED

# 1.5 * 2^23. Adding a float of magnitude below 2^22 rounds it to the nearest integer, which the
# low bits of the sum then hold.
ROUNDING_SHIFT = tl.constexpr(12582912.0)


@triton.jit
def constant(value: tl.constexpr, x):
    """`value` in the type of x: a bare literal beside an fp64 operand of fma would be fp32."""
    return tl.full([], value, x.dtype)


if INTERPRETED:

    @triton.jit
    def _like(value, x):
        """An operand of fma as a tensor of x's type. A number is rounded to it."""
        value = value.value if isinstance(value, tl.constexpr) else value
        return tl.full([], value, x.dtype) if isinstance(value, (int, float)) else value

    @triton.jit
    def _two_product_tail(a, b, product):
        """a * b - product without error in fp64 (Dekker), for operands below 1e300."""
        a_high = a * 134217729.0 - (a * 134217729.0 - a)
        b_high = b * 134217729.0 - (b * 134217729.0 - b)
        a_low = a - a_high
        b_low = b - b_high
        return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low

    @triton.jit
    def fma(a, b, c):
        """a * b + c with one rounding, up to rare double roundings. a must be a tensor."""
        b = _like(b, a)
        c = _like(c, a)
        if a.dtype == tl.float64:
            product = a * b
            total = product + c
            back = total - product
            tail = (product - (total - back)) + (c - back)
            low = _two_product_tail(a, b, product) + tail
            # Where a factor is huge or infinite the tail is NaN, and there it does not matter.
            # Where it is zero, adding it would take a zero its sign.
            result = tl.where(tl.abs(low) > 0, total + low, total)
        else:
            result = (a.to(tl.float64) * b.to(tl.float64) + c.to(tl.float64)).to(tl.float32)
        return result

    @triton.jit
    def reciprocal_approximate(x):
        """1 / x in fp32, with subnormal results flushed to zero."""
        result = 1.0 / x
        return tl.where(tl.abs(result) < 1.17549435e-38, result * 0.0, result)

    @triton.jit
    def horner(x, coefficients):
        """The polynomial coefficients[0] + coefficients[1] x + ..., with fused steps."""
        result = constant(coefficients.value[-1], x)
        for coefficient in coefficients.value[-2::-1]:
            result = fma(result, x, constant(coefficient, x))
        return result

else:

    @triton.jit
    def fma(a, b, c):
        """a * b + c with one rounding. a must be a tensor; a literal b or c is taken as fp32.

        It has a name because the kernels forbid the compiler to contract: only this fuses, here and
        in the CUDA twin.
        """
        return tl.fma(a, b, c)

    @triton.jit
    def reciprocal_approximate(x):
        """1 / x in fp32 within 1 ulp, with subnormal arguments and results flushed to zero."""
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;",
            "=f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )

    @triton.jit
    def horner(x, coefficients: tl.constexpr):
        """The polynomial coefficients[0] + coefficients[1] x + ..., with fused steps."""
        count: tl.constexpr = len(coefficients)
        result = constant(coefficients[count - 1], x)
        for i in tl.static_range(count - 1):
            result = fma(result, x, constant(coefficients[count - 2 - i], x))
        return result


@triton.jit
def negate(x):
    """-x as an operand modifier; Triton's own minus is 0 - x, an instruction more, and -0 is 0."""
    return x * -1.0


@triton.jit
def minimum(a, b):
    """The lesser of a and b; NaN if either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def maximum(a, b):
    """The greater of a and b; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def square_root(x):
    """The square root, rounded correctly; Triton's own is approximate in fp32."""
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)


@triton.jit
def divide(a, b):
    """a / b, rounded correctly; Triton's own is approximate in fp32."""
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b


@triton.jit
def round_down(x):
    """The greatest integer not above x."""
    return tl.floor(x)


@triton.jit
def two_sum(a, b):
    """a + b without error, as head and tail (Knuth, "The Art of Computer Programming", volume 2,
    4.2.2).
    """
    head = a + b
    back = head - a
    return head, (a - (head - back)) + (b - back)


@triton.jit
def ordered_two_sum(a, b):
    """The same where |a| >= |b|, or a is zero (Dekker, "A floating-point technique for extending
    the available precision", Numerische Mathematik 18, 1971).
    """
    head = a + b
    return head, b - (head - a)


@triton.jit
def relu(x):
    """max(x, 0). The result for NaN is not specified."""
    return tl.maximum(x, 0.0)


@triton.jit
def exp2_approximate(x):
    """2^x in fp32 within 2 ulp; subnormal arguments and results may be flushed to zero."""
    return tl.exp2(x)


@triton.jit
def exp_nonpositive(x):
    """e^x for x <= 0, in fp32 within 3 ulp, with subnormal results flushed to zero, or in fp64.

    exp2_approximate would multiply the rounding error of its argument by up to 126. So that error
    enters by the exponential's slope.
    """
    log2_e: tl.constexpr = 1.44269502
    log2_e_tail: tl.constexpr = 1.92596303e-8
    ln2: tl.constexpr = 0.693147182
    if x.dtype == tl.float64:
        result = tl.exp(x)
    else:
        x = maximum(x, constant(-128.0, x))  # where the result is zero: the tail of -inf is NaN
        exponent = x * log2_e
        tail = fma(x, log2_e_tail, fma(x, log2_e, negate(exponent)))
        head = exp2_approximate(exponent)
        result = fma(head, tail * ln2, head)
    return result


@triton.jit
def logarithm(x):
    """The natural logarithm within 1 ulp."""
    return tl.log(x)


@triton.jit
def reciprocal_root(x):
    """1 / sqrt(x), each of the two operations rounded to nearest."""
    if x.dtype == tl.float64:
        result = 1.0 / tl.sqrt(x)
    else:
        result = tl.div_rn(constant(1.0, x), tl.sqrt_rn(x))
    return result


@triton.jit
def power_of_two(shifted):
    """2^(n - 127) for shifted = ROUNDING_SHIFT + n and an integer n from 0 to 254; 0 for n = 0.

    The shift moves n into the field of the exponent and everything above it out of the word.
    """
    return (shifted.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
