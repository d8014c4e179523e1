// Scalar arithmetic for the kernels: the few operations whose rounding or instruction matters.
//
// Each function is one or two instructions on the GPU. The host versions have the same rounding,
// except for the two approximations, which the host rounds correctly; they let the numerics be
// tested without a GPU. The twin of this file is triton_ops/lib/math.py.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "diglot/platform.cuh"

namespace diglot {

// a * b + c with one rounding. It has a name because the build forbids the compiler to contract:
// only this fuses, here and in the Triton twin.
DIGLOT_HOST_DEVICE float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

DIGLOT_HOST_DEVICE double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// |x|; an operand modifier on the GPU, without an instruction of its own.
DIGLOT_HOST_DEVICE float absolute(float x) {
#if defined(__CUDA_ARCH__)
  return fabsf(x);
#else
  return std::fabs(x);
#endif
}

DIGLOT_HOST_DEVICE double absolute(double x) {
#if defined(__CUDA_ARCH__)
  return fabs(x);
#else
  return std::fabs(x);
#endif
}

// The lesser of a and b; NaN if either is, unlike fmin.
DIGLOT_HOST_DEVICE float minimum(float a, float b) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return (a < b || a != a) ? a : b;
#endif
}

DIGLOT_HOST_DEVICE double minimum(double a, double b) { return (a < b || a != a) ? a : b; }

// The greater of a and b; NaN if either is, unlike fmax.
DIGLOT_HOST_DEVICE float maximum(float a, float b) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return (a > b || a != a) ? a : b;
#endif
}

DIGLOT_HOST_DEVICE double maximum(double a, double b) { return (a > b || a != a) ? a : b; }

// The square root, rounded correctly.
DIGLOT_HOST_DEVICE float square_root(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}

DIGLOT_HOST_DEVICE double square_root(double x) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}

// The greatest integer not above x.
DIGLOT_HOST_DEVICE float round_down(float x) {
#if defined(__CUDA_ARCH__)
  return floorf(x);
#else
  return std::floor(x);
#endif
}

DIGLOT_HOST_DEVICE double round_down(double x) {
#if defined(__CUDA_ARCH__)
  return ::floor(x);
#else
  return std::floor(x);
#endif
}

// A number as a sum of two: head is the nearest number of the type, tail the rounding error.
template <typename T>
struct TwoPart {
  T head;
  T tail;
};

// a + b without error (Knuth, "The Art of Computer Programming", volume 2, 4.2.2).
template <typename T>
DIGLOT_HOST_DEVICE TwoPart<T> two_sum(T a, T b) {
  const T head = a + b;
  const T back = head - a;
  return {head, (a - (head - back)) + (b - back)};
}

// The same where |a| >= |b|, or a is zero (Dekker, "A floating-point technique for extending the
// available precision", Numerische Mathematik 18, 1971).
template <typename T>
DIGLOT_HOST_DEVICE TwoPart<T> ordered_two_sum(T a, T b) {
  const T head = a + b;
  return {head, b - (head - a)};
}

// max(x, 0). The result for NaN is not specified.
DIGLOT_HOST_DEVICE float relu(float x) {
#if defined(__CUDA_ARCH__)
  return fmaxf(x, 0.0f);
#else
  return x > 0.0f ? x : 0.0f;
#endif
}

DIGLOT_HOST_DEVICE double relu(double x) { return x > 0.0 ? x : 0.0; }

// 2^x within 2 ulp, with subnormal arguments and results flushed to zero.
DIGLOT_HOST_DEVICE float exp2_approximate(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  const float result = static_cast<float>(std::exp2(static_cast<double>(x)));
  return result < 1.17549435e-38f ? 0.0f : result;
#endif
}

// 1 / x within 1 ulp, with subnormal arguments and results flushed to zero.
DIGLOT_HOST_DEVICE float reciprocal_approximate(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  const float result = 1.0f / x;
  return std::fabs(result) < 1.17549435e-38f ? std::copysign(0.0f, x) : result;
#endif
}

DIGLOT_HOST_DEVICE double exponential(double x) {
#if defined(__CUDA_ARCH__)
  return ::exp(x);
#else
  return std::exp(x);
#endif
}

// The natural logarithm within 1 ulp.
DIGLOT_HOST_DEVICE float logarithm(float x) {
#if defined(__CUDA_ARCH__)
  return ::logf(x);
#else
  return std::log(x);
#endif
}

DIGLOT_HOST_DEVICE double logarithm(double x) {
#if defined(__CUDA_ARCH__)
  return ::log(x);
#else
  return std::log(x);
#endif
}

constexpr float kLog2E = 1.44269502f;         // log2(e), rounded,
constexpr float kLog2ETail = 1.92596303e-8f;  // and its rounding error
constexpr float kLn2 = 0.693147182f;

// e^x for x <= 0 within 3 ulp, with subnormal results flushed to zero. exp2_approximate would
// multiply the rounding error of its argument by up to 126. So that error enters by the
// exponential's slope.
DIGLOT_HOST_DEVICE float exp_nonpositive(float x) {
  x = maximum(x, -128.0f);  // where the result is zero: the tail of -inf would be NaN
  const float exponent = x * kLog2E;
  const float tail = fma(x, kLog2ETail, fma(x, kLog2E, -exponent));
  const float head = exp2_approximate(exponent);
  return fma(head, tail * kLn2, head);
}

DIGLOT_HOST_DEVICE double exp_nonpositive(double x) { return exponential(x); }

// 1 / sqrt(x), each of the two operations rounded to nearest.
DIGLOT_HOST_DEVICE float reciprocal_root(float x) {
#if defined(__CUDA_ARCH__)
  return __frcp_rn(__fsqrt_rn(x));
#else
  return 1.0f / std::sqrt(x);
#endif
}

DIGLOT_HOST_DEVICE double reciprocal_root(double x) {
#if defined(__CUDA_ARCH__)
  return __drcp_rn(__dsqrt_rn(x));
#else
  return 1.0 / std::sqrt(x);
#endif
}

// x / y within 2 ulp, where y is a count of elements.
DIGLOT_HOST_DEVICE float divide_by_count(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fdividef(x, y);
#else
  return x / y;
#endif
}

DIGLOT_HOST_DEVICE double divide_by_count(double x, double y) { return x / y; }

// 1.5 * 2^23. Adding a float of magnitude below 2^22 rounds it to the nearest integer, which the
// low bits of the sum then hold.
constexpr float kRoundingShift = 12582912.0f;

// 2^(n - 127) for shifted = kRoundingShift + n and an integer n from 0 to 254; 0 for n = 0. The
// shift moves n into the field of the exponent and everything above it out of the word.
DIGLOT_HOST_DEVICE float power_of_two(float shifted) {
#if defined(__CUDA_ARCH__)
  return __int_as_float(__float_as_int(shifted) << 23);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits <<= 23;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
#endif
}

// The polynomial coefficients[0] + coefficients[1] x + ..., by Horner's rule with fused steps.
template <typename T, int kCount>
DIGLOT_HOST_DEVICE T horner(T x, const T (&coefficients)[kCount]) {
  T result = coefficients[kCount - 1];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int i = kCount - 2; i >= 0; --i) result = fma(result, x, coefficients[i]);
  return result;
}

}  // namespace diglot
