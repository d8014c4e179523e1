// Stands in for CUDA's header of this name; see cuda_runtime.h.
#pragma once

#include "half_bits.h"

struct alignas(2) __half {
  std::uint16_t bits;
};

inline __half __double2half(double x) { return {diglot::interpreter::round_to_16_bits<10, 5>(x)}; }
inline __half __float2half_rn(float x) { return __double2half(x); }
inline __half __float2half(float x) { return __double2half(x); }

inline float __half2float(__half x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits >> 15) << 31;
  const std::uint32_t exponent = x.bits >> 10 & 0x1f;
  std::uint32_t bits = (x.bits & 0x3ffu) << 13;
  if (exponent == 0) {  // bits 2^-24 of the significand's last place
    const float magnitude = static_cast<float>(x.bits & 0x3ffu) * 5.9604644775390625e-8f;
    __builtin_memcpy(&bits, &magnitude, sizeof(bits));
  } else {
    bits |= exponent == 0x1f ? 0x7f800000u : (exponent + 112) << 23;
  }
  bits |= sign;
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}
