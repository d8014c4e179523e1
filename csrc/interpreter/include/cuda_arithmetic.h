// The arithmetic of CUDA's device functions, for the interpreter; part of cuda_runtime.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fsub_rn(float a, float b) { return a - b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
// The fast functions are rounded correctly here: within their documented error, and so are others.
inline float __expf(float x) { return static_cast<float>(std::exp(static_cast<double>(x))); }
inline float __exp10f(float x) { return static_cast<float>(std::pow(10.0, x)); }
inline float __logf(float x) { return static_cast<float>(std::log(static_cast<double>(x))); }
inline float __log2f(float x) { return static_cast<float>(std::log2(static_cast<double>(x))); }
inline float __log10f(float x) { return static_cast<float>(std::log10(static_cast<double>(x))); }
inline float __powf(float x, float y) { return static_cast<float>(std::pow(double{x}, double{y})); }
inline float __sinf(float x) { return static_cast<float>(std::sin(static_cast<double>(x))); }
inline float __cosf(float x) { return static_cast<float>(std::cos(static_cast<double>(x))); }
inline float __tanf(float x) { return static_cast<float>(std::tan(static_cast<double>(x))); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

inline int __float_as_int(float x) {
  return diglot::interpreter::from_bits<int>(diglot::interpreter::to_bits(x));
}
inline unsigned __float_as_uint(float x) { return static_cast<unsigned>(__float_as_int(x)); }
inline float __int_as_float(int x) {
  return diglot::interpreter::from_bits<float>(diglot::interpreter::to_bits(x));
}
inline float __uint_as_float(unsigned x) { return __int_as_float(static_cast<int>(x)); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(std::int64_t{a} * b >> 32); }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int bit = 0; bit < 32; ++bit) result |= (x >> bit & 1) << (31 - bit);
  return result;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

// As CUDA's: of floating numbers the one that is not NaN.
template <typename T, typename U>
std::common_type_t<T, U> min(T a, U b) {
  using Result = std::common_type_t<T, U>;
  if constexpr (std::is_floating_point_v<Result>) {
    return std::fmin(Result(a), Result(b));
  } else {
    return Result(a) < Result(b) ? Result(a) : Result(b);
  }
}
template <typename T, typename U>
std::common_type_t<T, U> max(T a, U b) {
  using Result = std::common_type_t<T, U>;
  if constexpr (std::is_floating_point_v<Result>) {
    return std::fmax(Result(a), Result(b));
  } else {
    return Result(a) > Result(b) ? Result(a) : Result(b);
  }
}
