// GELU and its derivative, one element at a time, in both forms of torch.nn.functional.gelu:
//
//   erf form  (Approximate::kNone)  x Phi(x)          Phi the normal distribution function
//   tanh form (Approximate::kTanh)  x / (1 + exp(-z))  z = 2 sqrt(2/pi) (x + 0.044715 x^3)
//
// The textbook 0.5 x (1 + erf(..)) or (1 + tanh(..)) cancels for x < 0: it has no correct digit
// left at x = -5.5 in fp32, where gelu is -1e-7. These functions compute the lower tail itself,
// with t = |x|, and take the other side as its complement, so that they keep their relative
// accuracy for every x whose result is a normal number, near the root of the derivative included.
// There are no branches, only selections.
//
// Special values, as in the CUDA kernels of PyTorch: gelu(NaN) = NaN, gelu(+inf) = +inf and
// gelu(-inf) = NaN; the derivative at +-inf is NaN. Every finite x has a finite result. Results
// below the least normal number may be flushed to zero, and a zero may lose its sign.
//
// Precision names what the result is rounded to, which sets the length of the polynomials:
//   kHalf    x was fp16 or bf16, the fp32 result is rounded to it later
//   kFloat   fp32
//   kDouble  fp64
//
// The polynomials are minimax fits of tools/fit_gelu.py, which defines H, G, Q, C and W. The twin
// of this file is triton_ops/lib/gelu.py, operation for operation.
#pragma once

#include "diglot/math.cuh"

