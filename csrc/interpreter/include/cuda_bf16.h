// Stands in for CUDA's header of this name; see cuda_runtime.h.
#pragma once

#include "half_bits.h"

struct alignas(2) __nv_bfloat16 {
  std::uint16_t bits;
};

inline __nv_bfloat16 __double2bfloat16(double x) {
  return {diglot::interpreter::round_to_16_bits<7, 8>(x)};
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __double2bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16(float x) { return __double2bfloat16(x); }

inline float __bfloat162float(__nv_bfloat16 x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}
