"""GELU and its derivative: kernels and launchers. Twin of csrc/ops/gelu.cu."""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.elementwise_launch import plan_elementwise
from diglot.triton_ops.launch import launcher
from diglot.triton_ops.lib.elementwise import (
    flat_start,
    shifted,
    strided_index,
    strided_load,
    strided_offset,
    strided_store,
)
from diglot.triton_ops.lib.gelu import gelu, gelu_gradient
from diglot.triton_ops.lib.types import compute_type, convert
from diglot.triton_ops.plan import Operand

HEAD = tl.constexpr(16)  # more elements than any array is away from a 16-byte boundary


@triton.constexpr_function
def precision_of(dtype):
    """What the maths must be good for: the type that the result is rounded to."""
    if dtype in (tl.float16, tl.bfloat16):
        return "half"
    return "double" if dtype == tl.float64 else "float"


@triton.jit
def forward(x, OUT: tl.constexpr, APPROXIMATE: tl.constexpr):
    return convert(gelu(x.to(compute_type(OUT)), APPROXIMATE, precision_of(OUT)), OUT)


@triton.jit
def backward(grad_output, x, OUT: tl.constexpr, APPROXIMATE: tl.constexpr):
    COMPUTE: tl.constexpr = compute_type(OUT)
    gradient = gelu_gradient(grad_output.to(COMPUTE), x.to(COMPUTE), APPROXIMATE, precision_of(OUT))
    return convert(gradient, OUT)


@triton.jit
def gelu_forward_flat(
    input, output, n, head, APPROXIMATE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    OUT: tl.constexpr = output.dtype.element_ty
    start = flat_start(head, BLOCK)
    index = tl.arange(0, BLOCK)
    in_pointer = shifted(input, start, ALIGNED)
    out_pointer = shifted(output, start, ALIGNED)
    # Whole programs go without a mask: one would split their 16-byte accesses.
    if start + BLOCK <= n:
        x = tl.load(in_pointer + index)
        tl.store(out_pointer + index, forward(x, OUT, APPROXIMATE))
    else:
        mask = index < n - start
        x = tl.load(in_pointer + index, mask=mask)
        tl.store(out_pointer + index, forward(x, OUT, APPROXIMATE), mask=mask)
    if (tl.program_id(0) == 0) & (head > 0):
        at = tl.arange(0, HEAD)
        head_x = tl.load(input + at, mask=at < head)
        tl.store(output + at, forward(head_x, OUT, APPROXIMATE), mask=at < head)


@triton.jit
def gelu_forward_strided(
    input, output, n,
    size0, size1, size2, size3, size4, size5, size6, size7,
    out_start, out0, out1, out2, out3, out4, out5, out6, out7,
    in_start, in0, in1, in2, in3, in4, in5, in6, in7,
    APPROXIMATE: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr,
    BROADCAST: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = output.dtype.element_ty
    sizes = (size0, size1, size2, size3, size4, size5, size6, size7)
    index, mask = strided_index(n, BLOCK // VECTOR, WIDE)
    out_strides = (out0, out1, out2, out3, out4, out5, out6, out7)
    out_at = strided_offset(index, sizes, out_start, out_strides, RANK, WIDE)
    in_strides = (in0, in1, in2, in3, in4, in5, in6, in7)
    in_at = strided_offset(index, sizes, in_start, in_strides, RANK, WIDE)
    x = strided_load(input, in_at, mask, VECTOR, BROADCAST & 1, ALIGNED)
    strided_store(output, out_at, forward(x, OUT, APPROXIMATE), mask, VECTOR, ALIGNED)


@triton.jit
def gelu_backward_flat(
    grad_output, input, grad_input, n, head,
    APPROXIMATE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = grad_input.dtype.element_ty
    start = flat_start(head, BLOCK)
    index = tl.arange(0, BLOCK)
    grad_pointer = shifted(grad_output, start, ALIGNED)
    in_pointer = shifted(input, start, ALIGNED)
    out_pointer = shifted(grad_input, start, ALIGNED)
    if start + BLOCK <= n:
        gradient = tl.load(grad_pointer + index)
        x = tl.load(in_pointer + index)
        tl.store(out_pointer + index, backward(gradient, x, OUT, APPROXIMATE))
    else:
        mask = index < n - start
        gradient = tl.load(grad_pointer + index, mask=mask)
        x = tl.load(in_pointer + index, mask=mask)
        tl.store(out_pointer + index, backward(gradient, x, OUT, APPROXIMATE), mask=mask)
    if (tl.program_id(0) == 0) & (head > 0):
        at = tl.arange(0, HEAD)
        head_grad = tl.load(grad_output + at, mask=at < head)
        head_x = tl.load(input + at, mask=at < head)
        tl.store(grad_input + at, backward(head_grad, head_x, OUT, APPROXIMATE), mask=at < head)


@triton.jit
def gelu_backward_strided(
    grad_output, input, grad_input, n,
    size0, size1, size2, size3, size4, size5, size6, size7,
    out_start, out0, out1, out2, out3, out4, out5, out6, out7,
    grad_start, grad0, grad1, grad2, grad3, grad4, grad5, grad6, grad7,
    in_start, in0, in1, in2, in3, in4, in5, in6, in7,
    APPROXIMATE: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr,
    BROADCAST: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = grad_input.dtype.element_ty
    sizes = (size0, size1, size2, size3, size4, size5, size6, size7)
    index, mask = strided_index(n, BLOCK // VECTOR, WIDE)
    out_strides = (out0, out1, out2, out3, out4, out5, out6, out7)
    out_at = strided_offset(index, sizes, out_start, out_strides, RANK, WIDE)
    grad_strides = (grad0, grad1, grad2, grad3, grad4, grad5, grad6, grad7)
    grad_at = strided_offset(index, sizes, grad_start, grad_strides, RANK, WIDE)
    in_strides = (in0, in1, in2, in3, in4, in5, in6, in7)
    in_at = strided_offset(index, sizes, in_start, in_strides, RANK, WIDE)
    gradient = strided_load(grad_output, grad_at, mask, VECTOR, BROADCAST & 1, ALIGNED)
    x = strided_load(input, in_at, mask, VECTOR, BROADCAST & 2, ALIGNED)
    result = backward(gradient, x, OUT, APPROXIMATE)
    strided_store(grad_input, out_at, result, mask, VECTOR, ALIGNED)


@launcher
def gelu_forward(input: Operand, approximate: str, out: Operand) -> Plan:
    """out = gelu(input)."""
    return plan_elementwise(gelu_forward_flat, gelu_forward_strided, (input, out), (approximate,))


@launcher
def gelu_backward(grad_output: Operand, input: Operand, approximate: str, out: Operand) -> Plan:
    """out = grad_output * gelu'(input)."""
    return plan_elementwise(
        gelu_backward_flat, gelu_backward_strided, (grad_output, input, out), (approximate,)
    )
