"""Two linear layers with an activation between them: the launcher of the hidden gradient. linear.py
launches the layers, and matmul.py has the kernels. Twin of csrc/ops/mlp.cu.
"""

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import Operand
from diglot.triton_ops.launch.products import Around, product_of
from diglot.triton_ops.matmul import plan_product


@launcher
def mlp_backward(
    grad_output: Operand,
    weight: Operand,
    before: Operand,
    activation: str,
    precision: str,
    out: Operand,
) -> Plan:
    """out = (grad_output @ weight) * activation'(before)."""
    around = Around(input=before, activation=activation, is_slope=True)
    return plan_product(product_of(grad_output, weight, out, around).with_precision(precision))
