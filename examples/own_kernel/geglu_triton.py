"""out = gelu(x) * y, the gate of a GEGLU feed-forward block, in Triton. Twin of geglu.cu.

Parts of diglot's: the mathematics (`lib.gelu`), the rounding on the way to memory (`lib.types`) and
the walk over the arrays (`lib.elementwise`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import map_flat
from diglot.triton_ops.lib.gelu import gelu
from diglot.triton_ops.lib.types import convert

BLOCK = 4096


@triton.jit
def gate(x, y, OUT: tl.constexpr, PRECISION: tl.constexpr):
    activated = gelu(x.to(tl.float32), "tanh", PRECISION)
    return convert(activated * y.to(tl.float32), OUT)


@triton.jit
def geglu_kernel(x, y, out, n, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    # No head, and no promise of alignment: Triton sees by itself how addresses are aligned.
    map_flat(gate, (x, y), out, n, 0, (), (PRECISION,), False, BLOCK)


def precision_of(dtype: torch.dtype) -> str:
    """What the maths must be good for: the dtype that the result is rounded to."""
    precisions = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "half"}
    if dtype not in precisions:
        raise TypeError(f"geglu: x must be float32, float16 or bfloat16, not {dtype}")
    return precisions[dtype]


def geglu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """gelu(x) * y, with the tanh form of GELU; x and y of one shape, dtype and device."""
    if x.shape != y.shape or x.device != y.device:
        raise ValueError("geglu: x and y must have one shape and be on one device")
    if x.dtype != y.dtype:
        raise TypeError("geglu: x and y must have one dtype")
    precision = precision_of(x.dtype)
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    if out.numel() == 0:
        return out
    # Fused operations are written as such in diglot's functions; others must not be contracted.
    grid = (triton.cdiv(out.numel(), BLOCK),)
    with torch.cuda.device_of(x):
        geglu_kernel[grid](
            x, y, out, out.numel(), precision, BLOCK, num_warps=8, enable_fp_fusion=False
        )
    return out
