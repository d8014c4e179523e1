"""GELU and its derivative in fp64. gelu.py says what the functions compute."""

import triton
import triton.language as tl

from .math import fma, horner, minimum, negate, relu

# fmt: off
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
def erf_forward_double(x):
    """As erf_forward_half in gelu_half.py, with exp(-t^2/2) = exp(-t^2/4)^2.

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
def tanh_forward_double(x):
    """As tanh_forward_float in gelu_float.py, with E as the square of exp(-z/2)."""
    clamped = minimum(x, 30.0)
    t = minimum(tl.abs(clamped), 30.0)
    z, z_tail = _tanh_exponent_double(t)
    root_exp = tl.exp(z * -0.5)
    adjusted = root_exp * (1.0 - z_tail)
    factor = 1.0 / (root_exp * adjusted + 1.0)
    return relu(x) - ((tl.abs(clamped) * adjusted) * factor) * root_exp


@triton.jit
def erf_derivative_double(x):
    """As erf_derivative_half in gelu_half.py, with the exponential of erf_forward_double."""
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
def tanh_derivative_double(x):
    """As tanh_derivative_float in gelu_float.py, with the plain formula beyond t = 1.5."""
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
