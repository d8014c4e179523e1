"""The mean of a normal density at neighbouring points, and its derivative: kernels and launchers.

Twin of csrc/ops/gaussian_pdf.cu.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.elementwise_launch import plan_elementwise
from diglot.triton_ops.launch import launcher, number_halves
from diglot.triton_ops.lib.elementwise import (
    flat_start,
    shifted,
    strided_index,
    strided_load,
    strided_offset,
    strided_store,
)
from diglot.triton_ops.lib.gaussian_pdf import (
    gaussian_pdf,
    gaussian_pdf_gradient,
    gaussian_pdf_parameters,
    gaussian_pdf_slope_parameters,
)
from diglot.triton_ops.lib.types import compute_type, convert, number
from diglot.triton_ops.plan import Operand, Unseen

MOST = 4  # elements of a thread: each takes a dozen registers from term to term
HEAD = tl.constexpr(16)  # more elements than any array is away from a 16-byte boundary


@triton.jit
def parameters(halves, terms, OUT: tl.constexpr):
    """What the functions take, in the type that OUT is computed in."""
    COMPUTE: tl.constexpr = compute_type(OUT)
    return (
        number(halves[0], halves[1], COMPUTE),
        number(halves[2], halves[3], COMPUTE),
        number(halves[4], halves[5], COMPUTE),
        number(halves[6], halves[7], COMPUTE),
        number(halves[8], halves[9], COMPUTE),
        number(halves[10], halves[11], COMPUTE),
        number(halves[12], halves[13], COMPUTE),
        number(halves[14], halves[15], COMPUTE),
        number(halves[16], halves[17], COMPUTE),
        tl.full((), terms, tl.int32),
    )


@triton.jit
def forward(x, of, OUT: tl.constexpr):
    return convert(gaussian_pdf(x.to(compute_type(OUT)), of), OUT)


@triton.jit
def backward(grad_output, x, of, OUT: tl.constexpr):
    COMPUTE: tl.constexpr = compute_type(OUT)
    return convert(gaussian_pdf_gradient(grad_output.to(COMPUTE), x.to(COMPUTE), of), OUT)


@triton.jit
def gaussian_pdf_forward_flat(
    input, output, n, head,
    h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13, h14, h15, h16, h17, terms,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = output.dtype.element_ty
    halves = (h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13, h14, h15, h16, h17)
    of = parameters(halves, terms, OUT)
    start = flat_start(head, BLOCK)
    index = tl.arange(0, BLOCK)
    in_pointer = shifted(input, start, ALIGNED)
    out_pointer = shifted(output, start, ALIGNED)
    # Whole programs go without a mask: one would split their 16-byte accesses.
    if start + BLOCK <= n:
        x = tl.load(in_pointer + index)
        tl.store(out_pointer + index, forward(x, of, OUT))
    else:
        mask = index < n - start
        x = tl.load(in_pointer + index, mask=mask)
        tl.store(out_pointer + index, forward(x, of, OUT), mask=mask)
    if (tl.program_id(0) == 0) & (head > 0):
        at = tl.arange(0, HEAD)
        head_x = tl.load(input + at, mask=at < head)
        tl.store(output + at, forward(head_x, of, OUT), mask=at < head)


@triton.jit
def gaussian_pdf_forward_strided(
    input, output, n,
    size0, size1, size2, size3, size4, size5, size6, size7,
    out_start, out0, out1, out2, out3, out4, out5, out6, out7,
    in_start, in0, in1, in2, in3, in4, in5, in6, in7,
    h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13, h14, h15, h16, h17, terms,
    RANK: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr, BROADCAST: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = output.dtype.element_ty
    halves = (h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13, h14, h15, h16, h17)
    of = parameters(halves, terms, OUT)
    sizes = (size0, size1, size2, size3, size4, size5, size6, size7)
    index, mask = strided_index(n, BLOCK // VECTOR, WIDE)
    out_strides = (out0, out1, out2, out3, out4, out5, out6, out7)
    out_at = strided_offset(index, sizes, out_start, out_strides, RANK, WIDE)
    in_strides = (in0, in1, in2, in3, in4, in5, in6, in7)
    in_at = strided_offset(index, sizes, in_start, in_strides, RANK, WIDE)
    x = strided_load(input, in_at, mask, VECTOR, BROADCAST & 1, ALIGNED)
    strided_store(output, out_at, forward(x, of, OUT), mask, VECTOR, ALIGNED)


@triton.jit
def gaussian_pdf_backward_flat(
    grad_output, input, grad_input, n, head,
    h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13, h14, h15, h16, h17, terms,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = grad_input.dtype.element_ty
    halves = (h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13, h14, h15, h16, h17)
    of = parameters(halves, terms, OUT)
    start = flat_start(head, BLOCK)
    index = tl.arange(0, BLOCK)
    grad_pointer = shifted(grad_output, start, ALIGNED)
    in_pointer = shifted(input, start, ALIGNED)
    out_pointer = shifted(grad_input, start, ALIGNED)
    if start + BLOCK <= n:
        gradient = tl.load(grad_pointer + index)
        x = tl.load(in_pointer + index)
        tl.store(out_pointer + index, backward(gradient, x, of, OUT))
    else:
        mask = index < n - start
        gradient = tl.load(grad_pointer + index, mask=mask)
        x = tl.load(in_pointer + index, mask=mask)
        tl.store(out_pointer + index, backward(gradient, x, of, OUT), mask=mask)
    if (tl.program_id(0) == 0) & (head > 0):
        at = tl.arange(0, HEAD)
        head_grad = tl.load(grad_output + at, mask=at < head)
        head_x = tl.load(input + at, mask=at < head)
        tl.store(grad_input + at, backward(head_grad, head_x, of, OUT), mask=at < head)


@triton.jit
def gaussian_pdf_backward_strided(
    grad_output, input, grad_input, n,
    size0, size1, size2, size3, size4, size5, size6, size7,
    out_start, out0, out1, out2, out3, out4, out5, out6, out7,
    grad_start, grad0, grad1, grad2, grad3, grad4, grad5, grad6, grad7,
    in_start, in0, in1, in2, in3, in4, in5, in6, in7,
    h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13, h14, h15, h16, h17, terms,
    RANK: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr, BROADCAST: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = grad_input.dtype.element_ty
    halves = (h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13, h14, h15, h16, h17)
    of = parameters(halves, terms, OUT)
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
    result = backward(gradient, x, of, OUT)
    strided_store(grad_input, out_at, result, mask, VECTOR, ALIGNED)


def numbers(parameters: Callable[..., tuple[Any, ...]], out: Operand) -> Any:
    """What makes the kernels' numbers: the halves of what `parameters` makes of a call's."""

    def make(mean: float, std: float, terms: int) -> tuple[int, ...]:
        *values, terms = parameters(mean, std, terms, out.dtype == torch.float64)
        return (*(half for value in values for half in number_halves(value, out.dtype)), terms)

    return make


@launcher
def gaussian_pdf_forward(
    input: Operand, mean: Unseen, std: Unseen, terms: Unseen, out: Operand
) -> Plan:
    """out = the mean of the density at `terms` points around input."""
    return plan_elementwise(
        gaussian_pdf_forward_flat,
        gaussian_pdf_forward_strided,
        (input, out),
        numbers=numbers(gaussian_pdf_parameters, out),
        most=MOST,
    )


@launcher
def gaussian_pdf_backward(
    grad_output: Operand, input: Operand, mean: Unseen, std: Unseen, terms: Unseen, out: Operand
) -> Plan:
    """out = grad_output times the derivative of that mean."""
    return plan_elementwise(
        gaussian_pdf_backward_flat,
        gaussian_pdf_backward_strided,
        (grad_output, input, out),
        numbers=numbers(gaussian_pdf_slope_parameters, out),
        most=MOST,
    )
