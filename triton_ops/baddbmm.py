"""Products of batches of matrices, and matrices beside them: the launcher. matmul.py has the
kernels. Twin of csrc/ops/baddbmm.cu.
"""

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import Operand, Unseen
from diglot.triton_ops.launch.products import Around, product_of
from diglot.triton_ops.matmul import plan_product


@launcher
def baddbmm_forward(
    batch1: Operand,
    batch2: Operand,
    input: Operand | None,
    beta: Unseen,
    alpha: Unseen,
    batch_invariant: bool,
    precision: str,
    out: Operand,
) -> Plan:
    """out = beta * input + alpha * batch1 @ batch2."""
    around = Around(input=input, is_scaled=True)
    product = product_of(batch1, batch2, out, around, batch_invariant)
    return plan_product(product.with_precision(precision))
