"""A mixture of experts: what lies between its two grouped products. Rows go to their experts and
back, and an activation follows the first product. Kernels and launchers. Twin of csrc/ops/moe.cu.
"""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import ACCESS_BYTES, NOTHING, Launch, Operand
from diglot.triton_ops.lib.moe.activation import map_activation, map_activation_gradient
from diglot.triton_ops.lib.moe.rows import sum_rows

BLOCK = 1024  # elements of a program
WARPS = 4


@triton.jit
def moe_rows_kernel(
    input, places, weights, out, sources, columns, terms, spread, row_stride, column_stride,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sum_rows(
        input, places, weights, out, sources, columns, terms, spread, row_stride, column_stride,
        VECTOR, BLOCK,
    )  # fmt: skip


@triton.jit
def moe_activation_kernel(
    input, out, rows, columns, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    map_activation(input, out, rows, columns, ACTIVATION, GATED, VECTOR, BLOCK)


@triton.jit
def moe_activation_gradient_kernel(
    grad, input, out, rows, columns, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    map_activation_gradient(grad, input, out, rows, columns, ACTIVATION, GATED, VECTOR, BLOCK)


def _vector(columns: int, *operands: Operand) -> int:
    """The elements of 16-byte accesses along rows; 1 where these begin or end within one."""
    elements = ACCESS_BYTES // operands[0].element_size()
    is_aligned = all(
        each.is_aligned and each.strides[1] == 1 and each.strides[0] % elements == 0
        for each in operands
    )
    return elements if is_aligned and columns % elements == 0 else 1


@launcher
def moe_rows(
    input: Operand, places: Operand, weights: Operand | None, spread: int, out: Operand
) -> Plan:
    """out[i] = sum over j of weights * input[places[i, j]], or of its row in `spread` places."""
    if out.numel() == 0:
        return NOTHING
    rows, columns = out.shape
    strides = [tl.constexpr(1) if step == 1 else step for step in input.strides]
    launch = Launch(
        moe_rows_kernel,
        (rows, triton.cdiv(columns, BLOCK)),
        (input, places, weights, out),
        (input.shape[0], columns, places.shape[1], spread, *strides),
        (_vector(columns, input, out), BLOCK),
        WARPS,
    )
    return Plan("rows", (launch,), None)


@launcher
def moe_activation_forward(input: Operand, activation: str, gated: bool, out: Operand) -> Plan:
    """out = activation(input), or activation(first half of a row) * second half."""
    return _plan_activation(moe_activation_kernel, (input, out), out, activation, gated)


@launcher
def moe_activation_backward(
    grad_output: Operand, input: Operand, activation: str, gated: bool, out: Operand
) -> Plan:
    """The gradient of the input."""
    operands = grad_output, input, out
    return _plan_activation(
        moe_activation_gradient_kernel, operands, grad_output, activation, gated
    )


def _plan_activation(
    kernel: object, operands: tuple[Operand, ...], like: Operand, activation: str, gated: bool
) -> Plan:
    if like.numel() == 0:
        return NOTHING
    launch = Launch(
        kernel,
        (triton.cdiv(like.numel(), BLOCK),),
        operands,
        like.shape,
        (activation, gated, _vector(like.shape[1], *operands), BLOCK),
        WARPS,
    )
    return Plan(f"blocks of {BLOCK}", (launch,), None)
