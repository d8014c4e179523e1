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

// 2^(-t^2 kHalfLog2E + correction), for t where its n is in the range of power_of_two().
//
// The rounding error of t^2 would be scaled up by the exponent, to more than 10 ulp of the result;
// the fused remainder keeps it. That of the constant is left to the polynomials H and G.
DIGLOT_DEVICE Exponent normal_exponent(float t, float correction, float bias) {
  constexpr float kHalfLog2E = 0.721347511f;
  const float square = t * t;
  const float square_tail = fma(t, t, -square);
  const float shifted = fma(square, -kHalfLog2E, bias);
  const float head = fma(square, -kHalfLog2E, bias - shifted);
  return {head + fma(square_tail, -kHalfLog2E, correction), shifted};
}

// kLinear + kCubic t^2 as head + tail, which is z(t) log2(e) / t but for the tails of the two
// constants. kLinear is short enough for its difference from the head to be exact.
struct TanhSlope {
  float square;
  float head;
  float tail;
};

DIGLOT_DEVICE TanhSlope tanh_slope(float t) {
  constexpr float kLinear = 2.30218506f;
  constexpr float kCubic = 0.102943242f;
  const float square = t * t;
  const float square_tail = fma(t, t, -square);
  const float head = fma(square, kCubic, kLinear);
  const float tail = fma(square_tail, kCubic, fma(square, kCubic, kLinear - head));
  return {square, head, tail};
}

// exp(-z(t)) of the tanh form.
DIGLOT_DEVICE Exponent tanh_exponent(float t, const TanhSlope& slope, float bias) {
  constexpr float kLinearTail = 2.31395497e-5f;
  constexpr float kCubicTail = -2.01619854e-9f;
  const float tail = fma(slope.square, kCubicTail, kLinearTail) + slope.tail;
  const float shifted = fma(-t, slope.head, bias);
  const float head = fma(-t, slope.head, bias - shifted);
  return {fma(-t, tail, head), shifted};
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
  constexpr float kH[] = {0.122753359f,    -0.0330858268f,  -0.0925081149f,  0.0523286983f,
                          -0.0114390757f,  -3.38006539e-5f, 0.000416611903f, -3.52658617e-6f,
                          -1.82161511e-5f, -3.29360489e-7f, 6.46043475e-7f};
  const float clamped = minimum(x, 13.26f);
  const float t = minimum(absolute(clamped), 13.26f);
  const float denominator = fma(t, 2.3f, 2.0f);
  const float denominator_tail = fma(t, 2.3f, 2.0f - denominator);
  const float s = reciprocal_approximate(denominator);
  const float s_error = fma(-s, denominator_tail, fma(-s, denominator, 1.0f));
  const Exponent exponent = normal_exponent(t, s_error * 1.44269504f, kBias);
  const float v = fma(t, reciprocal_approximate(fma(t, 0.3f, 1.0f)), -1.0f);
  const float correction = exp2_product(exponent.fraction, horner(v, kH));
  const float scaled = absolute(clamped) * power_of_two(exponent.shifted);
  const float leading = scaled * s;
  const float leading_tail = fma(scaled, s, -leading);
  return relu(x) - (leading + fma(leading, correction, leading_tail));
}