namespace diglot {

enum class Approximate { kNone, kTanh };
enum class Precision { kHalf, kFloat, kDouble };

// The type that a precision computes in.
template <Precision precision>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<Precision::kDouble> {
  using type = double;
};

namespace gelu_detail {

// 2^(n + fraction), |fraction| <= 1/2. The integer n is left in the low bits of a float, biased for
// power_of_two().
struct Exponent {
  float fraction;
  float shifted;
};

// Exponents of the tail reach -135, where 2^n is subnormal while its product with x is normal: most
// functions below therefore take 2^(n + 8) and scale another factor by 2^-8.
constexpr float kBias = kRoundingShift + 127.0f;
constexpr float kBiasScaled = kRoundingShift + 135.0f;
// In the tanh form's derivative z' adds eight more bits between exp(-z) and the result.
constexpr float kBiasTwiceScaled = kRoundingShift + 143.0f;

// exp(-t^2 / 2) (1 + error), for t where its n is in the range of power_of_two().
//
// The rounding errors of t^2 and of the constant would be scaled up by the exponent, to more than
// 10 ulp of the result; the fused remainders keep both. The small terms are summed first.
DIGLOT_DEVICE Exponent normal_exponent(float t, float error, float bias) {
  constexpr float kHalfLog2E = 0.721347511f;
  constexpr float kHalfLog2ETail = 9.62981517e-9f;
  const float square = t * t;
  const float square_tail = fma(t, t, -square);
  const float shifted = fma(square, -kHalfLog2E, bias);
  const float head = fma(square, -kHalfLog2E, bias - shifted);
  float tail = fma(square, -kHalfLog2ETail, error * 1.44269504f);
  tail = fma(square_tail, -kHalfLog2E, tail);
  return {head + tail, shifted};
}

// exp(-z(t)) of the tanh form, likewise. The head of the linear constant is short enough for the
// subtraction of slope from it to be exact.
DIGLOT_DEVICE Exponent tanh_exponent(float t, float bias) {
  constexpr float kLinear = 2.30218506f;
  constexpr float kLinearTail = 2.31395497e-5f;
  constexpr float kCubic = 0.102943242f;
  constexpr float kCubicTail = -2.01619854e-9f;
  const float square = t * t;
  const float square_tail = fma(t, t, -square);
  const float slope = fma(square, kCubic, kLinear);
  float slope_tail = fma(square, kCubicTail, kLinearTail);
  slope_tail = fma(square_tail, kCubic, slope_tail);
  slope_tail = fma(square, kCubic, kLinear - slope) + slope_tail;
  const float shifted = fma(-t, slope, bias);
  const float head = fma(-t, slope, bias - shifted);
  return {fma(-t, slope_tail, head), shifted};
}

constexpr float kLog2 = 0.693147182f;

// 2^fraction - 1 - fraction log(2).
DIGLOT_DEVICE float exp2_curve(float fraction) {
  constexpr float kW[] = {0.240226477f, 0.0555035882f, 0.00961848162f, 0.00133914745f,
                          0.000153406814f};
  return fraction * (fraction * horner(fraction, kW));
}

// 2^fraction.
DIGLOT_DEVICE float exp2_fraction(float fraction) {
  return fma(fraction, kLog2, exp2_curve(fraction)) + 1.0f;
}

// (1 + g) 2^fraction - 1. The largest term comes in last, so that for a small g only the result is
// rounded at its size.
DIGLOT_DEVICE float exp2_product(float fraction, float g) {
  return fma(fraction, kLog2, fma(g, exp2_fraction(fraction), exp2_curve(fraction)));
}

// z(t) of the tanh form in fp64, as head + tail.
struct DoubleSum {
  double head;
  double tail;
};

DIGLOT_DEVICE DoubleSum tanh_exponent(double t) {
  constexpr double kLinear = 1.5957691216062813;
  constexpr double kLinearTail = -5.5054826869724373e-13;
  constexpr double kCubic = 0.071354816272600249;
  constexpr double kCubicTail = -6.175149918155315e-19;
  const double square = t * t;
  const double square_tail = fma(t, t, -square);
  const double slope = fma(square, kCubic, kLinear);
  double slope_tail = fma(square, kCubicTail, kLinearTail);
  slope_tail = fma(square_tail, kCubic, slope_tail);
  slope_tail = fma(square, kCubic, kLinear - slope) + slope_tail;
  const double head = t * slope;
  return {head, fma(t, slope_tail, fma(t, slope, -head))};
}

// x Phi(x) = max(x, 0) - t exp(-t^2/2) h(t), h(t) = s H(s), s = 1/(1 + 0.3 t).
// Clamping x from above alone spares +inf a product with the vanishing tail.
DIGLOT_DEVICE float erf_forward_half(float x) {
  constexpr float kH[] = {0.12021786f,   0.112154946f, 0.150610238f,
                          -0.028978534f, 0.22663185f,  -0.0806351379f};
  const float clamped = minimum(x, 16.0f);
  const float t = absolute(clamped);
  const float s = reciprocal_approximate(fma(t, 0.3f, 1.0f));
  const float tail = t * exp2_approximate((clamped * -0.721347511f) * clamped);
  return fma(-tail, s * horner(s, kH), relu(x));
}

// x / (1 + exp(-z)), both sides of the fraction scaled by 2^-4: exp(-z) itself overflows at
// x = -10.06, where the result is still normal.
DIGLOT_DEVICE float tanh_forward_half(float x) {
  const float slope = fma(x * x, 0.102943242f, 2.3022082f);
  const float denominator = exp2_approximate(fma(-x, slope, -4.0f)) + 0.0625f;
  return (x * 0.0625f) * reciprocal_approximate(denominator);
}

// gelu'(-t) = exp(-t^2/2) (root - t) G(s), s = 1/(1 + 0.4 t), with the exponential scaled by 2^8
// against its underflow.
DIGLOT_DEVICE float erf_derivative_half(float x) {
  constexpr float kG[] = {0.398499101f, 0.125839457f, 0.0638402477f, 0.119551748f, -0.0426508412f};
  const float t = absolute(x);
  const float s = reciprocal_approximate(fma(t, 0.4f, 1.0f));
  const float tail = exp2_approximate(fma(x * -0.721347511f, x, 8.0f));
  const float root = fma(t, -0.00390625f, 0.751791537f * 0.00390625f);
  const float lower = (tail * root) * horner(s, kG);
  return x < 0.0f ? lower : 1.0f - lower;
}

// gelu'(-t) = E r (1 - r t z'(t)), E = exp(-z(t)), r = 1/(1 + E), with E scaled by 2^8 and the last
// factor by 2^-8. z' is held constant where E has vanished, so that no product overflows.
DIGLOT_DEVICE float tanh_derivative_half(float x) {
  const float t = absolute(x);
  const float square = x * x;
  const float slope = fma(square, 0.102943242f, 2.3022082f);
  const float tail = exp2_approximate(fma(-t, slope, 8.0f));
  const float r = reciprocal_approximate(fma(tail, 0.00390625f, 1.0f));
  const float z_slope =
      fma(minimum(square, 256.0f), 0.214064449f * 0.00390625f, 1.59576912f * 0.00390625f);
  const float lower = (tail * r) * fma(-(r * t), z_slope, 0.00390625f);
  return x < 0.0f ? lower : 1.0f - lower;
}

// As erf_forward_half, with s = 1/(2 + 2.3 t), which keeps H within 8 % of 1: the tail is t s 2^n
// times 1 + correction. The rounding error of t s is added, and that of s, its own and that of its
// denominator, joins the exponent. H is a polynomial in t/(1 + 0.3 t) - 1, on which errors of this
// other reciprocal have little effect.
DIGLOT_DEVICE float erf_forward_float(float x) {
  constexpr float kH[] = {0.122753382f,    -0.0330858007f,  -0.0925081447f,  0.0523289293f,
                          -0.0114387497f,  -3.44288201e-5f, 0.000416268565f, -2.72000761e-6f,
                          -1.82198874e-5f, -6.78390961e-7f, 7.61355352e-7f};
  const float clamped = minimum(x, 13.26f);
  const float t = minimum(absolute(clamped), 13.26f);
  const float denominator = fma(t, 2.3f, 2.0f);
  const float denominator_tail = fma(t, 2.3f, 2.0f - denominator);
  const float s = reciprocal_approximate(denominator);
  const float s_error = fma(-s, denominator_tail, fma(-s, denominator, 1.0f));
  const Exponent exponent = normal_exponent(t, s_error, kBias);
  const float v = fma(t, reciprocal_approximate(fma(t, 0.3f, 1.0f)), -1.0f);
  const float h = horner(v, kH);
  const float correction = exp2_product(exponent.fraction, h);
  const float scaled = absolute(clamped) * power_of_two(exponent.shifted);
  const float leading = scaled * s;
  const float leading_tail = fma(scaled, s, -leading);
  return relu(x) - (leading + fma(leading, correction, leading_tail));
}

// max(x, 0) - t E / (1 + E), E = exp(-z(t)), with E scaled by 2^8 and the reciprocal by 2^-8.
DIGLOT_DEVICE float tanh_forward_float(float x) {
  const float clamped = minimum(x, 10.27f);
  const float t = minimum(absolute(clamped), 10.27f);
  const Exponent exponent = tanh_exponent(t, kBiasScaled);
  const float power = power_of_two(exponent.shifted);
  const float tail = exp2_fraction(exponent.fraction) * power;
  const float denominator = tail + 256.0f;
  const float denominator_tail = (256.0f - denominator) + tail;
  const float r = reciprocal_approximate(denominator);
  const float r_error = fma(-r, denominator_tail, fma(-r, denominator, 1.0f));
  const float scaled = fma(r, exp2_product(exponent.fraction, r_error), r);
  return fma(-(absolute(clamped) * power), scaled, relu(x));
}

// gelu'(-|x|) = (head + tail) (1 + correction) power, not multiplied out, so that a gradient can be
// multiplied in before anything rounds or underflows. The tail is NaN where x is infinite, as
// PyTorch's derivative is.
struct Factors {
  float head;
  float tail;
  float correction;
  float power;
};

// grad gelu'(x), rounded about once; gelu'(x) = 1 - gelu'(-x).
DIGLOT_DEVICE float gradient(float grad, float x, const Factors& lower) {
  const float product = grad * lower.head;
  const float tail = fma(grad, lower.tail, fma(grad, lower.head, -product));
  const float rest = fma(product, lower.correction, fma(tail, lower.correction, tail));
  const float below = (product + rest) * lower.power;
  return x < 0.0f ? below : grad - below;
}

// gelu'(-t) = exp(-t^2/2) r G(s), s = 1/(1 + 0.25 t), r = 0.5 (root - t) 2^-8. G is near 1: only
// G - 1 is computed. The error of s, compensated in the exponent, is weighed by the slope of log G
// over log s; r is carried with its rounding error.
DIGLOT_DEVICE Factors erf_derivative_float(float x) {
  constexpr float kG[] = {-0.021508351f, 0.554490983f,  0.678601444f,   0.614264369f,
                          0.365418553f,  0.0830179006f, -0.0614120401f, -0.0439964682f,
                          0.0116940206f, 0.0145886093f};
  const float t = minimum(absolute(x), 13.68f);
  const float denominator = fma(t, 0.25f, 1.0f);
  const float denominator_tail = fma(t, 0.25f, 1.0f - denominator);
  const float s = reciprocal_approximate(denominator);
  const float s_error = fma(-s, denominator_tail, fma(-s, denominator, 1.0f));
  const float g_error = s_error * fma(s, 1.29286f, -0.34254f);
  const Exponent exponent = normal_exponent(t, g_error, kBiasScaled);
  const float correction = exp2_product(exponent.fraction, horner(s - 0.625f, kG));
  // r as a sum of two floats: the product and the difference, each with its rounding error.
  constexpr float kHead = 0.756498933f * 0.001953125f;
  constexpr float kTail = 3.20258503e-13f * 0.001953125f;
  constexpr float kSlope = 1.00626159f * 0.001953125f;
  const float product = t * kSlope;
  const float product_tail = fma(t, kSlope, -product) - kTail;
  const float root = kHead - product;
  const float subtracted = root - kHead;
  const float root_tail = ((kHead - (root - subtracted)) - (product + subtracted)) - product_tail;
  return {root, fma(x, 0.0f, root_tail), correction, power_of_two(exponent.shifted)};
}

// gelu'(-t) = E (1 + E - t z'(t)) / (1 + E)^2, E = exp(-z(t)). Near the root, for t < 1.2, this is
// r Q(r), r = 0.29 (root - t), with Q near 1. Beyond, where E < 0.14, the numerator is a sum of
// two floats, and 1/(1 + E)^2 is 1 + C(E).
DIGLOT_DEVICE Factors tanh_derivative_float(float x) {
  constexpr float kQ0 = 0.477265537f;
  constexpr float kQ[] = {4.56525278f, -0.638185024f, -15.8140173f, -7.91575432f, 32.2001915f,
                          29.4161148f, -47.5835724f,  -55.8866615f, 71.2213516f};
  constexpr float kC[] = {-1.99999976f, 2.99996328f,  -3.99813128f,
                          4.95734549f,  -5.50935841f, 4.11424494f};
  const float t = minimum(absolute(x), 10.491f);
  const float root = fma(t, -1.16539669f * 0.25f, 0.876916051f * 0.25f);
  constexpr float kRootTail = 7.02252375e-13f * 0.25f;
  // The correction is small on both sides of the root only if the head is doubled on one.
  const bool is_low = t < 0.75f;
  const float near_root = is_low ? root + root : root;
  const float near_correction =
      fma(is_low ? 0.5f * root : root, horner(root, kQ), is_low ? 0.5f * kQ0 - 0.5f : kQ0);

  const Exponent exponent = tanh_exponent(t, kBiasTwiceScaled);
  const float power = power_of_two(exponent.shifted);
  const float tail = (exp2_fraction(exponent.fraction) * power) * 1.52587890625e-5f;
  const float correction = exp2_product(exponent.fraction, tail * horner(tail, kC));
  // 2^-16 z'(t) and its product with |x|, each with its rounding error.
  constexpr float kLinear = 1.59576416f * 1.52587890625e-5f;
  constexpr float kLinearTail = 4.96144958e-6f * 1.52587890625e-5f;
  constexpr float kCubic = 0.214064449f * 1.52587890625e-5f;
  const float square = t * t;
  const float square_tail = fma(t, t, -square);
  const float slope = fma(square, kCubic, kLinear);
  const float slope_tail =
      fma(square, kCubic, kLinear - slope) + fma(square_tail, kCubic, kLinearTail);
  const float product = t * slope;
  const float product_tail = fma(t, slope_tail, fma(t, slope, -product));
  const float numerator = 1.52587890625e-5f - product;
  const float numerator_tail =
      (1.52587890625e-5f - (numerator + product)) + fma(tail, 1.52587890625e-5f, -product_tail);

  const bool is_near = t < 1.2f;
  return {is_near ? near_root : numerator, fma(x, 0.0f, is_near ? kRootTail : numerator_tail),
          is_near ? near_correction : correction, is_near ? 1.0f : power};
}

// As erf_forward_half, with exp(-t^2/2) = exp(-t^2/4)^2, of which neither factor underflows too
// early, and the rounding error of t^2 multiplied in.
DIGLOT_DEVICE double erf_forward_double(double x) {
  constexpr double kH[] = {0.099735570096886883,  0.09973557030537368,   0.09350209175421495,
                           0.081035223090805991,  0.063502976652864959,  0.043245204594899951,
                           0.02343406519226731,   0.0067530123747466904, 2.8109410276689021e-5,
                           -0.022143501502467643, 0.053373041942938231,  -0.16938605455025796,
                           0.38145155708624584,   -0.65782588455233493,  0.88771401332281274,
                           -0.89647511460456297,  0.65247017148442688,   -0.3314903987008439,
                           0.11189817690700248,   -0.022644912658144591, 0.0020870823528488297};
  const double clamped = minimum(x, 55.0);
  const double t = minimum(absolute(clamped), 55.0);
  const double s = 1.0 / (t * 0.25 + 1.0);
  const double square = t * t;
  const double square_tail = fma(t, t, -square);
  const double root_exp = exponential(square * -0.25);
  const double h = (s * horner(s, kH)) * (1.0 - square_tail * 0.5);
  return relu(x) - ((absolute(clamped) * root_exp) * h) * root_exp;
}

// As tanh_forward_float, with E as the square of exp(-z/2).
DIGLOT_DEVICE double tanh_forward_double(double x) {
  const double clamped = minimum(x, 30.0);
  const double t = minimum(absolute(clamped), 30.0);
  const DoubleSum z = tanh_exponent(t);
  const double root_exp = exponential(z.head * -0.5);
  const double adjusted = root_exp * (1.0 - z.tail);
  const double factor = 1.0 / (root_exp * adjusted + 1.0);
  return relu(x) - ((absolute(clamped) * adjusted) * factor) * root_exp;
}

// As erf_derivative_half, with the exponential of erf_forward_double.
DIGLOT_DEVICE double erf_derivative_double(double x) {
  constexpr double kG[] = {0.39894228038998103,   0.074980357051962973,   0.064138841195197374,
                           0.051260116888874094,  0.037513795540892611,   0.024350232907980423,
                           0.012755029967237319,  0.0058448096891534967,  -0.0048389227098735626,
                           0.010742250445895975,  -0.030477430405247034,  0.047275099226498279,
                           -0.057252168799304726, 0.046431334034561914,   -0.013945998091478817,
                           -0.013146051159781741, 0.017522907244130331,   -0.0092004900108993513,
                           0.002458243405213353,  -0.00027624167955982257};
  const double t = minimum(absolute(x), 55.0);
  const double s = 1.0 / (t * 0.25 + 1.0);
  const double square = t * t;
  const double square_tail = fma(t, t, -square);
  const double root_exp = exponential(square * -0.25);
  const double root = (0.75179152469356447 - absolute(x)) + -1.4956759177009883e-17;
  const double factor = (root * horner(s, kG)) * (1.0 - square_tail * 0.5);
  const double lower = (root_exp * factor) * root_exp;
  return x < 0.0 ? lower : 1.0 - lower;
}

// As tanh_derivative_float.
DIGLOT_DEVICE double tanh_derivative_double(double x) {
  constexpr double kQ[] = {0.43040009102485854,    0.38751844613578801,    -0.015782853521863212,
                           -0.1139444830808625,    -0.016619328342133838,  0.019682309456769242,
                           0.0052610592334440274,  -0.0024227318013205429, -0.00092744176866056368,
                           0.00026392728577582342, 0.00012425054844644279, -3.4954485363523615e-5,
                           -1.5943721832918951e-5, 5.9136379353865643e-6,  2.4150153549924598e-6,
                           -9.8072735954763859e-7, -4.0165894451073465e-7, 1.3144888179146705e-7,
                           4.8441979287148128e-8,  -1.0755923210533987e-8};
  const double t = minimum(absolute(x), 30.0);
  const double root = (0.75246142207101629 - t) + -3.6355605092076871e-17;
  const double near_root = root * horner(root, kQ);

  const DoubleSum z = tanh_exponent(t);
  const double root_exp = exponential(z.head * -0.5);
  const double adjusted = root_exp * (1.0 - z.tail);
  const double denominator = root_exp * adjusted + 1.0;
  // Scaled by 2^-8, so that the product with the largest |x| does not overflow.
  const double slope =
      (t * t) * (0.21406444881780073 * 0.00390625) + 1.5957691216057308 * 0.00390625;
  const double numerator = denominator * 0.00390625 - absolute(x) * slope;
  const double factor = numerator / (denominator * denominator);
  const double beyond = ((adjusted * 256.0) * factor) * root_exp;

  const double lower = t < 1.5 ? near_root : beyond;
  return x < 0.0 ? lower : 1.0 - lower;
}

}  // namespace gelu_detail

// gelu(x). Greatest errors found, in ulp of the result, for results that are normal:
//   kHalf    1 ulp after rounding (erf: at 90 of 63488 fp16 and 1 bf16 inputs; tanh: 8 and 0)
//   kFloat   1.85 ulp (erf), 1.80 ulp (tanh); 0.95 and 1.45 ulp for x > 0
//   kDouble  1.3e-15 (erf) and 7e-16 (tanh), relative
template <Approximate approximate, Precision precision>
DIGLOT_DEVICE typename ComputeType<precision>::type gelu(typename ComputeType<precision>::type x) {
  constexpr bool kErf = approximate == Approximate::kNone;
  if constexpr (precision == Precision::kHalf) {
    return kErf ? gelu_detail::erf_forward_half(x) : gelu_detail::tanh_forward_half(x);
  } else if constexpr (precision == Precision::kFloat) {
    return kErf ? gelu_detail::erf_forward_float(x) : gelu_detail::tanh_forward_float(x);
  } else {
    return kErf ? gelu_detail::erf_forward_double(x) : gelu_detail::tanh_forward_double(x);
  }
}

// The derivative of gelu at x. Greatest errors found, as above:
//   kHalf    1 ulp after rounding (erf: at 121 fp16 inputs, no bf16 input; tanh: 8 and 0)
//   kFloat   1.75 ulp (erf), 1.82 ulp (tanh); 1.13 and 1.27 ulp for x > 0
//   kDouble  8e-16 (erf) and 1.0e-15 (tanh), relative
template <Approximate approximate, Precision precision>
DIGLOT_DEVICE typename ComputeType<precision>::type gelu_derivative(
    typename ComputeType<precision>::type x) {
  constexpr bool kErf = approximate == Approximate::kNone;
  if constexpr (precision == Precision::kHalf) {
    return kErf ? gelu_detail::erf_derivative_half(x) : gelu_detail::tanh_derivative_half(x);
  } else if constexpr (precision == Precision::kFloat) {
    return gelu_detail::gradient(
        1.0f, x,
        kErf ? gelu_detail::erf_derivative_float(x) : gelu_detail::tanh_derivative_float(x));
  } else {
    return kErf ? gelu_detail::erf_derivative_double(x) : gelu_detail::tanh_derivative_double(x);
  }
}

// grad times the derivative of gelu at x, with the derivative's accuracy: in fp32 the product is
// not rounded on its own, and does not vanish where the derivative alone would.
template <Approximate approximate, Precision precision>
DIGLOT_DEVICE typename ComputeType<precision>::type gelu_gradient(
    typename ComputeType<precision>::type grad, typename ComputeType<precision>::type x) {
  if constexpr (precision == Precision::kFloat) {
    return gelu_detail::gradient(grad, x,
                                 approximate == Approximate::kNone
                                     ? gelu_detail::erf_derivative_float(x)
                                     : gelu_detail::tanh_derivative_float(x));
  } else {
    return grad * gelu_derivative<approximate, precision>(x);
  }
}

}  // namespace diglot
