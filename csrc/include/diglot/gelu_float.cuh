// GELU in fp32. gelu.cuh has the formulas. Twin of triton_ops/lib/gelu_float.py, operation for
// operation.
#pragma once

#include "diglot/math.cuh"

namespace diglot::gelu_detail {

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

// kLinear + kCubic t^2 as head + tail: z(t) log2(e) / t, without the tails of the two constants.
// kLinear is short enough for its difference from the head to be exact.
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

// As erf_forward_half, with s = 1/(2 + 2.3 t), which keeps H within 8 % of 1: the tail is t s 2^n
// times 1 + correction. The rounding error of t s is added. The errors of s and of its denominator
// join the exponent. H is a polynomial in t/(1 + 0.3 t) - 1, on which errors of this other
// reciprocal have little effect.
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

}  // namespace diglot::gelu_detail
