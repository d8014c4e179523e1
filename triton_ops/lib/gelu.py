"""GELU and its derivative, element by element, in both forms of torch.nn.functional.gelu.

erf form, ``approximate="none"``: x Phi(x), Phi the normal distribution function.
tanh form, ``approximate="tanh"``: x / (1 + exp(-z)), z = 2 sqrt(2/pi) (x + 0.044715 x^3).

The textbook 0.5 x (1 + erf(..)) or (1 + tanh(..)) cancels for x < 0: it has no correct digit left
at x = -5.5 in fp32, where gelu is -1e-7. These functions compute the lower tail itself, with
t = |x|, and take the other side as its complement, so that they keep their relative accuracy for
every x whose result is a normal number, near the root of the derivative included. There are no
branches, only selections.

Special values, as in the CUDA kernels of PyTorch: gelu(NaN) = NaN, gelu(+inf) = +inf and
gelu(-inf) = NaN; the derivative at +-inf is NaN. Every finite x has a finite result. Results below
the least normal number may be flushed to zero, and a zero may lose its sign.

``precision`` names what the result is rounded to, which sets the length of the polynomials:
"half" (x was fp16 or bf16, the fp32 result is rounded to it later), "float" or "double".

The polynomials are minimax fits of tools/fit_gelu.py, which defines H, G, Q, C and W. The twin of
this file is csrc/include/diglot/gelu.cuh, operation for operation.
"""

import triton
import triton.language as tl

from .math import (
    ROUNDING_SHIFT,
    exp2_approximate,
    fma,
    horner,
    minimum,
    negate,
    power_of_two,
    reciprocal_approximate,
    relu,
)

# Exponents of the tail reach -135, where 2^n is subnormal while its product with x is normal: most
# functions below therefore take 2^(n + 8) and scale another factor by 2^-8.
_BIAS = tl.constexpr(ROUNDING_SHIFT.value + 127.0)
_BIAS_SCALED = tl.constexpr(ROUNDING_SHIFT.value + 135.0)
# In the tanh form's derivative z' adds eight more bits between exp(-z) and the result.
_BIAS_TWICE_SCALED = tl.constexpr(ROUNDING_SHIFT.value + 143.0)

_LOG2 = tl.constexpr(0.693147182)

