// Swizzles change the places of the 16-byte chunks of a tile in shared memory, so that neither its
// rows nor its columns conflict in banks. Bulk tensor copies and wgmma have the same swizzles.
#pragma once

#include <cstdint>

// Without vendor headers: the interpreter's own sources include this too.
#if defined(__CUDACC__)
#define DIGLOT_CONSTEXPR __host__ __device__ constexpr
#else
#define DIGLOT_CONSTEXPR constexpr
#endif

namespace diglot {

// Named after the bytes of a span. Numbered as CUtensorMapSwizzle.
enum class Swizzle : uint8_t { kNone, k32, k64, k128 };

// Bytes of a span; 0 without a swizzle.
DIGLOT_CONSTEXPR unsigned span_of(Swizzle swizzle) {
  return swizzle == Swizzle::kNone ? 0 : 16u << static_cast<unsigned>(swizzle);
}

// Where the byte lies that would be at this address without the swizzle. The number of a chunk
// within its span is xored with the number of its 128-byte line.
DIGLOT_CONSTEXPR uint32_t swizzled(uint32_t address, Swizzle swizzle) {
  const uint32_t span = span_of(swizzle);
  return span == 0 ? address : address ^ (address / 128 * 16 % span);
}

}  // namespace diglot
