"""8-bit floats bit by bit, for Triton's interpreter, whose own conversions round wrongly. Twin of
csrc/include/diglot/float8.cuh.

float16 holds both types exactly. The bits of an e5m2 number are the upper half of its float16.
Those of an e4m3 number are the upper bits of the float16 of its 256th part.

Source: Micikevicius et al., "FP8 formats for deep learning", 2022, arXiv:2209.05433.
"""

import triton
import triton.language as tl


@triton.jit
def float8_to_float16(value):
    """The same value; NaN stays NaN."""
    return float8_bits_to_float16(value.to(tl.uint8, bitcast=True), value.dtype == tl.float8e5)


@triton.jit
def float8_bits_to_float16(value, IS_E5M2: tl.constexpr):
    """float16 from the bits of e4m3 or e5m2, on GPUs that do not know e4m3."""
    bits = value.to(tl.uint16)
    if IS_E5M2:
        result = (bits << 8).to(tl.float16, bitcast=True)
    else:
        magnitude = bits & 0x7F
        part = ((bits & 0x80) << 8 | magnitude << 7).to(tl.float16, bitcast=True)
        result = tl.where(magnitude == 0x7F, float("nan"), part * 256.0).to(tl.float16)
    return result


@triton.jit
def float32_to_float8(value, dtype: tl.constexpr):
    """Rounded to nearest even; beyond the largest number, that number, as cvt.rn.satfinite."""
    IS_E5M2: tl.constexpr = dtype == tl.float8e5
    LARGEST: tl.constexpr = 57344.0 if IS_E5M2 else 448.0
    MANTISSA: tl.constexpr = 2 if IS_E5M2 else 3
    SMALLEST: tl.constexpr = -14 if IS_E5M2 else -6  # exponent of a normal number
    SCALE: tl.constexpr = 1.0 if IS_E5M2 else 1 / 256
    bits = value.to(tl.uint32, bitcast=True)
    magnitude = tl.minimum((bits & 0x7FFFFFFF).to(tl.float32, bitcast=True), LARGEST)
    # A power of two whose sum with the magnitude ends with the last bit that the result keeps.
    exponent = tl.maximum(magnitude.to(tl.uint32, bitcast=True) >> 23, 127 + SMALLEST)
    shift = ((exponent + 23 - MANTISSA) << 23).to(tl.float32, bitcast=True)
    rounded = ((magnitude + shift) - shift) * SCALE
    code = rounded.to(tl.float16).to(tl.uint16, bitcast=True) >> (10 - MANTISSA)
    code = tl.where(value == value, code.to(tl.uint32), 0x7F)
    return (code | bits >> 31 << 7).to(tl.uint8).to(dtype, bitcast=True)