# fmt: off
_W = tl.constexpr((
    0.240226477, 0.0555035882, 0.00961848162, 0.00133914745, 0.000153406814,
))
_H_HALF = tl.constexpr((
    0.12021786, 0.112154946, 0.150610238, -0.028978534, 0.22663185, -0.0806351379,
))
_G_HALF = tl.constexpr((
    0.398499101, 0.125839457, 0.0638402477, 0.119551748, -0.0426508412,
))
_H_FLOAT = tl.constexpr((
    0.122753359, -0.0330858268, -0.0925081149, 0.0523286983, -0.0114390757, -3.38006539e-5,
    0.000416611903, -3.52658617e-6, -1.82161511e-5, -3.29360489e-7, 6.46043475e-7,
))
_G_FLOAT = tl.constexpr((
    -0.0153814778, 0.557963371, 0.682849467, 0.61810571, 0.367702395, 0.0837095976, -0.061809022,
    -0.0455233976, 0.0115241716, 0.0183944497,
))
_Q_FLOAT = tl.constexpr((
    0.0506959446, -0.71423918, -0.210017204, 0.233760282, 0.0233319253, -0.0474585071,
    -0.000450011867, 0.00694869133, -0.000200621711, -0.000700996257,
))
_C_FLOAT = tl.constexpr((
    0.0397207774, -3.17297236e-5, 7.26184723e-10, -1.47487799e-14, 2.75258669e-19, -4.32689773e-24,
    3.85576953e-29,
))
_H_DOUBLE = tl.constexpr((
    0.099735570096886883, 0.09973557030537368, 0.09350209175421495, 0.081035223090805991,
    0.063502976652864959, 0.043245204594899951, 0.02343406519226731, 0.0067530123747466904,
    2.8109410276689021e-5, -0.022143501502467643, 0.053373041942938231, -0.16938605455025796,
    0.38145155708624584, -0.65782588455233493, 0.88771401332281274, -0.89647511460456297,
    0.65247017148442688, -0.3314903987008439, 0.11189817690700248, -0.022644912658144591,
    0.0020870823528488297,
))
_G_DOUBLE = tl.constexpr((
    0.39894228038998103, 0.074980357051962973, 0.064138841195197374, 0.051260116888874094,
    0.037513795540892611, 0.024350232907980423, 0.012755029967237319, 0.0058448096891534967,
    -0.0048389227098735626, 0.010742250445895975, -0.030477430405247034, 0.047275099226498279,
    -0.057252168799304726, 0.046431334034561914, -0.013945998091478817, -0.013146051159781741,
    0.017522907244130331, -0.0092004900108993513, 0.002458243405213353, -0.00027624167955982257,
))
_Q_DOUBLE = tl.constexpr((
    0.43040009102485854, 0.38751844613578801, -0.015782853521863212, -0.1139444830808625,
    -0.016619328342133838, 0.019682309456769242, 0.0052610592334440274, -0.0024227318013205429,
    -0.00092744176866056368, 0.00026392728577582342, 0.00012425054844644279,
    -3.4954485363523615e-5, -1.5943721832918951e-5, 5.9136379353865643e-6, 2.4150153549924598e-6,
    -9.8072735954763859e-7, -4.0165894451073465e-7, 1.3144888179146705e-7, 4.8441979287148128e-8,
    -1.0755923210533987e-8,
))
# fmt: on


@triton.jit
def _normal_exponent(t, correction, bias: tl.constexpr):
    """2^(-t^2 half_log2_e + correction) as fraction and shifted, 2^(n + fraction).

    |fraction| <= 1/2, and the integer n is left in the low bits of shifted, biased for
    power_of_two(). The rounding error of t^2 would be scaled up by the exponent, to more than
    10 ulp of the result; the fused remainder keeps it. That of the constant is left to the
    polynomials H and G.
    """
    half_log2_e: tl.constexpr = 0.721347511
    square = t * t
    square_tail = fma(t, t, negate(square))
    shifted = fma(square, -half_log2_e, bias)
    head = fma(square, -half_log2_e, bias - shifted)
    return head + fma(square_tail, -half_log2_e, correction), shifted


@triton.jit
def _tanh_slope(t):
    """t^2, and linear + cubic t^2 as head and tail: z(t) log2(e) / t but for the constants' tails.

    linear is short enough for its difference from the head to be exact.
    """
    linear: tl.constexpr = 2.30218506
    cubic: tl.constexpr = 0.102943242
    square = t * t
    square_tail = fma(t, t, negate(square))
    head = fma(square, cubic, linear)
    tail = fma(square_tail, cubic, fma(square, cubic, linear - head))
    return square, head, tail


@triton.jit
def _tanh_exponent(t, square, slope, slope_tail, bias: tl.constexpr):
    """exp(-z(t)) of the tanh form as fraction and shifted, from _tanh_slope(t)."""
    linear_tail: tl.constexpr = 2.31395497e-5
    cubic_tail: tl.constexpr = -2.01619854e-9
    tail = fma(square, cubic_tail, linear_tail) + slope_tail
    shifted = fma(negate(t), slope, bias)
    head = fma(negate(t), slope, bias - shifted)
    return fma(negate(t), tail, head), shifted


@triton.jit
def _exp2_curve(fraction):
    """2^fraction - 1 - fraction log(2)."""
    return fraction * (fraction * horner(fraction, _W))


@triton.jit
def _exp2_fraction(fraction):
    """2^fraction."""
    return fma(fraction, _LOG2, _exp2_curve(fraction)) + 1.0


