"""Rounding on the way to memory. Twin of csrc/include/diglot/types.cuh."""

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = knobs.runtime.interpret  # @triton.jit also asks this, when it decorates a function


@triton.constexpr_function
def compute_type(dtype):
    """The type that arithmetic on `dtype` is done in."""
    if dtype in (tl.float16, tl.bfloat16, tl.float32):
        return tl.float32
    if dtype in (tl.float64, tl.int64):
        return dtype
    return tl.int32


if INTERPRETED:

    @triton.jit
    def convert(value, dtype: tl.constexpr):
        """value rounded to dtype, to nearest even.

        The interpreter truncates float32 to bfloat16, so the rounding is done on the bits first.
        """
        if dtype == tl.bfloat16 and value.dtype != tl.bfloat16:
            wide = value.to(tl.float32)
            bits = wide.to(tl.uint32, bitcast=True)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
            value = tl.where(wide == wide, rounded.to(tl.float32, bitcast=True), wide)
        return value.to(dtype)

    @triton.jit
    def opaque(values):
        """The same values, but the compiler cannot see that: it converts narrow ones again where
        they are used next, and so keeps no wide copies in registers.
        """
        return values

    @triton.jit
    def widen(values, dtype: tl.constexpr):
        """Values of a floating-point type in another one that is not narrower."""
        return values.to(dtype)


else:

    @triton.jit
    def convert(value, dtype: tl.constexpr):
        """value rounded to dtype, to nearest even."""
        return value.to(dtype)

    @triton.jit
    def opaque(values):
        """The same values, but the compiler cannot see that: it converts narrow ones again where
        they are used next, and so keeps no wide copies in registers.
        """
        if values.dtype.primitive_bitwidth == 16:
            values = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [values], dtype=values.dtype, is_pure=False, pack=2
            )
        return values

    @triton.jit
    def widen(values, dtype: tl.constexpr):
        """Values of a floating-point type in another one that is not narrower.

        A register holds two bfloat16 values, and one instruction turns each into float32. Triton
        would unpack them first.
        """
        if values.dtype == tl.bfloat16 and dtype == tl.float32 and values.numel > 1:
            result = tl.inline_asm_elementwise(
                "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
                "=r,=r,r",
                [values],
                dtype=tl.float32,
                is_pure=True,
                pack=2,
            )
        else:
            result = values.to(dtype)
        return result


@triton.jit
def number(high, low, dtype: tl.constexpr):
    """The number with these two 32-bit halves: bits of a float64, or an integer; as `dtype`."""
    bits = (tl.full((), high, tl.int64) << 32) | (tl.full((), low, tl.int64) & 0xFFFFFFFF)
    if dtype.is_floating():
        value = bits.to(tl.float64, bitcast=True).to(dtype)
    else:
        value = bits.to(dtype)
    return value
