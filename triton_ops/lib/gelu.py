"""GELU and its derivative, element by element, in both forms of torch.nn.functional.gelu.

erf form, ``approximate="none"``: x Phi(x), Phi the normal distribution function.
tanh form, ``approximate="tanh"``: x / (1 + exp(-z)), z = 2 sqrt(2/pi) (x + 0.044715 x^3).

The textbook 0.5 x (1 + erf(..)) or (1 + tanh(..)) cancels for x < 0: it has no correct digit left
at x = -5.5 in fp32, where gelu is -1e-7. These functions compute the lower tail itself, with t =
|x|, and take the other side as its complement. So they keep their relative accuracy for every x
whose result is a normal number, even near the root of the derivative. There are no branches, only
selections.

Special values, as in the CUDA kernels of PyTorch: gelu(NaN) = NaN, gelu(+inf) = +inf and
gelu(-inf) = NaN; the derivative at +-inf is NaN. Every finite x has a finite result. Results below
the least normal number may be flushed to zero, and a zero may lose its sign.

``precision`` names the type that the result is rounded to, which sets the length of the
polynomials. It is "half", "float" or "double". With "half", x was fp16 or bf16, and the caller
rounds the fp32 result to it.

Each precision has a file of its own: gelu_half.py, gelu_float.py and gelu_double.py. Their
polynomials are minimax fits of tools/fit_gelu.py, which defines H, G, Q, C and W. The twin is
csrc/include/diglot/gelu.cuh, operation for operation.
"""

import triton
import triton.language as tl

from .gelu_double import (
    erf_derivative_double,
    erf_forward_double,
    tanh_derivative_double,
    tanh_forward_double,
)
from .gelu_float import (
    erf_derivative_float,
    erf_forward_float,
    gradient_float,
    tanh_derivative_float,
    tanh_forward_float,
)
from .gelu_half import (
    erf_derivative_half,
    erf_forward_half,
    tanh_derivative_half,
    tanh_forward_half,
)


@triton.constexpr_function
def precision_of(dtype):
    """The precision that a result of this type needs."""
    if dtype in (tl.float16, tl.bfloat16):
        return "half"
    return "double" if dtype == tl.float64 else "float"


@triton.jit
def gelu(x, approximate: tl.constexpr, precision: tl.constexpr):
    """gelu(x). The largest errors found among normal results:

    - half, after rounding to fp16 or bf16: 1 ulp. The erf form has it at 90 of the 63488 finite
      fp16 inputs and at 1 bf16 input, the tanh form at 8 fp16 inputs.
    - float: 1.85 ulp in the erf form, 0.95 ulp for x > 0; 1.80 and 1.45 ulp in the tanh form.
    - double: a relative error of 1.3e-15 in the erf form, and of 7e-16 in the tanh form.
    """
    if precision == "half":
        if approximate == "tanh":
            result = tanh_forward_half(x)
        else:
            result = erf_forward_half(x)
    elif precision == "float":
        if approximate == "tanh":
            result = tanh_forward_float(x)
        else:
            result = erf_forward_float(x)
    else:
        if approximate == "tanh":
            result = tanh_forward_double(x)
        else:
            result = erf_forward_double(x)
    return result


@triton.jit
def gelu_derivative(x, approximate: tl.constexpr, precision: tl.constexpr):
    """The derivative of gelu at x. The largest errors found, as above:

    - half, after rounding: 1 ulp. The erf form has it at 121 fp16 inputs, the tanh form at 8.
    - float: 1.75 ulp in the erf form, 1.13 ulp for x > 0; 1.82 and 1.27 ulp in the tanh form.
    - double: a relative error of 8e-16 in the erf form, and of 1.0e-15 in the tanh form.
    """
    if precision == "half":
        if approximate == "tanh":
            result = tanh_derivative_half(x)
        else:
            result = erf_derivative_half(x)
    elif precision == "float":
        result = gelu_gradient(tl.full(x.shape, 1.0, tl.float32), x, approximate, precision)
    else:
        if approximate == "tanh":
            result = tanh_derivative_double(x)
        else:
            result = erf_derivative_double(x)
    return result


@triton.jit
def gelu_gradient(grad, x, approximate: tl.constexpr, precision: tl.constexpr):
    """grad times the derivative of gelu at x, with the derivative's accuracy.

    In fp32 the product is not rounded on its own. It does not vanish where the derivative alone
    would.
    """
    if precision == "float":
        if approximate == "tanh":
            head, tail, correction, power = tanh_derivative_float(x)
        else:
            head, tail, correction, power = erf_derivative_float(x)
        result = gradient_float(grad, x, head, tail, correction, power)
    else:
        result = grad * gelu_derivative(x, approximate, precision)
    return result