@triton.jit
def _exp2_product(fraction, g):
    """(1 + g) 2^fraction - 1.

    The largest term comes in last, so that for a small g only the result is rounded at its size.
    """
    return fma(fraction, _LOG2, fma(g, _exp2_fraction(fraction), _exp2_curve(fraction)))


@triton.jit
def _tanh_exponent_double(t):
    """z(t) of the tanh form in fp64, as head and tail."""
    linear = tl.full([], 1.5957691216062813, tl.float64)
    linear_tail = tl.full([], -5.5054826869724373e-13, tl.float64)
    cubic = tl.full([], 0.071354816272600249, tl.float64)
    cubic_tail = tl.full([], -6.175149918155315e-19, tl.float64)
    square = t * t
    square_tail = fma(t, t, negate(square))
    slope = fma(square, cubic, linear)
    slope_tail = fma(square, cubic_tail, linear_tail)
    slope_tail = fma(square_tail, cubic, slope_tail)
    slope_tail = fma(square, cubic, linear - slope) + slope_tail
    head = t * slope
    return head, fma(t, slope_tail, fma(t, slope, negate(head)))


@triton.jit
def _erf_forward_half(x):
    """x Phi(x) = max(x, 0) - t exp(-t^2/2) h(t), h(t) = s H(s), s = 1/(1 + 0.3 t).

    Clamping x from above alone spares +inf a product with the vanishing tail.
    """
    clamped = minimum(x, 16.0)
    t = tl.abs(clamped)
    s = reciprocal_approximate(fma(t, 0.3, 1.0))
    tail = t * exp2_approximate((clamped * -0.721347511) * clamped)
    return fma(negate(tail), s * horner(s, _H_HALF), relu(x))


@triton.jit
def _tanh_forward_half(x):
    """x / (1 + exp(-z)), both sides of the fraction scaled by 2^-4.

    exp(-z) itself overflows at x = -10.06, where the result is still normal.
    """
    slope = fma(x * x, 0.102943242, 2.3022082)
    denominator = exp2_approximate(fma(negate(x), slope, -4.0)) + 0.0625
    return (x * 0.0625) * reciprocal_approximate(denominator)


@triton.jit
def _erf_derivative_half(x):
    """gelu'(-t) = exp(-t^2/2) (root - t) G(s), s = 1/(1 + 0.4 t).

    The exponential is scaled by 2^8 against its underflow.
    """
    t = tl.abs(x)
    s = reciprocal_approximate(fma(t, 0.4, 1.0))
    tail = exp2_approximate(fma(x * -0.721347511, x, 8.0))
    root = fma(t, -0.00390625, 0.751791537 * 0.00390625)
    lower = (tail * root) * horner(s, _G_HALF)
    return tl.where(x < 0.0, lower, 1.0 - lower)


@triton.jit
def _tanh_derivative_half(x):
    """gelu'(-t) = E r (1 - r t z'(t)), E = exp(-z(t)), r = 1/(1 + E).

    E is scaled by 2^8 and the last factor by 2^-8. z' is held constant where E has vanished, so
    that no product overflows.
    """
    t = tl.abs(x)
    square = x * x
    slope = fma(square, 0.102943242, 2.3022082)
    tail = exp2_approximate(fma(negate(t), slope, 8.0))
    r = reciprocal_approximate(fma(tail, 0.00390625, 1.0))
    z_slope = fma(minimum(square, 256.0), 0.214064449 * 0.00390625, 1.59576912 * 0.00390625)
    lower = (tail * r) * fma(negate(r * t), z_slope, 0.00390625)
    return tl.where(x < 0.0, lower, 1.0 - lower)


