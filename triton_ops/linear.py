"""Linear layers: the launchers, and the kernels of the activations' derivatives. matmul.py has the
kernels of products. Twin of csrc/ops/linear.cu.
"""

import dataclasses

import torch
import triton
import triton.language as tl

from diglot.backends.plans import CALL, Plan, Scratch
from diglot.triton_ops.add import add_backward_sum
from diglot.triton_ops.launch.elementwise import plan_elementwise
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import Operand, Part
from diglot.triton_ops.launch.products import Around, product_of
from diglot.triton_ops.launch.sum import plan_sum
from diglot.triton_ops.lib.elementwise_kernels import elementwise_kernels
from diglot.triton_ops.lib.products.activations import activation_gradient
from diglot.triton_ops.lib.types import compute_type, convert
from diglot.triton_ops.matmul import plan_product, plan_with_row_sums


@triton.jit
def backward(grad_output, before, OUT: tl.constexpr, ACTIVATION: tl.constexpr):
    """grad_output times the activation's derivative, where `before` went into the activation."""
    COMPUTE: tl.constexpr = compute_type(OUT)
    gradient = activation_gradient(
        convert(grad_output, COMPUTE), convert(before, COMPUTE), ACTIVATION, OUT
    )
    return convert(gradient, OUT)


linear_backward_flat, linear_backward_strided = elementwise_kernels(
    "linear_backward", backward, ("grad_output", "before")
)


@launcher
def linear_forward(
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    residual: Operand | None,
    activation: str,
    batch_invariant: bool,
    precision: str,
    before: Operand | None,
    out: Operand,
) -> Plan:
    """out = activation(input @ weight.T + bias + residual)."""
    transposed = dataclasses.replace(weight, shape=weight.shape[::-1], strides=weight.strides[::-1])
    around = Around(bias, residual, before, activation)
    product = product_of(input, transposed, out, around, batch_invariant)
    return plan_product(product.with_precision(precision))


@launcher
def linear_backward(grad_output: Operand, before: Operand, activation: str, out: Operand) -> Plan:
    """out = grad_output * activation'(before)."""
    return plan_elementwise(
        linear_backward_flat, linear_backward_strided, (grad_output, before, out), (activation,)
    )


@launcher
def linear_parameters_backward(
    grad_output: Operand,
    input: Operand,
    batch_invariant: bool,
    precision: str,
    grad_weight: Operand,
    grad_bias: Operand,
) -> Plan:
    """grad_weight = grad_output @ input, grad_bias = the sums of grad_output's rows.

    The output's gradient is transposed: it has a row for each feature.
    """
    product = product_of(grad_output, input, grad_weight, is_batch_invariant=batch_invariant)
    product = dataclasses.replace(product.with_precision(precision), row_sums=grad_bias)
    return plan_with_row_sums(product) or _with_sum(plan_product(product), grad_output, grad_bias)


def _with_sum(plan: Plan, rows: Operand, out: Operand) -> Plan:
    """A plan, and behind its launches those that sum rows."""
    columns = dataclasses.replace(rows, shape=rows.shape[::-1], strides=rows.strides[::-1])
    held = plan.scratch or Scratch(0, 0, CALL)
    before = Part(torch.uint8, held.bytes) if held.bytes else None
    sums = plan_sum(add_backward_sum, columns, out, before=before)
    scratch = plan.scratch
    if sums.scratch is not None:
        scratch = Scratch(sums.scratch.bytes, held.zeroed, held.lifetime)
    return Plan(f"{plan.variant}; {sums.variant}", (*plan.launches, *sums.launches), scratch)
