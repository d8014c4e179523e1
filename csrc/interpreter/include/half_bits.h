// Rounding to the 16-bit floating types, as the GPU does it: to nearest, ties to even, subnormal
// results kept, NaN to the canonical NaN.
#pragma once

#include <cstdint>
#include <cstring>

namespace diglot::interpreter {

// Rounds to a format with these numbers of bits. Exact: a double is rounded once, on its bits.
template <int kSignificand, int kExponent>
std::uint16_t round_to_16_bits(double value) {
  std::uint64_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  const auto sign = static_cast<std::uint16_t>(bits >> 63 << 15);
  bits &= ~(std::uint64_t{1} << 63);
  constexpr std::uint64_t kInfinity = std::uint64_t{0x7ff} << 52;
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr std::uint16_t kInfinity16 = ((1 << kExponent) - 1) << kSignificand;
  if (bits > kInfinity) return 0x7fff;  // NaN
  if (bits == kInfinity) return sign | kInfinity16;
  int exponent = static_cast<int>(bits >> 52) - 1023;
  // 1.significand, or less for a subnormal double, which rounds to zero in any case.
  std::uint64_t significand = (bits & ((std::uint64_t{1} << 52) - 1)) | std::uint64_t{1} << 52;
  int dropped = 52 - kSignificand;
  if (exponent < 1 - kBias) {  // below the normal numbers fewer bits are kept
    dropped += 1 - kBias - exponent;
    exponent = -kBias;
    if (dropped > 63) return sign;
    // The leading one is one of the bits kept: the exponent's field is zero without it.
  } else {
    significand &= ~(std::uint64_t{1} << 52);
  }
  const std::uint64_t half = std::uint64_t{1} << (dropped - 1);
  const std::uint64_t rest = significand & ((half << 1) - 1);
  std::uint64_t result = significand >> dropped;
  result += static_cast<std::uint64_t>(exponent + kBias) << kSignificand;
  result += rest > half || (rest == half && (result & 1));  // may carry into the exponent: right
  return result >= kInfinity16 ? sign | kInfinity16 : static_cast<std::uint16_t>(sign | result);
}

}  // namespace diglot::interpreter