@triton.jit
def _erf_forward_float(x):
    """As _erf_forward_half, with s = 1/(2 + 2.3 t), which keeps H within 8 % of 1.

    The tail is t s 2^n times 1 + correction. The rounding error of t s is added, and that of s,
    its own and that of its denominator, joins the exponent. H is a polynomial in
    t/(1 + 0.3 t) - 1, on which errors of this other reciprocal have little effect.
    """
    clamped = minimum(x, 13.26)
    t = minimum(tl.abs(clamped), 13.26)
    denominator = fma(t, 2.3, 2.0)
    denominator_tail = fma(t, 2.3, 2.0 - denominator)
    s = reciprocal_approximate(denominator)
    s_error = fma(negate(s), denominator_tail, fma(negate(s), denominator, 1.0))
    fraction, shifted = _normal_exponent(t, s_error * 1.44269504, _BIAS)
    v = fma(t, reciprocal_approximate(fma(t, 0.3, 1.0)), -1.0)
    correction = _exp2_product(fraction, horner(v, _H_FLOAT))
    scaled = tl.abs(clamped) * power_of_two(shifted)
    leading = scaled * s
    leading_tail = fma(scaled, s, negate(leading))
    return relu(x) - (leading + fma(leading, correction, leading_tail))


@triton.jit
def _tanh_forward_float(x):
    """max(x, 0) - t E / (1 + E), E = exp(-z(t)).

    E is scaled by 2^8 and the reciprocal by 2^-8.
    """
    clamped = minimum(x, 10.27)
    t = minimum(tl.abs(clamped), 10.27)
    square, slope, slope_tail = _tanh_slope(t)
    fraction, shifted = _tanh_exponent(t, square, slope, slope_tail, _BIAS_SCALED)
    power = power_of_two(shifted)
    tail = _exp2_fraction(fraction) * power
    denominator = tail + 256.0
    denominator_tail = (256.0 - denominator) + tail
    r = reciprocal_approximate(denominator)
    r_error = fma(negate(r), denominator_tail, fma(negate(r), denominator, 1.0))
    scaled = fma(r, _exp2_product(fraction, r_error), r)
    return fma(negate(tl.abs(clamped) * power), scaled, relu(x))


@triton.jit
def _gradient(grad, x, head, tail, correction, power):
    """grad gelu'(x), rounded about once, with gelu'(-|x|) = (head + tail) (1 + correction) power.

    The factors are not multiplied out, so that the gradient can be multiplied in before anything
    rounds or underflows. The tail is NaN where x is infinite, as PyTorch's derivative is.
    gelu'(x) = 1 - gelu'(-x).
    """
    product = grad * head
    rest = fma(grad, tail, fma(grad, head, negate(product)))
    rest = fma(product, correction, fma(rest, correction, rest))
    below = (product + rest) * power
    return tl.where(x < 0.0, below, grad - below)


@triton.jit
def _erf_derivative_float(x):
    """gelu'(-t) = exp(-t^2/2) r G(s), s = 1/(1 + 0.25 t), r = 0.5 (root - t) 2^-8.

    G is near 1: only G - 1 is computed. The error of s, compensated in the exponent, is weighed
    by the slope of log2(G) over log(s). r carries its rounding error.
    """
    t = minimum(tl.abs(x), 13.68)
    denominator = fma(t, 0.25, 1.0)
    denominator_tail = fma(t, 0.25, 1.0 - denominator)
    s = reciprocal_approximate(denominator)
    s_error = fma(negate(s), denominator_tail, fma(negate(s), denominator, 1.0))
    g_error = s_error * fma(s, 1.86514688, -0.494155347)
    fraction, shifted = _normal_exponent(t, g_error, _BIAS_SCALED)
    correction = _exp2_product(fraction, horner(s - 0.625, _G_FLOAT))
    scale: tl.constexpr = 0.001953125
    root_head: tl.constexpr = 0.751791537 * 0.001953125
    root_tail: tl.constexpr = -1.21144499e-8 * 0.001953125
    root = fma(t, -scale, root_head)
    back = root - root_head
    rounding = (root_head - (root - back)) - fma(t, scale, back)
    return root, fma(x, 0.0, rounding + root_tail), correction, power_of_two(shifted)


