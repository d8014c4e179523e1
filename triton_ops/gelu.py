"""GELU and its derivative: functions and launchers. Twin of csrc/ops/gelu.cu."""

import triton
import triton.language as tl

from diglot.backends.plans import Plan
from diglot.triton_ops.launch.elementwise import plan_elementwise
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.plan import Operand
from diglot.triton_ops.lib.elementwise_kernels import elementwise_kernels
from diglot.triton_ops.lib.gelu import gelu, gelu_gradient, precision_of
from diglot.triton_ops.lib.types import compute_type, convert

FORWARD_SMALL = 5  # multiplies the size up to which arrays are small
# The most registers of a thread of the tanh form's derivative, by the bytes of an element and the
# thread's accesses. Its arithmetic is long, so more resident threads hide more of it. In code for
# GPUs before compute capability 9.0, such limits would spill.
TANH_BACKWARD_REGISTERS = {2: {1: 40, 2: 56}, 4: {1: 40, 2: 40}}
LIMITED_FROM = 90


@triton.jit
def forward(x, OUT: tl.constexpr, APPROXIMATE: tl.constexpr):
    return convert(gelu(x.to(compute_type(OUT)), APPROXIMATE, precision_of(OUT)), OUT)


@triton.jit
def backward(grad_output, x, OUT: tl.constexpr, APPROXIMATE: tl.constexpr):
    COMPUTE: tl.constexpr = compute_type(OUT)
    gradient = gelu_gradient(grad_output.to(COMPUTE), x.to(COMPUTE), APPROXIMATE, precision_of(OUT))
    return convert(gradient, OUT)


gelu_forward_flat, gelu_forward_strided = elementwise_kernels("gelu_forward", forward, ("input",))
gelu_backward_flat, gelu_backward_strided = elementwise_kernels(
    "gelu_backward", backward, ("grad_output", "input")
)


@launcher
def gelu_forward(input: Operand, approximate: str, out: Operand) -> Plan:
    """out = gelu(input)."""
    kernels = gelu_forward_flat, gelu_forward_strided
    return plan_elementwise(*kernels, (input, out), (approximate,), small=FORWARD_SMALL)


@launcher
def gelu_backward(grad_output: Operand, input: Operand, approximate: str, out: Operand) -> Plan:
    """out = grad_output * gelu'(input)."""
    kernels, operands = (gelu_backward_flat, gelu_backward_strided), (grad_output, input, out)
    is_limited = approximate == "tanh" and out.device.architecture >= LIMITED_FROM
    registers = TANH_BACKWARD_REGISTERS.get(out.element_size()) if is_limited else None
    return plan_elementwise(*kernels, operands, (approximate,), registers=registers)
