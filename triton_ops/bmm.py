"""Products of batches of matrices: the launcher. matmul.py has the kernels. Twin of
csrc/ops/bmm.cu.
"""

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import Operand
from diglot.triton_ops.launch.products import product_of
from diglot.triton_ops.matmul import plan_product


@launcher
def bmm_forward(
    input: Operand, mat2: Operand, batch_invariant: bool, precision: str, out: Operand
) -> Plan:
    """out = input @ mat2."""
    product = product_of(input, mat2, out, is_batch_invariant=batch_invariant)
    return plan_product(product.with_precision(precision))