@triton.jit
def _tanh_derivative_float(x):
    """gelu'(-t) = E (1 + E - t z'(t)) / (1 + E)^2, E = exp(-z(t)).

    Near the root, for t < 1.2, this is (root - t) Q(t). Beyond, the numerator is a sum of two
    floats, and the rest is E C(E).

    The numerator is taken times log2(e)/3, where z'(t) becomes slope - 2/3 linear, which is exact.
    Its head is rounded to a multiple of 2^-17 for its tail to be exact too. What the constants'
    tails would add is left to one_tail, factor and C.
    """
    t = minimum(tl.abs(x), 10.491)
    root = 0.752461433 - t
    root_tail: tl.constexpr = -1.13396279e-8
    near_correction = horner(t - 0.5, _Q_FLOAT)

    square, slope, slope_tail = _tanh_slope(t)
    fraction, exponent = _tanh_exponent(t, square, slope, slope_tail, _BIAS_TWICE_SCALED)
    power = power_of_two(exponent)
    tail = _exp2_fraction(fraction) * power
    correction = _exp2_product(fraction, horner(tail, _C_FLOAT))
    two_thirds: tl.constexpr = 1.53478241
    one: tl.constexpr = 192.480895996  # 192 more, for the shift
    one_tail: tl.constexpr = 2.20671473e-6 * 3.0517578125e-5
    factor: tl.constexpr = 0.480898649 * 1.52587890625e-5
    scale: tl.constexpr = 3.0517578125e-5
    z_slope = slope - two_thirds
    shifted = fma(negate(t), z_slope, one)
    numerator = fma(shifted, scale, -192.0 * 3.0517578125e-5)
    rest = fma(negate(t), z_slope, one - shifted)
    rest = fma(tail, factor, fma(negate(t), slope_tail, rest))
    numerator_tail = fma(rest, scale, one_tail)

    is_near = t < 1.2
    factor_tail = fma(x, 0.0, tl.where(is_near, root_tail, numerator_tail))
    return (
        tl.where(is_near, root, numerator),
        factor_tail,
        tl.where(is_near, near_correction, correction),
        tl.where(is_near, 0.5, power),
    )


@triton.jit
def _erf_forward_double(x):
    """As _erf_forward_half, with exp(-t^2/2) = exp(-t^2/4)^2.

    Neither factor underflows too early; the rounding error of t^2 is multiplied in.
    """
    clamped = minimum(x, 55.0)
    t = minimum(tl.abs(clamped), 55.0)
    s = 1.0 / (t * 0.25 + 1.0)
    square = t * t
    square_tail = fma(t, t, negate(square))
    root_exp = tl.exp(square * -0.25)
    h = (s * horner(s, _H_DOUBLE)) * (1.0 - square_tail * 0.5)
    return relu(x) - ((tl.abs(clamped) * root_exp) * h) * root_exp


@triton.jit
def _tanh_forward_double(x):
    """As _tanh_forward_float, with E as the square of exp(-z/2)."""
    clamped = minimum(x, 30.0)
    t = minimum(tl.abs(clamped), 30.0)
    z, z_tail = _tanh_exponent_double(t)
    root_exp = tl.exp(z * -0.5)
    adjusted = root_exp * (1.0 - z_tail)
    factor = 1.0 / (root_exp * adjusted + 1.0)
    return relu(x) - ((tl.abs(clamped) * adjusted) * factor) * root_exp


