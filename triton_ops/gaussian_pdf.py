"""The mean of a normal density at neighbouring points, and its derivative: kernels and launchers.

Twin of csrc/ops/gaussian_pdf.cu.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.elementwise import plan_elementwise
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.numbers import number_halves
from diglot.triton_ops.launch.plan import Operand, Unseen
from diglot.triton_ops.lib.elementwise_kernels import elementwise_kernels
from diglot.triton_ops.lib.gaussian_pdf import (
    gaussian_pdf,
    gaussian_pdf_gradient,
    gaussian_pdf_parameters,
    gaussian_pdf_slope_parameters,
)
from diglot.triton_ops.lib.types import compute_type, convert, number


@triton.jit
def parameters(halves, OUT: tl.constexpr):
    """The parameters of gaussian_pdf, in OUT's type of computation."""
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
        tl.full((), halves[18], tl.int32),
    )


@triton.jit
def forward(x, p, OUT: tl.constexpr):
    return convert(gaussian_pdf(x.to(compute_type(OUT)), p), OUT)


@triton.jit
def backward(grad_output, x, p, OUT: tl.constexpr):
    COMPUTE: tl.constexpr = compute_type(OUT)
    return convert(gaussian_pdf_gradient(grad_output.to(COMPUTE), x.to(COMPUTE), p), OUT)


gaussian_pdf_forward_flat, gaussian_pdf_forward_strided = elementwise_kernels(
    "gaussian_pdf_forward", forward, ("input",), numbers=19, prepare=parameters
)
gaussian_pdf_backward_flat, gaussian_pdf_backward_strided = elementwise_kernels(
    "gaussian_pdf_backward", backward, ("grad_output", "input"), numbers=19, prepare=parameters
)


def numbers(parameters: Callable[..., tuple[Any, ...]], out: Operand) -> Any:
    """Makes the function of the kernels' numbers: the halves of the results of `parameters`."""

    @functools.lru_cache
    def make(mean: float, std: float, terms: int) -> tuple[int, ...]:
        *values, terms = parameters(mean, std, terms, out.dtype == torch.float64)
        return (*(half for value in values for half in number_halves(value, out.dtype)), terms)

    # A cache takes 0.0 and -0.0 for one key; a sum with 0.0 makes one of both.
    return lambda mean, std, terms: make(mean + 0.0, std, terms)


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
        most=out.device.tuned("gaussian_pdf.triton.elements"),
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
        most=out.device.tuned("gaussian_pdf.triton.elements"),
    )
