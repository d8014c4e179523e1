// GELU for results that are rounded to fp16 or bf16 later. gelu.cuh has the formulas. Twin of
// triton_ops/lib/gelu_half.py, operation for operation.
#pragma once

#include "diglot/math.cuh"

namespace diglot::gelu_detail {

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

}  // namespace diglot::gelu_detail