@triton.jit
def _erf_derivative_double(x):
    """As _erf_derivative_half, with the exponential of _erf_forward_double."""
    t = minimum(tl.abs(x), 55.0)
    s = 1.0 / (t * 0.25 + 1.0)
    square = t * t
    square_tail = fma(t, t, negate(square))
    root_exp = tl.exp(square * -0.25)
    root = (0.75179152469356447 - tl.abs(x)) + -1.4956759177009883e-17
    factor = (root * horner(s, _G_DOUBLE)) * (1.0 - square_tail * 0.5)
    lower = (root_exp * factor) * root_exp
    return tl.where(x < 0.0, lower, 1.0 - lower)


@triton.jit
def _tanh_derivative_double(x):
    """As _tanh_derivative_float, with the formula as it stands beyond t = 1.5."""
    t = minimum(tl.abs(x), 30.0)
    root = (0.75246142207101629 - t) + -3.6355605092076871e-17
    near_root = root * horner(root, _Q_DOUBLE)

    z, z_tail = _tanh_exponent_double(t)
    root_exp = tl.exp(z * -0.5)
    adjusted = root_exp * (1.0 - z_tail)
    denominator = root_exp * adjusted + 1.0
    # Scaled by 2^-8, so that the product with the largest |x| does not overflow.
    slope = (t * t) * (0.21406444881780073 * 0.00390625) + 1.5957691216057308 * 0.00390625
    numerator = denominator * 0.00390625 - tl.abs(x) * slope
    factor = numerator / (denominator * denominator)
    beyond = ((adjusted * 256.0) * factor) * root_exp

    lower = tl.where(t < 1.5, near_root, beyond)
    return tl.where(x < 0.0, lower, 1.0 - lower)


@triton.jit
def gelu(x, approximate: tl.constexpr, precision: tl.constexpr):
    """gelu(x). Greatest errors found, in ulp of the result, for results that are normal:

    half    1 ulp after rounding (erf: at 90 of 63488 fp16 and 1 bf16 inputs; tanh: 8 and 0)
    float   1.85 ulp (erf), 1.80 ulp (tanh); 0.95 and 1.45 ulp for x > 0
    double  1.3e-15 (erf) and 7e-16 (tanh), relative
    """
    if precision == "half":
        if approximate == "tanh":
            result = _tanh_forward_half(x)
        else:
            result = _erf_forward_half(x)
    elif precision == "float":
        if approximate == "tanh":
            result = _tanh_forward_float(x)
        else:
            result = _erf_forward_float(x)
    else:
        if approximate == "tanh":
            result = _tanh_forward_double(x)
        else:
            result = _erf_forward_double(x)
    return result


@triton.jit
def gelu_derivative(x, approximate: tl.constexpr, precision: tl.constexpr):
    """The derivative of gelu at x. Greatest errors found, as above:

    half    1 ulp after rounding (erf: at 121 fp16 inputs, no bf16 input; tanh: 8 and 0)
    float   1.75 ulp (erf), 1.82 ulp (tanh); 1.13 and 1.27 ulp for x > 0
    double  8e-16 (erf) and 1.0e-15 (tanh), relative
    """
    if precision == "half":
        if approximate == "tanh":
            result = _tanh_derivative_half(x)
        else:
            result = _erf_derivative_half(x)
    elif precision == "float":
        result = gelu_gradient(tl.full(x.shape, 1.0, tl.float32), x, approximate, precision)
    else:
        if approximate == "tanh":
            result = _tanh_derivative_double(x)
        else:
            result = _erf_derivative_double(x)
    return result


@triton.jit
def gelu_gradient(grad, x, approximate: tl.constexpr, precision: tl.constexpr):
    """grad times the derivative of gelu at x, with the derivative's accuracy.

    In fp32 the product is not rounded on its own, and does not vanish where the derivative alone
    would.
    """
    if precision == "float":
        if approximate == "tanh":
            head, tail, correction, power = _tanh_derivative_float(x)
        else:
            head, tail, correction, power = _erf_derivative_float(x)
        result = _gradient(grad, x, head, tail, correction, power)
    else:
        result = grad * gelu_derivative(x, approximate, precision)
    return result
