"""Rounding on the way to memory. Twin of csrc/include/diglot/types.cuh."""

import triton
import triton.language as tl
from triton import knobs

from diglot.triton_ops.lib.float8 import float8_to_float16, float32_to_float8

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
        """value rounded to dtype, to nearest even; 8-bit floats saturate.

        The interpreter truncates float32 to bfloat16, widens subnormal bfloat16 wrongly, and rounds
        8-bit floats wrongly. So these conversions are done on the bits.
        """
        source: tl.constexpr = value.dtype
        if source == dtype:
            result = value
        elif source.is_fp8():
            result = convert(float8_to_float16(value), dtype)
        elif source == tl.bfloat16:
            bits = value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
            result = convert(bits.to(tl.float32, bitcast=True), dtype)
        elif dtype.is_fp8():
            result = float32_to_float8(value.to(tl.float32), dtype)
        elif dtype == tl.bfloat16:
            wide = value.to(tl.float32)
            bits = wide.to(tl.uint32, bitcast=True)
            rounded = bits + 0x7FFF + ((bits >> 16) & 1)
            bits = tl.where(wide == wide, rounded, bits | 0x400000) >> 16
            result = bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
        else:
            result = value.to(dtype)
        return result

    @triton.jit
    def opaque(values):
        """The same values, but the compiler cannot see that: it converts narrow ones again where
        they are used next, and so keeps no wide copies in registers.
        """
        return values

    @triton.jit
    def widen(values, dtype: tl.constexpr):
        """Values of a floating-point type in another one that is not narrower."""
        return convert(values, dtype)


else:

    @triton.jit
    def convert(value, dtype: tl.constexpr):
        """value rounded to dtype, to nearest even; 8-bit floats saturate.

        8-bit floats become float16 first: Triton's own conversion of e5m2 to bfloat16 makes numbers
        of infinities and NaN. Integers become float32 on their way to bfloat16, as in PyTorch and
        in CUDA C++. Triton would join the two roundings into one if it saw both.
        """
        if value.dtype == dtype:
            result = value
        elif value.dtype.is_fp8():
            result = value.to(tl.float16).to(dtype)
        elif value.dtype.is_int() and dtype == tl.bfloat16:
            wide = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;",
                "=r,r",
                [value.to(tl.float32)],
                dtype=tl.float32,
                is_pure=True,
                pack=1,
            )
            result = wide.to(dtype)
        else:
            result = value.to(dtype)
        return result

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
            result = convert(values, dtype)
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
