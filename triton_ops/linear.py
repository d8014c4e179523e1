"""Linear layers: the launcher, of the kernels of matmul. Twin of csrc/ops/linear.cu."""

import dataclasses

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import Operand
from diglot.triton_ops.launch.products import product_of
from diglot.triton_ops.matmul import plan_product


@launcher
def linear_forward(
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    batch_invariant: bool,
    precision: str,
    out: Operand,
) -> Plan:
    """out = input @ weight.T + bias."""
    transposed = dataclasses.replace(weight, shape=weight.shape[::-1], strides=weight.strides[::-1])
    product = product_of(input, transposed, bias, out, batch_invariant)
    return plan_product(product.with_precision(precision))
