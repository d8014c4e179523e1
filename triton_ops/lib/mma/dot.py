"""Products of tiles on tensor cores, right under Triton's interpreter too.

The interpreter multiplies the bits of bfloat16, and reads NaN and infinities of 8-bit floats as
numbers. It also ignores the precision of float32 products. So `dot` widens tiles itself there, and
rounds float32 as a tensor core reads it. Only the order of the sums differs from a GPU's.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.types import INTERPRETED, widen

# Of the precision of float32 products. Triton 3.6 takes no plain text as a default.
DEFAULT_PRECISION = tl.constexpr("tf32")

if INTERPRETED:

    @triton.jit
    def _round_to_tf32(x):
        """float32 to 10 bits of mantissa, to nearest, ties away from zero: cvt.rna.tf32."""
        bits = x.to(tl.uint32, bitcast=True) + 0x1000
        return tl.where(tl.abs(x) < float("inf"), _as_tf32(bits.to(tl.float32, bitcast=True)), x)

    @triton.jit
    def _as_tf32(x):
        """float32 as a tensor core reads it: without the last 13 bits of its mantissa."""
        return (x.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)

    @triton.jit
    def _dot_tf32(a, b, accumulator):
        return tl.dot(_as_tf32(a), _as_tf32(b), accumulator, input_precision="ieee")

    @triton.jit
    def _dot_tf32x3(a, b, accumulator):
        """Three products in TF32, of heads and tails, as Triton's compiler makes them."""
        head_a, head_b = _round_to_tf32(a), _round_to_tf32(b)
        product = _dot_tf32(a - head_a, head_b, tl.zeros_like(accumulator))
        product = _dot_tf32(head_a, b - head_b, product)
        product = tl.where(product == product, product, 0.0)  # infinity has no tail
        return _dot_tf32(head_a, head_b, product) + accumulator

    @triton.jit
    def dot(
        a,
        b,
        accumulator,
        input_precision: tl.constexpr = DEFAULT_PRECISION,
        max_num_imprecise_acc: tl.constexpr = None,
    ):
        """a @ b + accumulator, in the accumulator's type.

        Args:
            a: a tile (M, K) of float16, bfloat16, float32, 8-bit floats, int8 or float64.
            b: a tile (K, N) of the same type; 8-bit floats may differ.
            accumulator: a tile (M, N): float32, or float16 for products of float16, int32 for int8,
                float64 for float64.
            input_precision: of float32 products: "tf32", "tf32x3" or "ieee".
            max_num_imprecise_acc: of products of 8-bit floats, as in `tl.dot`; the interpreter sums
                in float32 always.
        """
        if a.dtype.is_int() or a.dtype == tl.float64:
            result = tl.dot(a, b, accumulator, out_dtype=accumulator.dtype)
        else:
            wide_a, wide_b = widen(a, tl.float32), widen(b, tl.float32)
            total = accumulator.to(tl.float32)
            if a.dtype != tl.float32 or input_precision == "ieee":
                total = tl.dot(wide_a, wide_b, total, input_precision="ieee")
            elif input_precision == "tf32x3":
                total = _dot_tf32x3(wide_a, wide_b, total)
            else:
                tl.static_assert(input_precision == "tf32", "it must be tf32, tf32x3 or ieee")
                total = _dot_tf32(wide_a, wide_b, total)
            result = total.to(accumulator.dtype)
        return result

else:

    @triton.jit
    def dot(
        a,
        b,
        accumulator,
        input_precision: tl.constexpr = DEFAULT_PRECISION,
        max_num_imprecise_acc: tl.constexpr = None,
    ):
        """a @ b + accumulator, in the accumulator's type: Triton's `tl.dot`."""
        return tl.dot(
            a,
            b,
            accumulator,
            input_precision=input_precision,
            max_num_imprecise_acc=max_num_imprecise_acc,
            out_dtype=accumulator.dtype,
        )