// max(x, 0) - t E / (1 + E), E = exp(-z(t)), with E scaled by 2^8 and the reciprocal by 2^-8.
DIGLOT_DEVICE float tanh_forward_float(float x) {
  const float clamped = minimum(x, 10.27f);
  const float t = minimum(absolute(clamped), 10.27f);
  const Exponent exponent = tanh_exponent(t, tanh_slope(t), kBiasScaled);
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
// G - 1 is computed. The error of s, compensated in the exponent, is weighed by the slope of
// log2(G) over log(s). r carries its rounding error.
DIGLOT_DEVICE Factors erf_derivative_float(float x) {
  constexpr float kG[] = {-0.0153814778f, 0.557963371f,  0.682849467f,  0.61810571f,
                          0.367702395f,   0.0837095976f, -0.061809022f, -0.0455233976f,
                          0.0115241716f,  0.0183944497f};
  const float t = minimum(absolute(x), 13.68f);
  const float denominator = fma(t, 0.25f, 1.0f);
  const float denominator_tail = fma(t, 0.25f, 1.0f - denominator);
  const float s = reciprocal_approximate(denominator);
  const float s_error = fma(-s, denominator_tail, fma(-s, denominator, 1.0f));
  const float g_error = s_error * fma(s, 1.86514688f, -0.494155347f);
  const Exponent exponent = normal_exponent(t, g_error, kBiasScaled);
  const float correction = exp2_product(exponent.fraction, horner(s - 0.625f, kG));
  constexpr float kScale = 0.001953125f;
  constexpr float kRoot = 0.751791537f * kScale;
  constexpr float kRootTail = -1.21144499e-8f * kScale;
  const float root = fma(t, -kScale, kRoot);
  const float back = root - kRoot;
  const float rounding = (kRoot - (root - back)) - fma(t, kScale, back);
  const float root_tail = rounding + kRootTail;
  return {root, fma(x, 0.0f, root_tail), correction, power_of_two(exponent.shifted)};
}

// gelu'(-t) = E (1 + E - t z'(t)) / (1 + E)^2, E = exp(-z(t)). Near the root, for t < 1.2, this is
// (root - t) Q(t). Beyond, the numerator is a sum of two floats, and the rest is E C(E).
//
// The numerator is taken times log2(e)/3, where z'(t) becomes slope - 2/3 kLinear, which is exact.
// Its head is rounded to a multiple of 2^-17 for its tail to be exact too. What the constants'
// tails would add is left to kOneTail, kFactor and C.
DIGLOT_DEVICE Factors tanh_derivative_float(float x) {
  constexpr float kQ[] = {0.0506959446f,    -0.71423918f,    -0.210017204f,    0.233760282f,
                          0.0233319253f,    -0.0474585071f,  -0.000450011867f, 0.00694869133f,
                          -0.000200621711f, -0.000700996257f};
  constexpr float kRoot = 0.752461433f;
  constexpr float kRootTail = -1.13396279e-8f;
  const float t = minimum(absolute(x), 10.491f);
  const float root = kRoot - t;
  const float near_correction = horner(t - 0.5f, kQ);

  constexpr float kC[] = {0.0397207774f,   -3.17297236e-5f,  7.26184723e-10f, -1.47487799e-14f,
                          2.75258669e-19f, -4.32689773e-24f, 3.85576953e-29f};
  const TanhSlope slope = tanh_slope(t);
  const Exponent exponent = tanh_exponent(t, slope, kBiasTwiceScaled);
  const float power = power_of_two(exponent.shifted);
  const float tail = exp2_fraction(exponent.fraction) * power;
  const float correction = exp2_product(exponent.fraction, horner(tail, kC));
  constexpr float kTwoThirds = 1.53478241f;
  constexpr float kOne = 0.480895996f;
  constexpr float kOneTail = 2.20671473e-6f;
  constexpr float kFactor = 0.480898649f * 1.52587890625e-5f;
  constexpr float kShift = 192.0f;
  constexpr float kScale = 3.0517578125e-5f;
  const float z_slope = slope.head - kTwoThirds;
  const float shifted = fma(-t, z_slope, kShift + kOne);
  const float numerator = fma(shifted, kScale, -kShift * kScale);
  float rest = fma(-t, z_slope, (kShift + kOne) - shifted);
  rest = fma(tail, kFactor, fma(-t, slope.tail, rest));
  const float numerator_tail = fma(rest, kScale, kOneTail * kScale);

  const bool is_near = t < 1.2f;
  return {is_near ? root : numerator, fma(x, 0.0f, is_near ? kRootTail : numerator_tail),
          is_near ? near_correction : correction, is_near ? 0.5f : power};
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

// As tanh_derivative_float, with the formula as it stands beyond t = 1.5.
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

// gelu(x). Greatest errors found, in ulp of the result, for results that are normal; in fp32 among
// all floats from 2^-12 to 14, the reciprocal rounded correctly or 1 ulp off to either side:
//   kHalf    1 ulp after rounding (erf: at 90 of 63488 fp16 and 1 bf16 inputs; tanh: 8 and 0)
//   kFloat   1.93 ulp (erf), 1.82 ulp (tanh); 0.97 and 1.51 ulp for x > 0
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
//   kFloat   1.88 ulp (erf), 1.87 ulp (tanh); 1.18 and 1.23 ulp for x > 0
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
