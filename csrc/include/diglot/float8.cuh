// 8-bit floats: their bits, and their values in float16, which holds both types exactly. The bits
// of an e5m2 number are the upper half of its float16. Those of an e4m3 number are the upper bits
// of the float16 of its 256th part. Twin of triton_ops/lib/float8.py.
//
// Source: Micikevicius et al., "FP8 formats for deep learning", 2022, arXiv:2209.05433.
#pragma once

#include "diglot/types.cuh"

namespace diglot {

struct float8_e4m3 {
  uint8_t bits;
};
struct float8_e5m2 {
  uint8_t bits;
};

template <>
struct Compute<float8_e4m3> {
  using type = float;
};
template <>
struct Compute<float8_e5m2> {
  using type = float;
};

DIGLOT_DEVICE float16 float16_of_bits(uint32_t bits) {
  const auto narrow = static_cast<uint16_t>(bits);
  float16 value;
  memcpy(&value, &narrow, sizeof(value));
  return value;
}

template <>
struct Convert<float, float8_e4m3> {
  DIGLOT_DEVICE static float apply(float8_e4m3 x) {
    const uint32_t magnitude = x.bits & 0x7fu;
    const uint32_t nan = 0x7e00u, part = (x.bits & 0x80u) << 8 | magnitude << 7;
    return convert<float>(float16_of_bits(magnitude == 0x7f ? nan : part)) * 256.0f;
  }
};
template <>
struct Convert<float, float8_e5m2> {
  DIGLOT_DEVICE static float apply(float8_e5m2 x) {
    return convert<float>(float16_of_bits(uint32_t{x.bits} << 8));
  }
};

}  // namespace diglot
